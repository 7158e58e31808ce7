//! `relevo cancel`

use anyhow::{Result, bail};
use relevo_core::MessageId;

use crate::args::OutboxArgs;
use crate::connect::emit_error;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found};

/// Which message.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  relevo cancel 5e8a1c6e-7d29-4c86-b1a9-3f0d6f2a9b10")]
pub(crate) struct Args {
    /// The id of the scheduled message, as `relevo emit` printed it.
    #[arg(value_parser = crate::args::message_id)]
    id: MessageId,
    #[command(flatten)]
    target: OutboxArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let (id, place) = (args.id, args.target.locate()?);
    if place.writer().await?.cancel(id).await.map_err(|failure| emit_error(failure.error))? {
        print_stderr(&format!("message {id} is cancelled"));
        return Ok(ExitStatus::Success);
    }
    let outbox = place.outbox().await?;
    for destination in outbox.destinations().await? {
        let name = destination.name;
        if let Some(found) = outbox.message(&name, id).await? {
            let status = found.summary.status.as_str();
            bail!("message {id} is no longer scheduled: it is `{status}` at destination `{name}`");
        }
    }
    let place = place.location();
    Err(not_found(format!(
        "message {id} is not scheduled in the outbox at {place}; hint: it was never committed, was cancelled, or is older than the retention"
    )))
}
