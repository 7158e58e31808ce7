//! `relevo outbox show`

use std::io::{self, Write as _};

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::outbox::inspect::{MessageDetails, MessageStatus};
use relevo_core::{Message, MessageId};

use crate::args::DestinationArgs;
use crate::exit::{ExitStatus, not_found};
use crate::outbox;
use crate::output::{self, OutputArgs};
use crate::output::{payload, table, time};

/// Which message.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: DestinationArgs,
    /// The message's id.
    #[arg(value_parser = crate::args::message_id)]
    id: MessageId,
    /// Writes exactly the bytes of the payload, and nothing else.
    #[arg(long, conflicts_with = "format")]
    raw: bool,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let opened = outbox::open(&args.which).await?;
    let Some(shown) = opened.outbox.message(&opened.destination.name, args.id).await? else {
        return Err(not_found(format!(
            "message {} is not in the outbox at {}; hint: it may be older than the retention, or never committed",
            args.id, opened.shown
        )));
    };
    let destination = opened.destination.name;
    let mut out = io::stdout().lock();
    if args.raw {
        out.write_all(&shown.message.payload)?;
    } else if args.output.is_json() {
        let mut value = output::listed(&shown.summary, &destination);
        output::add_content(&mut value, &shown.message);
        writeln!(out, "{value}")?;
    } else {
        let now = Timestamp::now();
        let mut pairs = vec![("id", shown.message.id.to_string())];
        pairs.extend(status(&shown, &destination, now));
        pairs.extend(envelope(&shown.message, now));
        table::pairs(&mut out, &pairs)?;
        writeln!(out)?;
        payload::write(&mut out, &shown.message.content_type, &shown.message.payload)?;
    }
    Ok(ExitStatus::Success)
}

fn status(shown: &MessageDetails, destination: &str, now: Timestamp) -> Vec<(&'static str, String)> {
    let listed = &shown.summary;
    let mut pairs = vec![("status", format!("{} at destination `{destination}`", listed.status.as_str()))];
    pairs.extend(listed.seq.map(|seq| ("seq", seq.to_string())));
    pairs.extend(listed.published_at.map(|at| ("published", time::with_age(at, now))));
    if listed.attempts > 0 {
        pairs.push(("attempts", listed.attempts.to_string()));
    }
    let name = if listed.status == MessageStatus::Scheduled { "due" } else { "next attempt" };
    pairs.extend(listed.next_attempt_at.map(|at| (name, time::with_age(at, now))));
    pairs.extend(listed.last_error.clone().map(|error| ("error", error)));
    pairs
}

/// What every message has.
pub(super) fn envelope(message: &Message, now: Timestamp) -> Vec<(&'static str, String)> {
    let mut pairs = vec![
        ("topic", message.topic.to_string()),
        ("key", message.key.to_string()),
        ("type", message.kind.to_string()),
        ("emitted", time::with_age(message.created_at, now)),
        ("content type", format!("{}, {} bytes", message.content_type, message.payload.len())),
    ];
    pairs.extend(message.headers.iter().map(|(name, value)| ("header", format!("{name}: {value}"))));
    pairs
}
