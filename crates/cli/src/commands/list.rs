//! `relevo outbox list`

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::outbox::inspect::{MessageStatus, MessageSummary};
use relevo_core::outbox::search::{MessageFilter, OutboxSearch, SearchPage};

use crate::args::DestinationArgs;
use crate::error_report::print_stderr;
use crate::exit::ExitStatus;
use crate::outbox;
use crate::output::table::Table;
use crate::output::time;
use crate::output::{self, OutputArgs};

/// Messages of one page where all of them are listed.
const PAGE: usize = 500;
/// A cell of an error is cut here; `outbox show` has all of it.
const ERROR_CHARS_MAX: usize = 60;

/// Which messages, and how many.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: DestinationArgs,
    /// Only messages of this key.
    #[arg(long)]
    key: Option<String>,
    /// Only messages of this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only messages of this type.
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Only messages in this status.
    #[arg(long, value_parser = status)]
    status: Option<MessageStatus>,
    /// Only messages emitted since: RFC 3339, or how long ago, as `10m`.
    #[arg(long, value_name = "TIME", value_parser = time::past)]
    since: Option<Timestamp>,
    /// Only messages emitted before: RFC 3339, or how long ago, as `10m`.
    #[arg(long, value_name = "TIME", value_parser = time::past)]
    until: Option<Timestamp>,
    /// Goes on where another list ended; the list said where.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    before: Option<i64>,
    /// At most so many.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// All of them, page by page, however long it takes.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// How long a search may take before it says how far it got.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = time::duration, conflicts_with = "all")]
    budget: Duration,
    #[command(flatten)]
    output: OutputArgs,
}

fn status(word: &str) -> Result<MessageStatus, String> {
    let known = || MessageStatus::ALL.map(MessageStatus::as_str).join(", ");
    MessageStatus::parse(word).ok_or_else(|| format!("`{word}` is no status; there are {}", known()))
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    time::in_order(args.since, args.until)?;
    let opened = outbox::open(&args.which).await?;
    let (outbox, destination) = (outbox::search(&*opened.outbox)?, opened.destination.name);
    let mut search = MessageFilter {
        key: args.key.clone(),
        topic: args.topic.clone(),
        kind: args.kind.clone(),
        status: args.status,
        since: args.since,
        until: args.until,
        before_seq: args.before,
    };
    let mut page = Page { output: args.output, table: Table::new(HEAD), destination, count: 0 };
    let limit = if args.all { PAGE } else { usize::try_from(args.limit).unwrap_or(PAGE) };
    loop {
        let mut found = outbox.search(&page.destination, &search, limit, args.budget).await?;
        page.write(&found.messages)?;
        search.before_seq = found.next;
        if found.next.is_none() || !args.all {
            if found.searched_back_to.is_none() {
                look_further(outbox, &page.destination, &search, &mut found, args.budget).await?;
            }
            page.end(&found);
            return Ok(ExitStatus::Success);
        }
    }
}

/// The store says where there could be more; whether there is any is found out before it is said.
async fn look_further(
    outbox: &dyn OutboxSearch,
    destination: &str,
    search: &MessageFilter,
    found: &mut SearchPage,
    budget: Duration,
) -> Result<()> {
    if found.next.is_some() {
        let further = outbox.search(destination, search, 1, budget).await?;
        if further.messages.is_empty() {
            (found.next, found.searched_back_to) = (further.next, further.searched_back_to);
        }
    }
    Ok(())
}

const HEAD: &[&str] = &["SEQ", "STATUS", "EMITTED", "", "TOPIC", "KEY", "TYPE", "ID", "ERROR"];

/// Writes a list as it comes, so that a pager shows its beginning at once.
struct Page {
    output: OutputArgs,
    table: Table,
    destination: String,
    count: usize,
}

impl Page {
    fn write(&mut self, messages: &[MessageSummary]) -> Result<()> {
        self.count += messages.len();
        if self.output.is_json() {
            let mut out = io::BufWriter::new(io::stdout().lock());
            for message in messages {
                writeln!(out, "{}", output::listed(message, &self.destination))?;
            }
            out.flush()?;
        } else if !messages.is_empty() {
            let now = Timestamp::now();
            let rows: Vec<_> = messages.iter().map(|message| row(message, now)).collect();
            let mut out = io::BufWriter::new(io::stdout().lock());
            self.table.write(&mut out, &rows)?;
            out.flush()?;
        }
        Ok(())
    }

    /// Says on stderr how far it got, and how to go on.
    fn end(&self, found: &SearchPage) {
        let count = match self.count {
            1 => "1 message".to_owned(),
            count => format!("{count} messages"),
        };
        match (found.next, found.searched_back_to) {
            (Some(next), Some(at)) => print_stderr(&format!(
                "{count}; the time ran out on the way back at {}\nhint: go on with `--before {next}`, or search longer with `--budget 1m`",
                time::utc(at)
            )),
            (Some(next), None) => {
                print_stderr(&format!(
                    "{count}, and more\nhint: go on with `--before {next}`, or list all with `--all`"
                ));
            }
            (None, _) => print_stderr(&count),
        }
    }
}

fn row(message: &MessageSummary, now: Timestamp) -> Vec<String> {
    let error = message.last_error.as_deref().unwrap_or_default();
    let cut = error.char_indices().nth(ERROR_CHARS_MAX).map(|(at, _)| format!("{}…", &error[..at]));
    vec![
        message.seq.map_or_else(|| "-".to_owned(), |seq| seq.to_string()),
        message.status.as_str().to_owned(),
        time::utc(message.created_at),
        time::age(message.created_at, now),
        message.topic.clone(),
        message.key.clone(),
        message.kind.clone(),
        message.id.to_string(),
        cut.unwrap_or_else(|| error.to_owned()),
    ]
}
