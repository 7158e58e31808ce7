//! A snapshot as tables.

use std::io::{self, Write};

use relevo_core::inbox::admin::{ConsumerDetails, ConsumerSummary, LaneInfo};
use relevo_core::outbox::inspect::ShardInfo;

use super::snapshot::{DestinationSnapshot, Rates, Snapshot};
use crate::commands::consumer::{ago, counted, state};
use crate::output::table::{Table, plain};
use crate::output::time;

/// A value that is unknown, or does not exist.
const NONE: &str = "-";

/// Writes all tables.
pub(super) fn write(out: &mut impl Write, location: &str, now: &Snapshot) -> io::Result<()> {
    writeln!(out, "{}  {}", plain(location), time::utc(now.taken_at))?;
    section(out, "destinations", &DESTINATION, now.destinations.iter().map(|known| destination(now, known)))?;
    section(out, "consumers", &CONSUMER, now.consumers.iter().map(|known| consumer(now, known)))?;
    let lanes = now.consumers.iter().flat_map(|known| lanes(now, known));
    section(out, "lanes with a backlog or a problem", &LANE, lanes)?;
    section(out, "parked keys", &KEY, now.destinations.iter().flat_map(|known| keys(now, known)))?;
    section(out, "retry queues", &QUEUE, now.consumers.iter().flat_map(|known| queues(now, known)))?;
    section(out, "dead letters", &DEAD, now.destinations.iter().flat_map(|known| dead_letters(now, known)))?;
    for reply in &now.replies {
        if let Err(error) = &reply.status {
            writeln!(out, "\nno rates from the admin port {}: {error}", plain(&reply.port))?;
        }
    }
    let outboxes: Vec<String> = now.ambiguous_outboxes().into_iter().map(|name| format!("`{}`", plain(name))).collect();
    if !outboxes.is_empty() {
        let outboxes = outboxes.join(", ");
        writeln!(
            out,
            "\nrates are hidden: the admin ports report several outboxes ({outboxes}); hint: select one with `--outbox NAME`"
        )?;
    }
    if now.replies.is_empty() {
        writeln!(out, "\nno rates: no admin port responded; hint: name one with `--admin http://host:9464`")?;
    }
    Ok(())
}

/// A heading and a table. Nothing without a row.
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

const DESTINATION: [&str; 12] =
    ["NAME", "BROKER", "RELAYS", "PENDING", "OLDEST", "PARKED", "KEYS", "HELD", "DEAD", "PUBLISHED/S", "P50", "P99"];

fn destination(now: &Snapshot, known: &DestinationSnapshot) -> [String; 12] {
    let (sample, backlog) = (&known.sample, &known.sample.backlog);
    let name = &known.destination.name;
    let Rates { per_second, p50, p99 } = now.published(name);
    let broker = match (known.destination.enabled, now.broker_up(name)) {
        (false, _) => "disabled",
        (true, Some(true)) => "up",
        (true, Some(false)) => "down",
        (true, None) => NONE,
    };
    [
        name.clone(),
        broker.to_owned(),
        relays(&known.shards),
        format!("{}{}", if backlog.exact { "" } else { "about " }, backlog.pending),
        if sample.oldest_pending.is_zero() { NONE.to_owned() } else { time::short(sample.oldest_pending) },
        backlog.parked.to_string(),
        sample.parked_keys.to_string(),
        sample.held_addresses.to_string(),
        backlog.dead.to_string(),
        rate(per_second),
        latency(p50),
        latency(p99),
    ]
}

/// The number of relays, and of the shards that they lease.
fn relays(shards: &[ShardInfo]) -> String {
    let with_lease = shards.iter().filter(|shard| !shard.lease_remaining.is_zero());
    let mut owners: Vec<&str> = with_lease.filter_map(|shard| shard.owner.as_deref()).collect();
    let leased = owners.len();
    owners.sort_unstable();
    owners.dedup();
    format!("{}, {leased} of {} shards", owners.len(), shards.len())
}

const CONSUMER: [&str; 10] =
    ["NAME", "STATE", "MEMBERS", "WAITING", "DEAD", "LAST MESSAGE", "LAST HEARTBEAT", "HANDLED/S", "P50", "P99"];

fn consumer(now: &Snapshot, known: &ConsumerDetails) -> [String; 10] {
    let consumer = &known.summary;
    let Rates { per_second, p50, p99 } = now.handled(&consumer.name);
    [
        consumer.name.clone(),
        state(consumer).to_owned(),
        consumer.members.to_string(),
        counted(consumer.waiting),
        counted(consumer.dead),
        ago(consumer.last_message_at, now.taken_at),
        ago(consumer.heartbeat_at, now.taken_at),
        rate(per_second),
        latency(p50),
        latency(p99),
    ]
}

