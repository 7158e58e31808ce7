//! `relevo message tail`

use std::io::{self, Write as _};
use std::pin::pin;
use std::time::Duration;

use anyhow::Result;
use relevo_core::outbox::search::{OutboxSearch, TailFilter, TailMessage, TailPage};
use relevo_core::store::StoreError;
use serde_json::json;

use crate::args::OutboxArgs;
use crate::connect;
use crate::error_report::{ErrorReport, print_stderr};
use crate::exit::ExitStatus;
use crate::output::table::Table;
use crate::output::{self, OutputArgs, time};

/// The maximum number of messages of one read.
const PAGE: usize = 1000;
const HEAD: &[&str] = &["SEQ", "EMITTED", "TOPIC", "KEY", "TYPE", "ID"];

/// Which messages, and for how long.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    relevo message tail -f --topic orders\n  \
    relevo message tail -f -n 0 -o json")]
pub(crate) struct Args {
    #[command(flatten)]
    target: OutboxArgs,
    /// Waits for further messages, and prints each one once it is committed, until Ctrl-C.
    #[arg(long, short)]
    follow: bool,
    /// Starts with the newest N messages.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1000))]
    lines: u32,
    /// Only messages of this key.
    #[arg(long)]
    key: Option<String>,
    /// Only messages of this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only messages of this type.
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// The time between two reads.
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = time::duration)]
    interval: Duration,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let opened = args.target.locate()?.outbox().await?;
    let log = connect::search(&*opened)?;
    let filter = TailFilter { key: args.key.clone(), topic: args.topic.clone(), kind: args.kind.clone() };
    let mut output = Output { format: args.output, table: Table::new(HEAD) };
    let mut interrupted = pin!(tokio::signal::ctrl_c());
    let mut page = log.tail(&filter, None, usize::try_from(args.lines)?).await?;
    loop {
        output.write(&page.messages)?;
        if !args.follow {
            return Ok(ExitStatus::Success);
        }
        page = tokio::select! {
            biased;
            _ = &mut interrupted => return Ok(ExitStatus::Success),
            next = next_page(log, &filter, &page, args.interval) => next?,
        };
    }
}

/// Waits for the next page with messages. An outage delays it: the cursor stays valid.
async fn next_page(
    log: &dyn OutboxSearch,
    filter: &TailFilter,
    last: &TailPage,
    interval: Duration,
) -> Result<TailPage, StoreError> {
    let (mut cursor, mut more, mut is_down) = (last.next.clone(), last.more, false);
    loop {
        if !more {
            tokio::time::sleep(interval).await;
        }
        match log.tail(filter, Some(&cursor), PAGE).await {
            Ok(page) if page.messages.is_empty() => (cursor, more, is_down) = (page.next, page.more, false),
            Ok(page) => return Ok(page),
            Err(error) if error.is_retryable() => {
                if !is_down {
                    print_stderr(&ErrorReport::of(&error.into()).as_warning());
                }
                (more, is_down) = (false, true);
            }
            Err(error) => return Err(error),
        }
    }
}

struct Output {
    format: OutputArgs,
    table: Table,
}

impl Output {
    fn write(&mut self, messages: &[TailMessage]) -> Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        if self.format.is_json() {
            for message in messages {
                writeln!(out, "{}", object(message))?;
            }
        } else if !messages.is_empty() {
            self.table.write(&mut out, &messages.iter().map(row).collect::<Vec<_>>())?;
        }
        Ok(out.flush()?)
    }
}

fn object(message: &TailMessage) -> serde_json::Value {
    json!({
        "seq": message.seq,
        "id": message.id.to_string(),
        "topic": message.topic,
        "key": message.key,
        "type": message.kind,
        "created_at": output::timestamp(Some(message.created_at)),
    })
}

fn row(message: &TailMessage) -> Vec<String> {
    vec![
        message.seq.to_string(),
        time::utc(message.created_at),
        message.topic.clone(),
        message.key.clone(),
        message.kind.clone(),
        message.id.to_string(),
    ]
}
