//! `relevo run`: the daemon. One relay for each destination of each outbox, and whatever watches over them.

mod admit;
mod daemon;
mod link;
mod logging;
mod metrics;
mod reload;
mod sampling;
mod signals;
mod systemd;
mod traces;
mod waiting;

use anyhow::Result;
use clap::Args;

pub(crate) use logging::quiet;

use crate::config::{self, Sources};

/// How the daemon runs.
#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    sources: Sources,
}

/// Runs until a signal ends it, or something that waiting does not mend.
pub(crate) async fn run(args: Run) -> Result<()> {
    // From here on a signal is not the process's end.
    let signals = signals::Signals::new()?;
    let loaded = config::told(args.sources.load())?;
    logging::start(&loaded.config.log)?;
    daemon::Daemon::start(args.sources, loaded).await?.run(signals).await
}
