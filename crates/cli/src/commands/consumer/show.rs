//! `relevo consumer show`

use std::io::{self, Write};

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::inbox::admin::{ConsumerDetails, LaneInfo, MemberInfo, RetryQueueInfo};
use serde_json::{Value, json};

use super::{ago, counted, find_with_queues, object, state};
use crate::args::OutboxArgs;
use crate::exit::ExitStatus;
use crate::output::table::{self, Table};
use crate::output::time;
use crate::output::{self, OutputArgs};

/// Which consumer, and how much of it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The consumer.
    name: String,
    /// The maximum number of retry queues.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let consumers = args.target.locate()?.consumers().await?;
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut shown = find_with_queues(&*consumers, &args.name, limit).await?;
    shown.lanes.sort_by(|one, other| by_number(&one.name).cmp(&by_number(&other.name)));
    if args.output.is_json() {
        output::line(&json(&shown))?;
    } else {
        text(&mut io::stdout().lock(), &shown, limit)?;
    }
    Ok(ExitStatus::Success)
}

/// Lanes mostly end in a number: `orders.10` comes after `orders.9`.
fn by_number(lane: &str) -> (&str, Option<u64>) {
    let name = lane.trim_end_matches(|char: char| char.is_ascii_digit());
    (name, lane[name.len()..].parse().ok())
}

/// The consumer for programs.
pub(in crate::commands) fn json(shown: &ConsumerDetails) -> Value {
    let mut value = object(&shown.summary);
    value["members"] = shown.members.iter().map(member_object).collect();
    value["lanes"] = shown.lanes.iter().map(lane_object).collect();
    value["retry_queues"] = shown.queues.iter().map(queue_object).collect();
    value
}

fn member_object(member: &MemberInfo) -> Value {
    json!({
        "name": member.name,
        "alive": member.alive,
        "heartbeat_at": output::timestamp(Some(member.heartbeat_at)),
        "last_message_at": output::timestamp(member.last_message_at),
    })
}

fn lane_object(lane: &LaneInfo) -> Value {
    json!({
        "name": lane.name,
        "owner": lane.owner,
        "epoch": lane.epoch,
        "low_watermark": lane.settled_offset,
        "paused": lane.paused,
        "breaker": lane.breaker,
        "breaker_override": lane.breaker_override.map(forced),
    })
}

fn queue_object(queue: &RetryQueueInfo) -> Value {
    json!({
        "queue": &*queue.queue,
        "id": queue.head.id.to_string(),
        "replay": queue.head.replay,
        "length": queue.length,
        "attempts": queue.attempts,
        "next_attempt_at": output::timestamp(queue.next_attempt_at),
        "error": queue.error,
    })
}

const fn forced(open: bool) -> &'static str {
    if open { "open" } else { "closed" }
}

fn text(out: &mut impl Write, shown: &ConsumerDetails, limit: usize) -> Result<()> {
    let (consumer, now) = (&shown.summary, Timestamp::now());
    let retention = match consumer.done_retention {
        Some(time) => format!("handled messages are remembered for {}", time::short(time)),
        None => "nothing was pruned yet".to_owned(),
    };
    table::pairs(
        out,
        &[
            ("name", consumer.name.clone()),
            ("state", state(consumer).to_owned()),
            ("last message", ago(consumer.last_message_at, now)),
            ("waiting", counted(consumer.waiting)),
            ("dead letters", counted(consumer.dead)),
            ("retention", retention),
        ],
    )?;
    section(out, "members", &["NAME", "STATE", "LAST HEARTBEAT", "LAST MESSAGE"], &shown.members, |member| {
        let alive = if member.alive { "alive" } else { "dead" };
        vec![
            member.name.clone(),
            alive.to_owned(),
            ago(Some(member.heartbeat_at), now),
            ago(member.last_message_at, now),
        ]
    })?;
    section(out, "lanes", &["NAME", "OWNER", "EPOCH", "LOW WATERMARK", "STATE", "BREAKER"], &shown.lanes, lane)?;
    section(
        out,
        "retry queues",
        &["QUEUE", "LENGTH", "ATTEMPTS", "NEXT ATTEMPT", "FIRST", "ERROR"],
        &shown.queues,
        |it| queue(it, now),
    )?;
    if shown.queues.len() >= limit {
        writeln!(out, "there may be more, see `--limit`")?;
    }
    Ok(())
}

/// A table below its title, if it has anything.
fn section<T>(
    out: &mut impl Write,
    title: &str,
    head: &[&str],
    items: &[T],
    row: impl Fn(&T) -> Vec<String>,
) -> io::Result<()> {
    if items.is_empty() {
        return writeln!(out, "\n{title}: none");
    }
    writeln!(out, "\n{title}:")?;
    Table::new(head).write(out, &items.iter().map(row).collect::<Vec<_>>())
}

fn lane(lane: &LaneInfo) -> Vec<String> {
    let none = || "-".to_owned();
    let breaker = match (lane.breaker_override, &lane.breaker) {
        (Some(open), _) => format!("forced {}", forced(open)),
        (None, Some(why)) => format!("open: {why}"),
        (None, None) => "closed".to_owned(),
    };
    let state = match (lane.paused, &lane.owner) {
        (true, _) => "paused",
        (false, Some(_)) => "running",
        (false, None) => "unassigned",
    };
    vec![
        lane.name.clone(),
        lane.owner.clone().unwrap_or_else(none),
        lane.epoch.to_string(),
        lane.settled_offset.map_or_else(none, |mark| mark.to_string()),
        state.to_owned(),
        breaker,
    ]
}

fn queue(queue: &RetryQueueInfo, now: Timestamp) -> Vec<String> {
    let next = queue.next_attempt_at.map_or_else(|| "needs an operator".to_owned(), |at| time::age(at, now));
    let head = match queue.head.replay {
        0 => queue.head.id.to_string(),
        replay => format!("{} (replay {replay})", queue.head.id),
    };
    vec![queue.queue.to_string(), counted(queue.length), queue.attempts.to_string(), next, head, queue.error.clone()]
}

#[cfg(test)]
mod tests {
    use super::by_number;

    #[test]
    fn lanes_are_in_the_order_of_their_numbers() {
        let mut lanes = ["orders.10", "orders.9", "orders", "0", "10", "9", "a.99999999999999999999"];
        lanes.sort_by_key(|lane| by_number(lane));
        assert_eq!(lanes, ["0", "9", "10", "a.99999999999999999999", "orders", "orders.9", "orders.10"]);
    }
}
