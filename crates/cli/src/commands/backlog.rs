//! `relevo backlog`

use std::fmt;
use std::io;

use anyhow::Result;
use relevo_core::outbox::inspect::Backlog;
use serde_json::json;

use crate::args::DestinationArgs;
use crate::exit::ExitStatus;
use crate::outbox;
use crate::output::table;
use crate::output::{self, OutputArgs};

/// Whose backlog.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: DestinationArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let opened = outbox::open(&args.which).await?;
    let sample = opened.outbox.sample_destination(&opened.destination.name).await?;
    let Backlog { pending, exact, parked, dead } = sample.backlog;
    if args.output.is_json() {
        let name = opened.destination.name;
        output::line(
            &json!({ "destination": name, "pending": pending, "exact": exact, "parked": parked, "dead": dead }),
        )?;
    } else {
        let estimate = if exact { "" } else { " (estimate)" };
        let pairs =
            [("pending", format!("{pending}{estimate}")), ("parked", parked.to_string()), ("dead", dead.to_string())];
        table::pairs(&mut io::stdout().lock(), &pairs)?;
    }
    Ok(ExitStatus::Success)
}

/// A backlog in the middle of a sentence.
pub(super) struct Waits(pub(super) Backlog);

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = if self.0.exact { "" } else { "about " };
        write!(f, "{about}{} pending and {} parked messages", self.0.pending, self.0.parked)
    }
}
