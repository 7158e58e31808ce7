//! The binary `ticketflow`.

mod args;
mod commands;
mod logging;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;
use ticketflow::desk::Kind;
use ticketflow::run::{self, Serving};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::args::{Args, Command};

/// Interrupted twice, as shells count it: 128 and the number of SIGINT.
const INTERRUPTED: i32 = 130;

fn main() -> ExitCode {
    match begin() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr cannot be written, the error cannot be reported.
            writeln!(std::io::stderr(), "error: {error:#}").ok();
            ExitCode::FAILURE
        }
    }
}

fn begin() -> Result<()> {
    let args = Args::parse();
    logging::start(args.command.is_none())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let config = args.config()?;
        match &args.command {
            None => serve(config, args.is_sample()).await,
            Some(Command::Migrate) => commands::migrate(&config).await,
            Some(Command::Topology { what }) => commands::topology(&config, *what).await,
            Some(Command::Person { what }) => {
                let kind = if args.is_sample() { Kind::Sample } else { Kind::Real };
                commands::person(&config, kind, what).await
            }
        }
    })
}

/// Until a signal or an error ends it; a second signal ends it at once.
async fn serve(config: ticketflow::config::Config, sample: bool) -> Result<()> {
    let mut signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let stop = CancellationToken::new();
    let running = run::run(config, sample, tell, stop.clone());
    tokio::pin!(running);
    loop {
        tokio::select! {
            biased;
            () = next(&mut signals) => {
                if stop.is_cancelled() {
                    error!("second signal: exiting at once");
                    std::process::exit(INTERRUPTED);
                }
                info!("shutting down: finishing current work");
                stop.cancel();
            }
            ended = &mut running => return ended,
        }
    }
}

async fn next([terminate, interrupt]: &mut [Signal; 2]) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Prints the address and the sample users.
fn tell(serving: &Serving) {
    let mut out = std::io::stdout().lock();
    // A closed output is not an error.
    writeln!(out, "TicketFlow listens on http://{}", serving.address).ok();
    for face in &serving.faces {
        writeln!(out, "  {:<6} {:<9} {}  token {}", face.name, face.role, face.language, face.token).ok();
    }
    out.flush().ok();
}
