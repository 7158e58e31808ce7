//! `relevo message`

mod tail;

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;
use jiff::Timestamp;
use relevo_core::outbox::inspect::{MessageDetails, MessageStatus, MessageSummary};
use relevo_core::outbox::search::{MessageFilter, OutboxSearch, SearchPage};
use relevo_core::{Message, MessageId};

use crate::args::DestinationArgs;
use crate::connect;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found};
use crate::output::table::{self, Table};
use crate::output::{self, OutputArgs, count, payload, time};

/// Messages of one page where all of them are listed.
const PAGE: usize = 500;
/// A cell of an error is cut here; `message show` has all of it.
const ERROR_CHARS_MAX: usize = 60;

const LIST_EXAMPLES: &str = "Examples:
  relevo message list
  relevo message list --key o-42 --since 1h
  relevo message list --status retrying --all -o json";

/// What to do with messages.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists messages, newest first.
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Shows one message with its payload.
    #[command(after_help = "Example: relevo message show 019d3c4e-55aa-7c3e-9a41-0242ac120002 --raw > payload.json")]
    Show(ShowArgs),
    /// Prints the newest messages, without payloads, and follows the outbox.
    Tail(tail::Args),
}

/// Which messages, and how many.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only messages of this key.
    #[arg(long)]
    key: Option<String>,
    /// Only messages of this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only messages of this type.
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Only messages with this status.
    #[arg(long, value_parser = status)]
    status: Option<MessageStatus>,
    /// Only messages emitted since: RFC 3339, or how long ago, as `10m`.
    #[arg(long, value_name = "TIME", value_parser = time::past)]
    since: Option<Timestamp>,
    /// Only messages emitted before: RFC 3339, or how long ago, as `10m`.
    #[arg(long, value_name = "TIME", value_parser = time::past)]
    until: Option<Timestamp>,
    /// Continues an earlier list, which printed the number.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    before_seq: Option<i64>,
    /// The maximum number of messages.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Lists all of them, page by page.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// The maximum time of the search. It then prints how far it got.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = time::duration, conflicts_with = "all")]
    timeout: Duration,
    #[command(flatten)]
    which: DestinationArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Which message.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The id of the message.
    #[arg(value_parser = crate::args::message_id)]
    id: MessageId,
    /// Writes the bytes of the payload and nothing else.
    #[arg(long, conflicts_with = "format")]
    raw: bool,
    #[command(flatten)]
    which: DestinationArgs,
    #[command(flatten)]
    output: OutputArgs,
}

fn status(word: &str) -> Result<MessageStatus, String> {
    let known = || MessageStatus::ALL.map(MessageStatus::as_str).join(", ");
    MessageStatus::parse(word).ok_or_else(|| format!("`{word}` is no status; there are {}", known()))
}

pub(super) async fn run(command: Command) -> Result<ExitStatus> {
    match command {
        Command::List(args) => list(&args).await,
        Command::Show(args) => show(&args).await,
        Command::Tail(args) => tail::run(&args).await,
    }
}

async fn list(args: &ListArgs) -> Result<ExitStatus> {
    time::in_order(args.since, args.until)?;
    let opened = connect::open(&args.which).await?;
    let (outbox, destination) = (connect::search(&*opened.outbox)?, opened.destination.name);
    let mut search = MessageFilter {
        key: args.key.clone(),
        topic: args.topic.clone(),
        kind: args.kind.clone(),
        status: args.status,
        since: args.since,
        until: args.until,
        before_seq: args.before_seq,
    };
    let mut page = Page { output: args.output, table: Table::new(HEAD), destination, count: 0 };
    let limit = if args.all { PAGE } else { usize::try_from(args.limit).unwrap_or(PAGE) };
    loop {
        let mut found = outbox.search(&page.destination, &search, limit, args.timeout).await?;
        page.write(&found.messages)?;
        search.before_seq = found.next;
        if found.next.is_none() || !args.all {
            if found.searched_back_to.is_none() {
                check_further(outbox, &page.destination, &search, &mut found, args.timeout).await?;
            }
            page.end(&found);
            return Ok(ExitStatus::Success);
        }
    }
}

/// The store returns where there could be more. This checks whether there is more.
async fn check_further(
    outbox: &dyn OutboxSearch,
    destination: &str,
    search: &MessageFilter,
    found: &mut SearchPage,
    timeout: Duration,
) -> Result<()> {
    if found.next.is_some() {
        let further = outbox.search(destination, search, 1, timeout).await?;
        if further.messages.is_empty() {
            (found.next, found.searched_back_to) = (further.next, further.searched_back_to);
        }
    }
    Ok(())
}

const HEAD: &[&str] = &["SEQ", "STATUS", "EMITTED", "", "TOPIC", "KEY", "TYPE", "ID", "ERROR"];

/// Prints a list page by page, so that a pager shows its beginning at once.
struct Page {
    output: OutputArgs,
    table: Table,
    destination: String,
    count: u64,
}

impl Page {
    fn write(&mut self, messages: &[MessageSummary]) -> Result<()> {
        self.count += messages.len() as u64;
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

    /// Prints to stderr how far it got, and how to continue.
    fn end(&self, found: &SearchPage) {
        let count = count(self.count, "message");
        match (found.next, found.searched_back_to) {
            (Some(next), Some(at)) => print_stderr(&format!(
                "{count}; timed out after searching back to {}\nhint: continue with `--before-seq {next}`, or search longer with `--timeout 1m`",
                time::utc(at)
            )),
            (Some(next), None) => {
                print_stderr(&format!(
                    "{count}, and more\nhint: continue with `--before-seq {next}`, or list all with `--all`"
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

async fn show(args: &ShowArgs) -> Result<ExitStatus> {
    let opened = connect::open(&args.which).await?;
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
        pairs.extend(delivery(&shown, &destination, now));
        pairs.extend(envelope(&shown.message, now));
        table::pairs(&mut out, &pairs)?;
        writeln!(out)?;
        payload::write(&mut out, &shown.message.content_type, &shown.message.payload)?;
    }
    Ok(ExitStatus::Success)
}

fn delivery(shown: &MessageDetails, destination: &str, now: Timestamp) -> Vec<(&'static str, String)> {
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
