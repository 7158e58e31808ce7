//! A moment as people read it.

use std::io::{self, Write};
use std::time::Duration;

use relevo_core::inbox::admin::{ConsumerDetails, ConsumerSummary, LaneInfo};
use relevo_core::outbox::inspect::ShardInfo;

use super::moment::{At, Moment, Pace};
use crate::commands::consumers::{ago, counted, state};
use crate::output::table::{Table, plain};
use crate::output::time;

/// What is not known, or not there.
const NOTHING: &str = "-";

/// Everything, with rates if there is a moment before.
pub(super) fn told(out: &mut impl Write, shown: &str, now: &Moment, before: Option<&Moment>) -> io::Result<()> {
    writeln!(out, "{}  {}", plain(shown), time::utc(now.clock))?;
    section(out, "destinations", &DESTINATION, now.destinations.iter().map(|at| destination(now, before, at)))?;
    section(out, "consumers", &CONSUMER, now.consumers.iter().map(|shown| consumer(now, before, shown)))?;
    section(out, "lanes that do not rest", &LANE, now.consumers.iter().flat_map(|shown| lanes(now, shown)))?;
    section(out, "keys that wait", &KEY, now.destinations.iter().flat_map(|at| keys(now, at)))?;
    section(out, "queues that wait", &QUEUE, now.consumers.iter().flat_map(|shown| queues(now, shown)))?;
    section(out, "dead letters", &DEAD, now.destinations.iter().flat_map(|at| dead(now, at)))?;
    for answer in &now.ports {
        if let Err(why) = &answer.told {
            writeln!(out, "\nthe admin port {} was not read: {why}", answer.port)?;
        }
    }
    let unclear: Vec<String> = now.unclear().into_iter().map(|outbox| format!("`{}`", plain(outbox))).collect();
    if !unclear.is_empty() {
        writeln!(
            out,
            "\nthe admin ports tell of {}, and which of them this is cannot be known, so there are no rates; hint: name it with \
             `--outbox NAME`",
            unclear.join(" and ")
        )?;
    }
    if now.ports.is_empty() {
        writeln!(
            out,
            "\nno admin port was read, so there are no rates; hint: name one with `--admin http://host:9464`"
        )?;
    }
    Ok(())
}

