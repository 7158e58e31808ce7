//! `relevo replay list`, `show` and `stop`

use std::io;

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::inbox::replays::{ConsumerReplays, Replay, ReplayState};
use serde_json::{Value, json};

use super::selection::Selection;
use crate::args::OutboxArgs;
use crate::connect;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found};
use crate::output::table::{self, Table};
use crate::output::time;
use crate::output::{self, OutputArgs, count};

/// The replays of which consumer.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// The consumer [default: all of them].
    consumer: Option<String>,
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Which replay.
#[derive(Debug, clap::Args)]
pub(crate) struct ReplayRef {
    /// The consumer.
    consumer: String,
    /// The number of the replay.
    number: u32,
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn list(args: &List) -> Result<ExitStatus> {
    let consumers = args.target.locate()?.consumers().await?;
    let replays = connect::replays(&*consumers)?;
    let names = match &args.consumer {
        Some(name) => vec![name.clone()],
        None => consumers.list_consumers().await?.into_iter().map(|consumer| consumer.name).collect(),
    };
    let mut found = Vec::new();
    for name in &names {
        found.extend(replays.list_replays(name).await?);
    }
    if args.output.is_json() {
        found.iter().try_for_each(|replay| output::line(&object(replay)))?;
    } else if found.is_empty() {
        print_stderr("there is no replay; `relevo replay plan CONSUMER` shows what one would do");
    } else {
        let now = Timestamp::now();
        let rows: Vec<_> = found.iter().map(|replay| row(replay, now)).collect();
        Table::new(&[
            "CONSUMER", "NUMBER", "STATE", "READ", "TOTAL", "HANDLED", "DEAD", "WAITING", "STARTED", "BY", "REASON",
        ])
        .write(&mut io::stdout().lock(), &rows)?;
    }
    Ok(ExitStatus::Success)
}

pub(super) async fn show(args: &ReplayRef) -> Result<ExitStatus> {
    let consumers = args.target.locate()?.consumers().await?;
    let replays = connect::replays(&*consumers)?;
    let replay = find(replays, &args.consumer, args.number).await?;
    if args.output.is_json() {
        output::line(&object(&replay))?;
        return Ok(ExitStatus::Success);
    }
    let source = Selection::parse(&replay.plan.source)
        .map_or_else(|_| replay.plan.source.clone(), |selection| selection.described());
    let mut pairs = vec![
        ("replay", format!("{} of consumer `{}`", replay.number, replay.plan.consumer)),
        ("state", replay.state.as_str().to_owned()),
        ("source", source),
        ("messages", replay.plan.count.to_string()),
        ("read", replay.enqueued.to_string()),
        ("handled", replay.done.to_string()),
        ("dead", replay.dead.to_string()),
        ("waiting", format!("{}, of which {} are ready", replay.waiting(), replay.ready)),
        ("rate", format!("{} per second", replay.plan.rate)),
        ("stops", format!("after {} dead letters", replay.plan.dead_letters_max)),
        ("started", time::with_age(replay.started_at, Timestamp::now())),
        ("by", replay.plan.requested_by.clone()),
        ("reason", replay.plan.reason.clone()),
    ];
    pairs.extend(replay.cursor.clone().map(|cursor| ("position", format!("number {cursor}"))));
    table::pairs(&mut io::stdout().lock(), &pairs)?;
    Ok(ExitStatus::Success)
}

pub(super) async fn stop(args: &ReplayRef) -> Result<ExitStatus> {
    let consumers = args.target.locate()?.consumers().await?;
    let replays = connect::replays(&*consumers)?;
    let before = find(replays, &args.consumer, args.number).await?;
    let stopped = replays.stop_replay(&args.consumer, args.number).await?;
    let replay = find(replays, &args.consumer, args.number).await?;
    if args.output.is_json() {
        output::line(&object(&replay))?;
    }
    let (name, number) = (&args.consumer, args.number);
    if stopped {
        let removed = count(before.enqueued.saturating_sub(replay.enqueued), "message");
        print_stderr(&format!(
            "replay {number} of consumer `{name}` is stopped, {removed} removed from the retry queues\n\
             hint: `relevo replay resume {name} {number}` continues with them"
        ));
    } else {
        let how = if replay.state == ReplayState::Finished { "finished" } else { "already stopped" };
        print_stderr(&format!("replay {number} of consumer `{name}` is {how}"));
    }
    Ok(ExitStatus::Success)
}

/// The replay of this number.
pub(super) async fn find(replays: &dyn ConsumerReplays, consumer: &str, number: u32) -> Result<Replay> {
    let all = replays.list_replays(consumer).await?;
    let known: Vec<String> = all.iter().map(|replay| replay.number.to_string()).collect();
    let found = all.into_iter().find(|replay| replay.number == number);
    found.ok_or_else(|| {
        let hint = if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) };
        not_found(format!("consumer `{consumer}` has no replay {number}; hint: {hint}"))
    })
}

fn row(replay: &Replay, now: Timestamp) -> Vec<String> {
    vec![
        replay.plan.consumer.clone(),
        replay.number.to_string(),
        replay.state.as_str().to_owned(),
        replay.enqueued.to_string(),
        replay.plan.count.to_string(),
        replay.done.to_string(),
        replay.dead.to_string(),
        replay.waiting().to_string(),
        time::age(replay.started_at, now),
        replay.plan.requested_by.clone(),
        replay.plan.reason.clone(),
    ]
}

/// A replay for programs.
pub(super) fn object(replay: &Replay) -> Value {
    json!({
        "consumer": replay.plan.consumer,
        "number": replay.number,
        "state": replay.state.as_str(),
        "source": serde_json::from_str::<Value>(&replay.plan.source).unwrap_or_else(|_| replay.plan.source.clone().into()),
        "count": replay.plan.count,
        "read": replay.enqueued,
        "handled": replay.done,
        "dead": replay.dead,
        "waiting": replay.waiting(),
        "ready": replay.ready,
        "cursor": replay.cursor,
        "rate": replay.plan.rate,
        "dead_letters_max": replay.plan.dead_letters_max,
        "started_at": output::timestamp(Some(replay.started_at)),
        "by": replay.plan.requested_by,
        "reason": replay.plan.reason,
    })
}