const LANE: [&str; 5] = ["CONSUMER", "LANE", "OWNER", "LAG", "STATE"];

/// Lanes with a backlog or a problem, the worst first.
fn lanes(now: &Snapshot, known: &ConsumerDetails) -> Vec<[String; 5]> {
    let mut rows: Vec<(LaneProblem, [String; 5])> =
        known.lanes.iter().filter_map(|lane| lane_row(now, &known.summary, lane)).collect();
    rows.sort_by_key(|(problem, _)| *problem);
    rows.into_iter().take(now.limit).map(|(_, row)| row).collect()
}

/// Why a lane is listed, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LaneProblem {
    BreakerOpen,
    Unassigned,
    Paused,
    Backlog,
}

fn lane_row(now: &Snapshot, consumer: &ConsumerSummary, lane: &LaneInfo) -> Option<(LaneProblem, [String; 5])> {
    let lag = now.lag(&consumer.name, &lane.name);
    let has_backlog = lag.is_some_and(|lag| lag > 0);
    let (problem, state) = match (&lane.breaker, lane.paused, &lane.owner) {
        (Some(reason), _, _) => (LaneProblem::BreakerOpen, format!("breaker open: {reason}")),
        (None, true, _) => (LaneProblem::Paused, "paused".to_owned()),
        // A member releases an idle lane, and acquires it again when a message arrives.
        (None, false, None) if has_backlog || consumer.members == 0 => {
            (LaneProblem::Unassigned, "unassigned".to_owned())
        }
        (None, false, Some(_)) if has_backlog => (LaneProblem::Backlog, "running".to_owned()),
        (None, false, _) => return None,
    };
    let owner = lane.owner.clone().unwrap_or_else(|| NONE.to_owned());
    let lag = lag.map_or_else(|| NONE.to_owned(), |lag| lag.to_string());
    Some((problem, [consumer.name.clone(), lane.name.clone(), owner, lag, state]))
}

const KEY: [&str; 6] = ["DESTINATION", "KEY", "STATUS", "ATTEMPTS", "NEXT ATTEMPT", "LAST ERROR"];

fn keys<'a>(now: &'a Snapshot, known: &'a DestinationSnapshot) -> impl Iterator<Item = [String; 6]> + 'a {
    known.heads.iter().map(|head| {
        [
            known.destination.name.clone(),
            head.key.clone(),
            head.status.as_str().to_owned(),
            head.attempts.to_string(),
            head.next_attempt_at.map_or_else(|| NONE.to_owned(), |at| time::age(at, now.taken_at)),
            head.last_error.clone().unwrap_or_default(),
        ]
    })
}

const QUEUE: [&str; 6] = ["CONSUMER", "KEY", "LENGTH", "ATTEMPTS", "NEXT ATTEMPT", "LAST ERROR"];

fn queues<'a>(now: &'a Snapshot, known: &'a ConsumerDetails) -> impl Iterator<Item = [String; 6]> + 'a {
    known.queues.iter().map(|queue| {
        let next = queue.next_attempt_at.map(|at| time::age(at, now.taken_at));
        [
            known.summary.name.clone(),
            queue.queue.to_string(),
            queue.length.to_string(),
            queue.attempts.to_string(),
            next.unwrap_or_else(|| "needs an operator".to_owned()),
            queue.error.clone(),
        ]
    })
}

const DEAD: [&str; 5] = ["DESTINATION", "KEY", "ID", "DEAD", "ERROR"];

fn dead_letters<'a>(now: &'a Snapshot, known: &'a DestinationSnapshot) -> impl Iterator<Item = [String; 5]> + 'a {
    known.dead_letters.iter().map(|letter| {
        [
            known.destination.name.clone(),
            letter.key.clone(),
            letter.id.to_string(),
            time::age(letter.dead_at, now.taken_at),
            letter.error.clone(),
        ]
    })
}

fn rate(per_second: Option<f64>) -> String {
    match per_second {
        None => NONE.to_owned(),
        Some(rate) if rate > 0.0 && rate < 10.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

fn latency(seconds: Option<f64>) -> String {
    match seconds {
        None => NONE.to_owned(),
        Some(seconds) if seconds < 1.0 => format!("{:.0} ms", seconds * 1000.0),
        Some(seconds) => format!("{seconds:.1} s"),
    }
}
