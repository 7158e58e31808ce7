//! `relevo verify`

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::outbox::inspect::MessageStatus;
use relevo_core::outbox::search::{MessageFilter, OutboxSearch, TimeRange};
use serde_json::{Map, Value, json};

use crate::args::DestinationArgs;
use crate::connect::{self, REWRITE_TIMEOUT};
use crate::exit::ExitStatus;
use crate::output::{self, OutputArgs};
use crate::output::{table, time};

/// The range of the log.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: relevo verify --since 2h --until 1h -o json")]
pub(crate) struct Args {
    /// From this time: RFC 3339, or how long ago, as `10m` [default: the oldest retained message].
    #[arg(long, value_name = "TIME", value_parser = time::past)]
    since: Option<Timestamp>,
    /// Before this time: RFC 3339, or how long ago, as `10m` [default: now].
    #[arg(long, value_name = "TIME", value_parser = time::past)]
    until: Option<Timestamp>,
    #[command(flatten)]
    which: DestinationArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The maximum count of scheduled messages.
const SCHEDULED_MAX: usize = 10_000;

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    time::in_order(args.since, args.until)?;
    // A large log is read in many short statements; each can be slow on a busy server.
    let opened = connect::open_within(&args.which, REWRITE_TIMEOUT).await?;
    let (search, destination) = (connect::search(&*opened.outbox)?, &opened.destination.name);
    let mut verified = search.verify(destination, TimeRange { since: args.since, until: args.until }).await?;
    let scheduled = scheduled(search, destination, args).await?;
    for (_, count) in verified.by_status.iter_mut().filter(|(status, _)| *status == MessageStatus::Scheduled) {
        *count = scheduled;
    }
    if args.output.is_json() {
        let by_status: Map<String, Value> =
            verified.by_status.iter().map(|(status, count)| (status.as_str().to_owned(), (*count).into())).collect();
        output::line(&json!({
            "destination": opened.destination.name,
            "since": output::timestamp(args.since),
            "until": output::timestamp(args.until),
            "committed": verified.committed,
            "by_status": by_status,
            "oldest_unsettled": output::timestamp(verified.oldest_unsettled),
            "inconsistencies": verified.inconsistencies,
        }))?;
    } else {
        let now = Timestamp::now();
        let mut pairs = vec![("committed", verified.committed.to_string())];
        let counted = verified.by_status.iter().filter(|(_, count)| *count > 0);
        pairs.extend(counted.map(|(status, count)| match status {
            MessageStatus::Scheduled if *count == SCHEDULED_MAX as u64 => {
                (status.as_str(), format!("{count} or more, not in the log yet"))
            }
            MessageStatus::Scheduled => (status.as_str(), format!("{count}, not in the log yet")),
            _ => (status.as_str(), count.to_string()),
        }));
        if let Some(oldest) = verified.oldest_unsettled {
            pairs.push(("oldest unsettled", time::with_age(oldest, now)));
        }
        let mut out = io::stdout().lock();
        table::pairs(&mut out, &pairs)?;
        for inconsistency in &verified.inconsistencies {
            writeln!(out, "inconsistency: {}", table::plain(inconsistency))?;
        }
        if verified.inconsistencies.is_empty() {
            writeln!(out, "no inconsistencies")?;
        }
    }
    Ok(if verified.inconsistencies.is_empty() { ExitStatus::Success } else { ExitStatus::Findings })
}

/// Scheduled messages are not in the log, so they are only counted.
async fn scheduled(outbox: &dyn OutboxSearch, destination: &str, args: &Args) -> Result<u64> {
    let search = MessageFilter {
        status: Some(MessageStatus::Scheduled),
        since: args.since,
        until: args.until,
        ..MessageFilter::default()
    };
    // A search returns scheduled messages before the log: it needs no time for the log.
    Ok(outbox.search(destination, &search, SCHEDULED_MAX, Duration::ZERO).await?.messages.len() as u64)
}
