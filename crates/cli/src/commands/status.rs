//! `relevo status`, and the snapshots of `relevo top`.

mod admin_client;
mod json;
mod snapshot;
#[cfg(test)]
mod tests;
mod text;

use std::io;

use anyhow::Result;

use self::admin_client::{AdminArgs, AdminClient};
use self::snapshot::{Poller, Snapshot};
use crate::args::OutboxArgs;
use crate::exit::ExitStatus;
use crate::output::{self, OutputArgs};

/// The outbox, and the processes that report rates.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    ports: AdminArgs,
    /// Maximum number of lanes, keys, queues and dead letters of each destination or consumer.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(0..=1000))]
    limit: u16,
}

/// The arguments of `relevo status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  relevo status\n  relevo status --admin http://127.0.0.1:9464 -o json")]
pub(crate) struct Args {
    #[command(flatten)]
    status: StatusArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let mut view = StatusView::new(&args.status)?;
    view.poll().await?;
    if args.output.is_json() {
        output::line(&view.json())?;
    } else {
        view.write(&mut io::stdout().lock())?;
    }
    Ok(ExitStatus::Success)
}

/// The last snapshot.
pub(super) struct StatusView {
    poller: Poller,
    last: Option<Snapshot>,
}

impl StatusView {
    pub(super) fn new(args: &StatusArgs) -> Result<Self> {
        let (place, client) = (args.target.locate()?, AdminClient::new(&args.ports)?);
        let poller = Poller::new(place, client, args.limit.into(), args.target.outbox.clone());
        Ok(Self { poller, last: None })
    }

    /// Takes a snapshot. After a failure, the last one remains.
    pub(super) async fn poll(&mut self) -> Result<()> {
        self.last = Some(self.poller.poll().await?);
        Ok(())
    }

    /// Writes the last snapshot as tables. Nothing before the first one.
    pub(super) fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        self.last.as_ref().map_or(Ok(()), |last| text::write(out, &self.poller.location(), last))
    }

    /// The last snapshot as JSON.
    pub(super) fn json(&self) -> serde_json::Value {
        self.last.as_ref().map_or_else(Default::default, json::object)
    }
}
