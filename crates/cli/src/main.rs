//! The binary `relevo`: an embedded demo, and the commands that set an outbox up in a database.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted twice. Output has no colours, so that `NO_COLOR` holds.

mod args;
mod ask;
mod commands;
mod config;
mod database;
mod demo;
mod report;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let command = Cli::parse().command.unwrap_or_else(|| Command::Dev(args::Dev::default()));
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough, as with `relevo dev | head`.
        Err(error) if report::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            report::say(&report::Told::of(&error).to_string());
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // The demo provokes failures on purpose and shows them itself: there, nothing is logged.
    if !matches!(command, Command::Dev(_)) {
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).without_time().with_ansi(false);
        log.with_writer(std::io::stderr).init();
    }
    runtime.block_on(async {
        match command {
            Command::Dev(dev) => demo::run(&dev).await,
            Command::Config(config) => config.run(),
            Command::Migrate(migrate) => commands::migrate(&migrate).await,
            Command::Destination(destination) => commands::destination(destination).await,
            Command::Adopt(takeover) => commands::adopt(&takeover).await,
            Command::Rebase(takeover) => commands::rebase(&takeover).await,
            Command::Backlog(backlog) => commands::backlog(&backlog).await,
        }
    })
}
