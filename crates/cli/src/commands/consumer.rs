//! `relevo consumer`

mod control;
mod remove;
pub(super) mod show;

use std::io;

use anyhow::Result;
use clap::Subcommand;
use jiff::Timestamp;
use relevo_core::inbox::ConsumerOperator;
use relevo_core::inbox::admin::{ConsumerDetails, ConsumerSummary};
use serde_json::{Value, json};

use crate::args::OutboxArgs;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found_among};
use crate::output::table::Table;
use crate::output::{self, OutputArgs, time};

/// Stores count messages and dead letters up to this number.
const COUNTED_MAX: u64 = 10_000;

/// What to do with consumers.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists the consumers whose inbox is in this database.
    #[command(after_help = "Example: relevo consumer list -o json")]
    List(ListArgs),
    /// Shows one consumer: members, lanes and retry queues.
    #[command(after_help = "Example: relevo consumer show billing")]
    Show(show::Args),
    /// Pauses a consumer, or one lane. Running handlers finish, none is started.
    #[command(after_help = "Example: relevo consumer pause billing --lane orders.0")]
    Pause(control::Args),
    /// Resumes a consumer, or one lane.
    #[command(after_help = "Example: relevo consumer resume billing")]
    Resume(control::Args),
    /// Forces the circuit breaker of a lane open or closed, or makes it automatic again.
    #[command(after_help = "Example: relevo consumer breaker billing --lane orders.0 open")]
    Breaker(control::BreakerArgs),
    /// Removes the members and lanes of a consumer. Inbox rows, retries and dead letters stay.
    #[command(after_help = "Example: relevo consumer remove billing")]
    Remove(remove::Args),
}

/// How consumers are listed.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(command: Command) -> Result<ExitStatus> {
    match command {
        Command::List(args) => list(&args).await,
        Command::Show(args) => show::run(&args).await,
        Command::Pause(args) => control::pause(&args).await,
        Command::Resume(args) => control::resume(&args).await,
        Command::Breaker(args) => control::breaker(&args).await,
        Command::Remove(args) => remove::run(&args).await,
    }
}

async fn list(args: &ListArgs) -> Result<ExitStatus> {
    let consumers = args.target.locate()?.consumers().await?.list_consumers().await?;
    if args.output.is_json() {
        for consumer in &consumers {
            output::line(&object(consumer))?;
        }
    } else if consumers.is_empty() {
        print_stderr("no consumer has an inbox in this database; it appears when its first member starts");
    } else {
        let now = Timestamp::now();
        let rows: Vec<_> = consumers.iter().map(|consumer| row(consumer, now)).collect();
        Table::new(&["NAME", "STATE", "MEMBERS", "WAITING", "DEAD", "LAST MESSAGE", "LAST HEARTBEAT", "RETENTION"])
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

/// Its state in one word.
pub(super) const fn state(consumer: &ConsumerSummary) -> &'static str {
    match (consumer.paused, consumer.members) {
        (true, _) => "paused",
        (false, 0) => "no members",
        (false, _) => "running",
    }
}

/// A count that may have reached its limit.
pub(super) fn counted(count: u64) -> String {
    if count < COUNTED_MAX { count.to_string() } else { format!("{count}+") }
}

/// The age of a time, or `never`.
pub(super) fn ago(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map_or_else(|| "never".to_owned(), |at| time::age(at, now))
}

fn object(consumer: &ConsumerSummary) -> Value {
    json!({
        "name": consumer.name,
        "paused": consumer.paused,
        "member_count": consumer.members,
        "heartbeat_at": output::timestamp(consumer.heartbeat_at),
        "last_message_at": output::timestamp(consumer.last_message_at),
        "waiting": consumer.waiting,
        "dead": consumer.dead,
        "retention_ms": consumer.done_retention.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
    })
}

/// The consumer of this name, without its retry queues.
pub(super) async fn find(consumers: &dyn ConsumerOperator, name: &str) -> Result<ConsumerDetails> {
    find_with_queues(consumers, name, 1).await
}

/// The consumer of this name. An error that lists the known ones if there is none.
async fn find_with_queues(consumers: &dyn ConsumerOperator, name: &str, queues: usize) -> Result<ConsumerDetails> {
    match consumers.get_consumer(name, queues).await? {
        Some(found) => Ok(found),
        None => Err(unknown(consumers, name).await?),
    }
}

async fn unknown(consumers: &dyn ConsumerOperator, name: &str) -> Result<anyhow::Error> {
    let known: Vec<String> = consumers.list_consumers().await?.into_iter().map(|consumer| consumer.name).collect();
    Ok(not_found_among("consumer", name, &known, "this database has no consumer"))
}

/// Which process handles messages that were just made ready, or why none does.
pub(super) fn who_handles(consumer: &ConsumerSummary) -> String {
    let name = &consumer.name;
    match (consumer.paused, consumer.members) {
        (true, _) => {
            format!("consumer `{name}` is paused: the messages wait\nhint: `relevo consumer resume {name}`")
        }
        (false, 0) => format!("consumer `{name}` has no live members: the messages wait until one starts"),
        (false, _) => format!("a member of `{name}` handles them"),
    }
}
