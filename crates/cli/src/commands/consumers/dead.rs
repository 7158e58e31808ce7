//! `relevo consumers dead`

mod filter;
pub(in crate::commands) mod letter;
mod mark;

use std::io::{self, Write as _};

use anyhow::Result;
use clap::Subcommand;
use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetterFilter, DeadLetterState, DeadLetterSummary};

use self::filter::Filter;
use super::choose;
use crate::args::OutboxArgs;
use crate::commands::dead::collect;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found, usage};
use crate::outbox::Place;
use crate::output::OutputArgs;
use crate::output::table::Table;
use crate::output::time;

/// No message is dead-lettered under more numbers of replays.
const REPLAYS_MAX: usize = 1000;

/// What to do with what consumers gave up.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists dead letters, oldest first.
    List(List),
    /// Shows one dead letter with its headers and its payload as they came.
    Show(Show),
    /// Has dead letters handled again, before what waits of their keys.
    Redrive(mark::Redrive),
    /// Puts dead letters aside, so that their keys go on without them.
    Archive(mark::Args),
}

/// Which dead letters are listed.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("chosen").multiple(true))]
pub(crate) struct List {
    #[command(flatten)]
    target: OutboxArgs,
    /// Only those of this consumer.
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
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
    target: OutboxArgs,
    /// The message's id.
    #[arg(value_parser = crate::args::message_id)]
    id: MessageId,
    /// The consumer that gave it up, if several did.
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Under which number of a replay, if it was given up more than once.
    #[arg(long, value_name = "N")]
    replay: Option<u32>,
    /// Writes exactly the bytes of the payload, and nothing else.
    #[arg(long, visible_alias = "payload", conflicts_with = "format")]
    raw: bool,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(command: Command) -> Result<ExitStatus> {
    match command {
        Command::List(args) => list(&args).await,
        Command::Show(args) => show(&args).await,
        Command::Redrive(args) => mark::redrive(&args).await,
        Command::Archive(args) => mark::archive(&args).await,
    }
}

async fn list(args: &List) -> Result<ExitStatus> {
    args.filter.check()?;
    let consumers = Place::of(&args.target)?.consumers().await?;
    if args.consumer.is_some() {
        choose(&*consumers, args.consumer.as_deref()).await?;
    }
    let states = if args.history { Vec::new() } else { DeadLetterState::OPEN.to_vec() };
    let filter = DeadLetterFilter { states, ..args.filter.of_store(args.consumer.as_deref()) };
    let limit = (!args.all).then(|| usize::try_from(args.limit).unwrap_or(usize::MAX));
    let (letters, is_more) = collect(&*consumers, &filter, limit).await?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.output.is_json() {
        for dead in &letters {
            writeln!(out, "{}", letter::object(dead))?;
        }
    } else if !letters.is_empty() {
        let now = Timestamp::now();
        let rows: Vec<_> = letters.iter().map(|dead| row(dead, now)).collect();
        Table::new(&["ID", "CONSUMER", "STATE", "CLASS", "ATTEMPTS", "REDRIVEN", "DEAD SINCE", "KEY", "TYPE", "ERROR"])
            .write(&mut out, &rows)?;
    }
    out.flush()?;
    let count = mark::counted(letters.len() as u64);
    let more = if is_more { ", and more\nhint: see more with `--limit`, or all with `--all`" } else { "" };
    print_stderr(&format!("{count}{}{more}", again(&letters)));
    Ok(ExitStatus::Success)
}

/// How many of those that wait were redriven before, and failed again.
fn again(letters: &[DeadLetterSummary]) -> String {
    match letters.iter().filter(|dead| dead.state == DeadLetterState::Dead && dead.redrives > 0).count() {
        0 => String::new(),
        count => format!(", of which {count} failed again after a redrive"),
    }
}

fn row(dead: &DeadLetterSummary, now: Timestamp) -> Vec<String> {
    vec![
        letter::named(dead),
        dead.owner.clone(),
        dead.state.as_str().to_owned(),
        dead.class.clone(),
        dead.attempts.to_string(),
        dead.redrives.to_string(),
        time::with_age(dead.dead_at, now),
        dead.key.clone(),
        dead.kind.clone().unwrap_or_else(|| "-".to_owned()),
        dead.error.clone(),
    ]
}

async fn show(args: &Show) -> Result<ExitStatus> {
    let consumers = Place::of(&args.target)?.consumers().await?;
    if args.consumer.is_some() {
        choose(&*consumers, args.consumer.as_deref()).await?;
    }
    let filter = Filter::default().of_store(args.consumer.as_deref());
    let filter = DeadLetterFilter { ids: vec![args.id], ..filter };
    let mut letters = consumers.get_dead_letters(&filter, REPLAYS_MAX).await?;
    letters.retain(|dead| args.replay.is_none_or(|replay| dead.summary.replay == replay));
    let dead = match letters.len() {
        0 => {
            let hint = format!("`relevo trace {}` shows what became of it", args.id);
            return Err(not_found(format!("no consumer has {} among its dead letters; hint: {hint}", args.id)));
        }
        1 => letters.remove(0),
        _ => {
            let each = letters.iter().map(|it| &it.summary);
            let each = each.map(|it| format!("`--consumer {} --replay {}`", it.owner, it.replay));
            let each = each.collect::<Vec<_>>().join(", ");
            return Err(usage(format!("{} was given up more than once; hint: choose with {each}", args.id)));
        }
    };
    let mut out = io::stdout().lock();
    if args.raw {
        let message = dead.content.inbox_message();
        out.write_all(message.map_or(&[], |message| &message.raw.payload))?;
    } else if args.output.is_json() {
        writeln!(out, "{}", letter::whole(&dead))?;
    } else {
        letter::told(&mut out, &dead)?;
    }
    Ok(ExitStatus::Success)
}