/// A heading, and a table; nothing at all without a row.
fn section<const N: usize>(
    out: &mut impl Write,
    name: &str,
    head: &[&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> io::Result<()> {
    let rows: Vec<Vec<String>> = rows.map(Vec::from).collect();
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{name}")?;
    Table::new(head).write(out, &rows)
}

const DESTINATION: [&str; 13] =
    ["NAME", "BROKER", "RELAYS", "BACKLOG", "OLDEST", "PARKED", "KEYS", "HELD", "DEAD", "IN/S", "OUT/S", "P50", "P99"];

fn destination(now: &Moment, before: Option<&Moment>, at: &At) -> [String; 13] {
    let (vitals, backlog) = (&at.vitals, &at.vitals.backlog);
    let name = &at.destination.name;
    let pace = before.map(|before| now.published(before, name)).unwrap_or_default();
    let broker = match (at.destination.enabled, now.broker_up(name)) {
        (false, _) => "switched off",
        (true, Some(true)) => "up",
        (true, Some(false)) => "away",
        (true, None) => NOTHING,
    };
    [
        name.clone(),
        broker.to_owned(),
        relays(&at.shards),
        format!("{}{}", if backlog.exact { "" } else { "about " }, backlog.pending),
        lasting(vitals.oldest_pending),
        backlog.parked.to_string(),
        vitals.parked_keys.to_string(),
        vitals.held_addresses.to_string(),
        backlog.dead.to_string(),
        rate(before.and_then(|before| now.emitted(before, at))),
        rate(pace.rate),
        seconds(pace.p50),
        seconds(pace.p99),
    ]
}

/// How many relays hold how many of the shards.
fn relays(shards: &[ShardInfo]) -> String {
    let held =
        shards.iter().filter(|shard| !shard.lease_remaining.is_zero()).filter_map(|shard| shard.owner.as_deref());
    let held: Vec<&str> = held.collect();
    let mut owners = held.clone();
    owners.sort_unstable();
    owners.dedup();
    format!("{}, {} of {} shards", owners.len(), held.len(), shards.len())
}

const CONSUMER: [&str; 10] =
    ["NAME", "STATE", "MEMBERS", "WAITING", "DEAD", "LAST MESSAGE", "LAST HEARD OF", "HANDLED/S", "P50", "P99"];

fn consumer(now: &Moment, before: Option<&Moment>, shown: &ConsumerDetails) -> [String; 10] {
    let consumer = &shown.summary;
    let Pace { rate: handled, p50, p99 } = before.map(|before| now.handled(before, &consumer.name)).unwrap_or_default();
    [
        consumer.name.clone(),
        state(consumer).to_owned(),
        consumer.members.to_string(),
        counted(consumer.waiting),
        counted(consumer.dead),
        ago(consumer.last_message_at, now.clock),
        ago(consumer.heartbeat_at, now.clock),
        rate(handled),
        seconds(p50),
        seconds(p99),
    ]
}

const LANE: [&str; 5] = ["CONSUMER", "LANE", "OWNER", "LAG", "STATE"];

/// Lanes in which something waits, or that somebody should know of; what is worst comes first.
fn lanes(now: &Moment, shown: &ConsumerDetails) -> Vec<[String; 5]> {
    let mut rows: Vec<(Unrest, [String; 5])> =
        shown.lanes.iter().filter_map(|lane| lane_row(now, &shown.summary, lane)).collect();
    rows.sort_by_key(|(unrest, _)| *unrest);
    rows.into_iter().take(now.rows).map(|(_, row)| row).collect()
}

/// Why a lane does not rest, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unrest {
    Open,
    Nobodys,
    Paused,
    Waiting,
}

fn lane_row(now: &Moment, consumer: &ConsumerSummary, lane: &LaneInfo) -> Option<(Unrest, [String; 5])> {
    let lag = now.lag(&consumer.name, &lane.name);
    let waits = lag.is_some_and(|lag| lag > 0.0);
    let (unrest, state) = match (&lane.breaker, lane.paused, &lane.owner) {
        (Some(why), _, _) => (Unrest::Open, format!("breaker open: {why}")),
        (None, true, _) => (Unrest::Paused, "paused".to_owned()),
        // A member gives a lane back in which nothing has come for a while, and takes it again when something does.
        (None, false, None) if waits || consumer.members == 0 => (Unrest::Nobodys, "nobody has it".to_owned()),
        (None, false, Some(_)) if waits => (Unrest::Waiting, "works".to_owned()),
        (None, false, _) => return None,
    };
    let owner = lane.owner.clone().unwrap_or_else(|| NOTHING.to_owned());
    let lag = lag.map_or_else(|| NOTHING.to_owned(), |lag| format!("{lag:.0}"));
    Some((unrest, [consumer.name.clone(), lane.name.clone(), owner, lag, state]))
}

const KEY: [&str; 6] = ["DESTINATION", "KEY", "STATUS", "ATTEMPTS", "NEXT ATTEMPT", "LAST ERROR"];

fn keys<'a>(now: &'a Moment, at: &'a At) -> impl Iterator<Item = [String; 6]> + 'a {
    at.heads.iter().map(|head| {
        [
            at.destination.name.clone(),
            head.key.clone(),
            head.status.as_str().to_owned(),
            head.attempts.to_string(),
            head.next_attempt_at.map_or_else(|| NOTHING.to_owned(), |at| time::age(at, now.clock)),
            head.last_error.clone().unwrap_or_default(),
        ]
    })
}

const QUEUE: [&str; 6] = ["CONSUMER", "KEY", "LENGTH", "ATTEMPTS", "NEXT ATTEMPT", "LAST ERROR"];

fn queues<'a>(now: &'a Moment, shown: &'a ConsumerDetails) -> impl Iterator<Item = [String; 6]> + 'a {
    shown.queues.iter().map(|queue| {
        [
            shown.summary.name.clone(),
            queue.queue.to_string(),
            queue.length.to_string(),
            queue.attempts.to_string(),
            queue.next_attempt_at.map_or_else(|| "when a person says".to_owned(), |at| time::age(at, now.clock)),
            queue.error.clone(),
        ]
    })
}

const DEAD: [&str; 5] = ["DESTINATION", "KEY", "ID", "DEAD", "ERROR"];

fn dead<'a>(now: &'a Moment, at: &'a At) -> impl Iterator<Item = [String; 5]> + 'a {
    at.dead.iter().map(|letter| {
        [
            at.destination.name.clone(),
            letter.key.clone(),
            letter.id.to_string(),
            time::age(letter.dead_at, now.clock),
            letter.error.clone(),
        ]
    })
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| NOTHING.to_owned(), |rate| format!("{rate:.0}"))
}

fn seconds(seconds: Option<f64>) -> String {
    match seconds {
        None => NOTHING.to_owned(),
        Some(seconds) if seconds < 1.0 => format!("{:.0} ms", seconds * 1000.0),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}

fn lasting(age: Duration) -> String {
    if age.is_zero() { NOTHING.to_owned() } else { time::short(age) }
}
