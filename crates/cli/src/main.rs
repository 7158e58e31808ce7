//! The binary `relevo`: an embedded demo, and the commands that set up, inspect and repair an outbox.
//!
//! Exit codes are in `exit.rs`. Output has no colours, so that `NO_COLOR` holds.

mod args;
mod commands;
mod config;
mod connect;
mod dev;
mod error_report;
mod exit;
mod host;
mod output;
mod prompt;
mod run;
#[cfg(test)]
mod runbooks;

use std::process::ExitCode;

use clap::Parser as _;
use tracing::Level;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::{Cli, Command};
use crate::exit::ExitStatus;

fn main() -> ExitCode {
    let command = Cli::parse().command.unwrap_or_else(|| Command::Dev(args::Dev::default()));
    match run(command) {
        Ok(code) => code.into(),
        // The reader of the output closed the pipe, as in `relevo dev | head`.
        Err(error) if error_report::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            error_report::print_stderr(&error_report::ErrorReport::of(&error).to_string());
            ExitStatus::of(&error).into()
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitStatus> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // The demo provokes failures and shows them itself, so it logs nothing. The daemon configures its own log.
    if !matches!(command, Command::Dev(_) | Command::Run(_)) {
        // A statement that waits for a lock succeeds or returns an error, so a warning adds nothing.
        let log = Targets::new().with_default(Level::WARN).with_target("sqlx::query", Level::ERROR);
        let log = relevo_host::logging::without_noisy_targets(&log);
        let lines = tracing_subscriber::fmt::layer().without_time().with_ansi(false).with_writer(std::io::stderr);
        tracing_subscriber::registry().with(lines.with_filter(log)).init();
    }
    runtime.block_on(async {
        match command {
            Command::Dev(dev) => dev::run(&dev).await.map(|()| ExitStatus::Success),
            Command::Run(args) => run::run(args).await.map(|()| ExitStatus::Success),
            Command::Config(config) => config.run(),
            Command::Operator(command) => commands::run(command).await,
        }
    })
}
