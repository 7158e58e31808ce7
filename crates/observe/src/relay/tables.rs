//! The source of each metric.

use std::time::Duration;

use relevo_core::histogram::HistogramSnapshot;
use relevo_core::outbox::sample::ConsumerSample;
use relevo_relay::RelayStatus;

use super::Observed;
use crate::metrics;

/// A counter of each relay.
pub(super) type Counter = (&'static str, &'static str, fn(&dyn Observed) -> u64);
/// The failures of one class of each relay.
pub(super) type Class = (&'static str, fn(&dyn Observed) -> u64);
/// A histogram of each relay. Omitted while there is no relay.
pub(super) type Histogram = (&'static str, &'static str, fn(&dyn Observed) -> Option<HistogramSnapshot>);
/// A gauge of each relay. Omitted while it is unknown.
pub(super) type Gauge = (&'static str, &'static str, fn(&dyn Observed) -> Option<i64>);
/// A gauge of each relay, in seconds. Omitted while it is unknown.
pub(super) type Seconds = (&'static str, &'static str, fn(&dyn Observed) -> Option<Duration>);
/// A gauge of each consumer. Omitted while it is unknown.
pub(super) type OfConsumer = (&'static str, &'static str, fn(&ConsumerSample) -> Option<u64>);
/// A gauge of each consumer, in seconds. Omitted while it is unknown.
pub(super) type SecondsOfConsumer = (&'static str, &'static str, fn(&ConsumerSample) -> Option<Duration>);

macro_rules! counted {
    ($name:ident) => {
        |seen| seen.relay().map_or(0, RelayStatus::$name)
    };
}

pub(super) const COUNTERS: &[Counter] = &[
    (metrics::PUBLISH_ATTEMPTS, "Messages handed to the broker, repeats included", counted!(attempts)),
    (metrics::PUBLISHED, "Messages that the broker confirmed", counted!(published)),
    (metrics::RETRY, "Times that a message was refused and put off, to be tried again", counted!(retried)),
    (metrics::PARKED, "Messages that were parked, at the head of a key or behind one", counted!(parked)),
    (metrics::FAILED_PERMANENT, "Messages that went to the dead letters", counted!(dead_lettered)),
    (metrics::SKIPPED, "Messages that no route wanted", counted!(unrouted)),
    (metrics::UNKNOWN, "Answers of the broker that were lost", counted!(unknown_outcomes)),
    (metrics::OUTAGES, "Times that the destination was found away", counted!(broker_outages)),
    (metrics::DATABASE_AWAY, "Times that the database was found away", |seen| seen.database_outages()),
    (metrics::LEASES_LOST, "Leases that were lost before they were given back", counted!(leases_lost)),
    (metrics::LEASE_CHANGES, "Leases that were taken, given back or lost", counted!(lease_changes)),
    (metrics::SETTLEMENTS, "Settlements that were recorded", counted!(settlements)),
];

pub(super) const CLASSES: &[Class] = &[
    ("outage", counted!(outage_outcomes)),
    ("unknown", counted!(unknown_outcomes)),
    ("throttled", counted!(throttled_outcomes)),
    ("transient", counted!(transient_outcomes)),
    ("poison", counted!(poison_outcomes)),
    ("blocked", counted!(blocked_outcomes)),
];

pub(super) const HISTOGRAMS: &[Histogram] = &[
    (
        metrics::PUBLISH_LATENCY,
        "From emit to the broker's confirmation; between the clocks of database and relay, never below zero",
        |seen| seen.relay().map(|status| status.publish_latency().snapshot()),
    ),
    (
        metrics::DISPATCH_LATENCY,
        "From emit to the first hand-over to the broker; between the clocks of database and relay, never below zero",
        |seen| seen.relay().map(|status| status.dispatch_latency().snapshot()),
    ),
];

macro_rules! current {
    ($name:ident) => {
        |seen| seen.relay().map(|status| whole(status.$name()))
    };
}

macro_rules! sampled {
    (|$vitals:ident| $value:expr) => {
        |seen| seen.last_vitals().map(|$vitals| $value)
    };
}

pub(super) const GAUGES: &[Gauge] = &[
    (metrics::LEASES, "Shards that this relay holds", current!(leases)),
    (metrics::IN_FLIGHT, "Messages that wait for their confirmation", current!(in_flight)),
    (metrics::READY, "Whether the relay does its work", |seen| Some(i64::from(seen.is_ready()))),
    (
        metrics::BACKLOG,
        "Messages of the log that are not settled; exact up to 10 000, an estimate above",
        sampled!(|vitals| vitals.backlog.pending),
    ),
    (
        metrics::PENDING,
        "Messages that have not arrived and are not dead: the backlog and what is parked",
        sampled!(|vitals| vitals.backlog.pending + vitals.backlog.parked),
    ),
    (metrics::PARKED_NOW, "Messages that are parked; counted up to 10 000", sampled!(|vitals| vitals.backlog.parked)),
    (metrics::PARKED_KEYS, "Keys that wait; counted up to 10 000", sampled!(|vitals| vitals.parked_keys)),
    (metrics::HELD_ADDRESSES, "Addresses that nothing can pass to", sampled!(|vitals| vitals.held_addresses)),
    (
        metrics::DEAD,
        "Dead letters that nobody has marked; counted up to 10 000",
        sampled!(|vitals| vitals.backlog.dead),
    ),
    (
        metrics::XMIN_AGE,
        "Transactions that began after the oldest that a snapshot, a prepared transaction or a slot still holds",
        |seen| seen.last_surroundings()?.horizon.map(|horizon| whole(horizon.transactions)),
    ),
];

pub(super) const SECONDS: &[Seconds] = &[
    (
        metrics::OLDEST_PENDING_AGE,
        "Age since emit of the oldest message that is not settled, or is parked; 0 if there is none",
        sampled!(|vitals| vitals.oldest_pending),
    ),
    (
        metrics::SAMPLE_AGE,
        "Since everything that is sampled of the outbox last was, or could first have been",
        |seen| seen.sampled_ago(),
    ),
    (
        metrics::XMIN_HELD,
        "For how long a session or a prepared transaction has held the oldest snapshot of the database",
        |seen| Some(seen.last_surroundings()?.horizon?.held_for),
    ),
];

/// Gauges with a label for the kind of broker.
pub(super) const BROKERS: &[Gauge] = &[
    (metrics::BROKER_UP, "Whether the broker was there when last tried", |seen| seen.is_broker_up().map(i64::from)),
    (metrics::BROKER_AWAY, "For how long the broker has been away; 0 while it is there", |seen| {
        seen.broker_away_for().map(|time| whole(time.as_secs()))
    }),
    (metrics::BROKER_NODES_RUNNING, "Nodes of the broker's cluster that run", |seen| {
        Some(whole(seen.broker_vitals()?.nodes?.running))
    }),
    (metrics::BROKER_NODES, "Nodes that the broker's cluster knows", |seen| {
        Some(whole(seen.broker_vitals()?.nodes?.total))
    }),
];

pub(super) const OF_CONSUMERS: &[OfConsumer] = &[
    (metrics::INBOX_MEMBERS, "Members of the consumer that are alive", |it| Some(it.members)),
    (metrics::INBOX_RETRY_WAITING, "Messages in the consumer's retry table; counted up to 10 000", |it| {
        Some(it.waiting)
    }),
];

pub(super) const SECONDS_OF_CONSUMERS: &[SecondsOfConsumer] = &[
    (metrics::INBOX_HEARTBEAT_AGE, "Since the newest sign of life of any member of the consumer", |it| {
        it.heartbeat_age
    }),
    (metrics::INBOX_LAST_MESSAGE_AGE, "Since any member of the consumer last took a message", |it| it.last_message_age),
];

pub(super) fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
