//! All development commands of the project.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool: results go to stdout, everything else to stderr"
)]

mod account;
mod bench;
mod cargo;
mod ci;
mod install;
mod lines;
mod marked;
mod nats;
mod port;
mod postgres;
mod rabbitmq;
mod runner;
mod scratch;
mod service;
mod services;
mod tally;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use runner::Runner;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Every development command of Relevo")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts the servers, runs the tests, stops the servers.
    Test(test::Options),
    /// Runs all checks: format, clippy, docs, tests, simulation, deny, tidy.
    Ci,
    /// Manages the test servers, for running `cargo test` by hand.
    Services {
        #[command(subcommand)]
        action: services::Action,
    },
    /// Runs the simulation.
    Sim {
        /// Replays one seed exactly.
        #[arg(long)]
        seed: Option<u64>,
        /// Number of seeds to run.
        #[arg(long)]
        seeds: Option<u64>,
    },
    /// Runs the benchmarks against dedicated servers.
    Bench {
        /// Arguments for the benchmarks.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Kills and stops relays, consumers, database and broker while messages flow, then reports the fate of the
    /// messages.
    Torture {
        /// Arguments for the torture run: `--consumers --seconds N --seed S --store postgres|sqlite --broker
        /// embedded|rabbitmq|nats --messages N --faults N`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Counts the lines of Rust and SQL per crate, without tests and test support.
    Lines {
        /// The revision to count.
        #[arg(default_value = "HEAD")]
        revision: String,
    },
    /// Checks the project's writing rules as far as a program can.
    Tidy,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runner = match Runner::new() {
        Ok(runner) => runner,
        Err(error) => return failed(&error),
    };
    let result = dispatch(&runner, arguments.command);
    match (runner.signal(), result) {
        // The exit code that a shell reports for a command that a signal ended.
        (Some(signal), _) => ExitCode::from(128 + signal),
        (None, Ok(code)) => code,
        (None, Err(error)) => failed(&error),
    }
}

fn dispatch(runner: &Runner, command: Command) -> Result<ExitCode> {
    match command {
        Command::Test(options) => return test::run(runner, &options),
        Command::Ci => return ci::run(runner),
        Command::Services { action } => services::run(runner, action)?,
        Command::Sim { seed, seeds } => ci::sim(runner, seed, seeds)?,
        Command::Bench { arguments } => bench::run(runner, &arguments)?,
        Command::Torture { arguments } => {
            let servers = install::all(runner)?;
            let relevo = cargo::release(runner, "relevo-cli", "relevo")?;
            let torture = cargo::release(runner, "relevo-torture", "relevo-torture")?;
            let environment = services::for_one_run(runner, &servers)?;
            let mut command = std::process::Command::new(torture);
            command.arg("--relevo").arg(relevo).args(arguments).envs(environment.variables.clone());
            runner.run(&mut command)?;
        }
        Command::Lines { revision } => lines::run(&revision)?,
        Command::Tidy => tidy::run()?,
    }
    Ok(ExitCode::SUCCESS)
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}
