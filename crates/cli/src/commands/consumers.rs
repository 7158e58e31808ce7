//! `relevo consumers`

pub(super) mod dead;
mod forget;
mod orders;
pub(super) mod show;

use std::io;

use anyhow::Result;
use clap::Subcommand;
use jiff::Timestamp;
use relevo_core::inbox::ConsumerOperator;
use relevo_core::inbox::admin::ConsumerSummary;
use serde_json::{Value, json};

use crate::args::OutboxArgs;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found, usage};
use crate::outbox::Place;
use crate::output::table::Table;
use crate::output::time;
use crate::output::{self, OutputArgs};

/// Messages and dead letters are counted so far.
const COUNTED_MAX: u64 = 10_000;

/// What to do with consumers.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists the consumers whose inbox is in this database.
    List(List),
    /// Shows one consumer: its members, its lanes and what waits in its retry table.
    Show(show::Args),
    /// Pauses a consumer, or one of its lanes: what runs ends, nothing more is begun.
    Pause(orders::Args),
    /// Lets a consumer, or one of its lanes, go on.
    Resume(orders::Args),
    /// Forces the breaker of a lane open or closed, or lets it decide by itself again.
    Breaker(orders::Breaker),
    /// Forgets who worked for a consumer that was taken away for good; what it handled and what it left stays.
    Forget(forget::Args),
    /// Lists what consumers gave up, has it handled again or puts it aside.
    #[command(subcommand)]
    Dead(dead::Command),
}

/// How consumers are listed.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(command: Command) -> Result<ExitStatus> {
    match command {
        Command::List(args) => list(&args).await,
        Command::Show(args) => show::run(&args).await,
        Command::Pause(args) => orders::pause(&args).await,
        Command::Resume(args) => orders::resume(&args).await,
        Command::Breaker(args) => orders::force(&args).await,
        Command::Forget(args) => forget::run(&args).await,
        Command::Dead(command) => dead::run(command).await,
    }
}

async fn list(args: &List) -> Result<ExitStatus> {
    let consumers = Place::of(&args.target)?.consumers().await?.list_consumers().await?;
    if args.output.is_json() {
        for consumer in &consumers {
            output::line(&object(consumer))?;
        }
    } else if consumers.is_empty() {
        print_stderr("no consumer was heard of yet; one is when its first member starts, or handles its first message");
    } else {
        let now = Timestamp::now();
        let rows: Vec<_> = consumers.iter().map(|consumer| row(consumer, now)).collect();
        Table::new(&["NAME", "STATE", "MEMBERS", "WAITING", "DEAD", "LAST MESSAGE", "LAST HEARD OF", "REMEMBERS"])
            .write(&mut io::stdout().lock(), &rows)?;
    }
    Ok(ExitStatus::Success)
}

fn row(consumer: &ConsumerSummary, now: Timestamp) -> Vec<String> {
    vec![
        consumer.name.clone(),
        state(consumer).to_owned(),
        consumer.members.to_string(),
        counted(consumer.waiting),
        counted(consumer.dead),
        ago(consumer.last_message_at, now),
        ago(consumer.heartbeat_at, now),
        consumer.done_retention.map_or_else(|| "-".to_owned(), time::short),
    ]
}

/// What it does, in a word.
pub(super) const fn state(consumer: &ConsumerSummary) -> &'static str {
    match (consumer.paused, consumer.members) {
        (true, _) => "paused",
        (false, 0) => "nobody",
        (false, _) => "works",
    }
}

/// Counts end somewhere, and then there may be more.
pub(super) fn counted(count: u64) -> String {
    if count < COUNTED_MAX { count.to_string() } else { format!("{count}+") }
}

/// How long ago, or that it never was.
pub(super) fn ago(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map_or_else(|| "never".to_owned(), |at| time::age(at, now))
}

fn object(consumer: &ConsumerSummary) -> Value {
    json!({
        "name": consumer.name,
        "paused": consumer.paused,
        "members": consumer.members,
        "beat_at": output::timestamp(consumer.heartbeat_at),
        "last_message_at": output::timestamp(consumer.last_message_at),
        "waiting": consumer.waiting,
        "dead": consumer.dead,
        "remembers_ms": consumer.done_retention.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
    })
}

/// That nobody heard of a consumer, with those that are known.
async fn unknown(consumers: &dyn ConsumerOperator, name: &str) -> Result<anyhow::Error> {
    let known = consumers.list_consumers().await?;
    let hint = if known.is_empty() {
        "there is none in this database".to_owned()
    } else {
        format!("there are {}", names(&known))
    };
    Ok(not_found(format!("consumer `{name}` is not known; hint: {hint}")))
}

/// The consumer that was named, or the only one there is.
async fn choose(consumers: &dyn ConsumerOperator, name: Option<&str>) -> Result<ConsumerSummary> {
    let mut known = consumers.list_consumers().await?;
    match name {
        Some(name) => match known.iter().position(|it| it.name == name) {
            Some(at) => Ok(known.swap_remove(at)),
            None => Err(unknown(consumers, name).await?),
        },
        None => match known.len() {
            0 => Err(not_found("there is no consumer in this database")),
            1 => Ok(known.remove(0)),
            _ => Err(usage(format!(
                "there is more than one consumer; hint: choose with `--consumer`: {}",
                names(&known)
            ))),
        },
    }
}

fn names(known: &[ConsumerSummary]) -> String {
    format!("`{}`", known.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join("`, `"))
}
