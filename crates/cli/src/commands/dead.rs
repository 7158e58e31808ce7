//! `relevo dead`

mod filter;
mod mark;

use std::io::{self, Write as _};

use anyhow::Result;
use clap::Subcommand;
use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetterAdmin, DeadLetterFilter, DeadLetterState, DeadLetterSummary};
use serde_json::{Value, json};

use self::filter::Filter;
use super::show;
use crate::args::DestinationArgs;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found};
use crate::outbox;
use crate::output::table::{self, Table};
use crate::output::{self, OutputArgs};
use crate::output::{payload, time};

/// Letters of one page where all of them are listed.
const PAGE: usize = 1000;

/// What to do with dead letters.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists dead letters, oldest first.
    List(List),
    /// Shows one dead letter with its payload.
    Show(Show),
    /// Marks dead letters to be sent again, in the order of their key; the relay of their shard acts.
    Redrive(mark::Args),
    /// Marks dead letters to be put aside, so that their keys go on without them.
    Discard(mark::Args),
}

/// Which dead letters are listed.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("chosen").multiple(true))]
pub(crate) struct List {
    #[command(flatten)]
    which: DestinationArgs,
    #[command(flatten)]
    filter: Filter,
    /// Those that were redriven or discarded too.
    #[arg(long)]
    history: bool,
    /// At most so many.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// All of them, however many there are.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Which dead letter is shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
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

pub(super) async fn run(command: Command) -> Result<ExitStatus> {
    match command {
        Command::List(args) => list(&args).await,
        Command::Show(args) => show(&args).await,
        Command::Redrive(args) => mark::redrive(&args).await,
        Command::Discard(args) => mark::discard(&args).await,
    }
}

async fn list(args: &List) -> Result<ExitStatus> {
    args.filter.check()?;
    let opened = outbox::open(&args.which).await?;
    let states = if args.history { Vec::new() } else { DeadLetterState::OPEN.to_vec() };
    let filter = DeadLetterFilter { states, ..args.filter.of_store(&opened.destination.name) };
    let limit = (!args.all).then(|| usize::try_from(args.limit).unwrap_or(PAGE));
    let (letters, is_more) = collect(&*opened.outbox, &filter, limit).await?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.output.is_json() {
        for letter in &letters {
            writeln!(out, "{}", object(letter))?;
        }
    } else if !letters.is_empty() {
        let now = Timestamp::now();
        let rows: Vec<_> = letters.iter().map(|letter| row(letter, now)).collect();
        Table::new(&["ID", "STATE", "CLASS", "ATTEMPTS", "EMITTED", "TOPIC", "KEY", "TYPE", "ERROR"])
            .write(&mut out, &rows)?;
    }
    out.flush()?;
    let more = if is_more { ", and more\nhint: see more with `--limit`, or all with `--all`" } else { "" };
    print_stderr(&format!("{}{more}", mark::counted(letters.len() as u64)));
    Ok(ExitStatus::Success)
}

/// The first letters, and whether there are more. Without a limit, all of them, page by page.
pub(super) async fn collect(
    admin: &(impl DeadLetterAdmin + ?Sized),
    filter: &DeadLetterFilter,
    limit: Option<usize>,
) -> Result<(Vec<DeadLetterSummary>, bool)> {
    let mut letters = Vec::new();
    let mut after = None;
    loop {
        let page = admin.list_dead_letters(filter, after.as_deref(), limit.unwrap_or(PAGE)).await?;
        letters.extend(page.letters);
        after = page.next;
        if after.is_none() || limit.is_some() {
            return Ok((letters, after.is_some()));
        }
    }
}

fn row(letter: &DeadLetterSummary, now: Timestamp) -> Vec<String> {
    vec![
        letter.id.to_string(),
        letter.state.as_str().to_owned(),
        letter.class.clone(),
        letter.attempts.to_string(),
        time::with_age(letter.entered_at, now),
        letter.topic.clone().unwrap_or_default(),
        letter.key.clone(),
        letter.kind.clone().unwrap_or_default(),
        letter.error.clone(),
    ]
}

fn object(letter: &DeadLetterSummary) -> Value {
    json!({
        "destination": letter.owner,
        "id": letter.id.to_string(),
        "topic": letter.topic,
        "key": letter.key,
        "type": letter.kind,
        "created_at": output::timestamp(Some(letter.entered_at)),
        "state": letter.state.as_str(),
        "class": letter.class,
        "error": letter.error,
        "attempts": letter.attempts,
        "redriven": letter.redrives,
        "route": letter.route,
        "dead_at": output::timestamp(Some(letter.dead_at)),
        "marked_at": output::timestamp(letter.mark.as_ref().map(|mark| mark.at)),
        "marked_by": letter.mark.as_ref().map(|mark| &mark.by),
        "reason": letter.mark.as_ref().map(|mark| &mark.reason),
    })
}

async fn show(args: &Show) -> Result<ExitStatus> {
    let opened = outbox::open(&args.which).await?;
    let destination = opened.destination.name;
    let filter = DeadLetterFilter { ids: vec![args.id], ..DeadLetterFilter::of_destination(&*destination) };
    let letter = opened.outbox.get_dead_letters(&filter, 1).await?.into_iter().next();
    let Some((letter, message)) = letter.as_ref().and_then(|it| Some((&it.summary, it.content.outbox_message()?)))
    else {
        let hint = format!("`relevo outbox show {}` looks in the whole outbox", args.id);
        return Err(not_found(format!("{} is no dead letter of destination `{destination}`; hint: {hint}", args.id)));
    };
    let mut out = io::stdout().lock();
    if args.raw {
        out.write_all(&message.payload)?;
    } else if args.output.is_json() {
        let mut value = object(letter);
        output::add_content(&mut value, message);
        writeln!(out, "{value}")?;
    } else {
        let now = Timestamp::now();
        let mut pairs = vec![
            ("id", letter.id.to_string()),
            ("state", format!("{} at destination `{destination}`", letter.state.as_str())),
            ("class", letter.class.clone()),
            ("error", letter.error.clone()),
            ("attempts", letter.attempts.to_string()),
        ];
        pairs.extend(letter.route.clone().map(|route| ("route", route)));
        pairs.push(("dead since", time::with_age(letter.dead_at, now)));
        if letter.redrives > 0 {
            pairs.push(("redriven", times(letter.redrives)));
        }
        if let Some(mark) = &letter.mark {
            pairs.push(("marked", format!("{} by {}", time::with_age(mark.at, now), mark.by)));
            pairs.push(("reason", mark.reason.clone()));
        }
        pairs.extend(show::envelope(message, now));
        table::pairs(&mut out, &pairs)?;
        writeln!(out)?;
        payload::write(&mut out, &message.content_type, &message.payload)?;
    }
    Ok(ExitStatus::Success)
}

/// How often something was done.
pub(super) fn times(count: u32) -> String {
    match count {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}
