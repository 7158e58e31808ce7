//! `relevo backlog`

use std::fmt;
use std::io;

use anyhow::Result;
use relevo_core::outbox::inspect::Backlog;
use serde_json::json;

use super::output::{self, Format};
use super::table;
use crate::exit::Code;
use crate::outbox::{self, Which};

/// Whose backlog.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    format: Format,
}

pub(super) async fn run(args: &Args) -> Result<Code> {
    let opened = outbox::open(&args.which).await?;
    let sample = opened.outbox.sample_destination(&opened.destination.name).await?;
    let Backlog { pending, exact, parked, dead } = sample.backlog;
    if args.format.json {
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
    Ok(Code::Done)
}

/// A backlog in the middle of a sentence.
pub(super) struct Waits(pub(super) Backlog);

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = if self.0.exact { "" } else { "about " };
        write!(f, "{about}{} pending and {} parked messages", self.0.pending, self.0.parked)
    }
}
