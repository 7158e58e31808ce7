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

macro_rules! counter {
    ($name:ident) => {
        |relay| relay.relay().map_or(0, RelayStatus::$name)
    };
}

pub(super) const COUNTERS: &[Counter] = &[
    (metrics::PUBLISH_ATTEMPTS, "Messages passed to the broker, including repeats", counter!(attempts)),
    (metrics::PUBLISHED, "Messages that the broker confirmed", counter!(published)),
    (metrics::RETRY, "Rejected messages that were scheduled for a retry", counter!(retried)),
    (metrics::PARKED, "Messages parked, at the head of a key or behind one", counter!(parked)),
    (metrics::FAILED_PERMANENT, "Dead-lettered messages", counter!(dead_lettered)),
    (metrics::UNROUTED, "Messages that no route matched", counter!(unrouted)),
    (metrics::BROKER_OUTAGES, "Outages of the broker", counter!(broker_outages)),
    (metrics::DATABASE_OUTAGES, "Outages of the database", |relay| relay.database_outages()),
    (metrics::LEASES_LOST, "Leases lost before they were released", counter!(leases_lost)),
    (metrics::LEASE_CHANGES, "Leases acquired, released or lost", counter!(lease_changes)),
    (metrics::SETTLEMENTS, "Recorded settlements", counter!(settlements)),
];

pub(super) const CLASSES: &[Class] = &[
    ("outage", counter!(outage_outcomes)),
    ("unknown", counter!(unknown_outcomes)),
    ("throttled", counter!(throttled_outcomes)),
    ("transient", counter!(transient_outcomes)),
    ("poison", counter!(poison_outcomes)),
    ("blocked", counter!(blocked_outcomes)),
];

pub(super) const HISTOGRAMS: &[Histogram] = &[
    (
        metrics::PUBLISH_LATENCY,
        "From emit to the broker's confirmation, between the clocks of database and relay; never negative",
        |relay| relay.relay().map(|status| status.publish_latency().snapshot()),
    ),
    (
        metrics::DISPATCH_LATENCY,
        "From emit to the first attempt to publish, between the clocks of database and relay; never negative",
        |relay| relay.relay().map(|status| status.dispatch_latency().snapshot()),
    ),
];

macro_rules! current {
    ($name:ident) => {
        |relay| relay.relay().map(|status| whole(status.$name()))
    };
}

macro_rules! sampled {
    (|$vitals:ident| $value:expr) => {
        |relay| relay.last_vitals().map(|$vitals| $value)
    };
}

pub(super) const GAUGES: &[Gauge] = &[
    (metrics::LEASES, "Shards that this relay leases", current!(leases)),
    (metrics::IN_FLIGHT_MESSAGES, "Messages that wait for a confirmation", current!(in_flight)),
    (metrics::READY, "Whether the relay is ready", |relay| Some(i64::from(relay.is_ready()))),
    (
        metrics::BACKLOG,
        "Unsettled messages of the log; exact up to 10 000, an estimate above",
        sampled!(|vitals| vitals.backlog.pending),
    ),
    (
        metrics::PENDING,
        "Unsettled and parked messages, without dead letters",
        sampled!(|vitals| vitals.backlog.pending + vitals.backlog.parked),
    ),
    (metrics::PARKED_MESSAGES, "Parked messages; counted up to 10 000", sampled!(|vitals| vitals.backlog.parked)),
    (metrics::PARKED_KEYS, "Parked keys; counted up to 10 000", sampled!(|vitals| vitals.parked_keys)),
    (metrics::HELD_ADDRESSES, "Addresses that reject every message", sampled!(|vitals| vitals.held_addresses)),
    (
        metrics::XMIN_AGE,
        "Age of the oldest transaction that a snapshot, a prepared transaction or a slot holds, in transactions",
        |relay| relay.last_surroundings()?.horizon.map(|horizon| whole(horizon.transactions)),
    ),
];

pub(super) const SECONDS: &[Seconds] = &[
    (
        metrics::OLDEST_PENDING_AGE,
        "Age since emit of the oldest unsettled or parked message; 0 without one",
        sampled!(|vitals| vitals.oldest_pending),
    ),
    (metrics::SAMPLE_AGE, "Seconds since the last complete sample of the outbox, or since the start", |relay| {
        relay.sampled_ago()
    }),
    (
        metrics::XMIN_HELD,
        "How long a session or a prepared transaction has held the oldest snapshot of the database",
        |relay| Some(relay.last_surroundings()?.horizon?.held_for),
    ),
];

/// Gauges with a label for the kind of broker.
pub(super) const BROKERS: &[Gauge] = &[
    (metrics::BROKER_UP, "Whether the broker was reachable at the last attempt", |relay| {
        relay.is_broker_up().map(i64::from)
    }),
    (metrics::BROKER_DOWN, "How long the broker has been unreachable; 0 while it is reachable", |relay| {
        relay.broker_away_for().map(|time| whole(time.as_secs()))
    }),
    (metrics::BROKER_NODES_RUNNING, "Running nodes of the broker's cluster", |relay| {
        Some(whole(relay.broker_vitals()?.nodes?.running))
    }),
    (metrics::BROKER_NODES, "Known nodes of the broker's cluster", |relay| {
        Some(whole(relay.broker_vitals()?.nodes?.total))
    }),
];

pub(super) const OF_CONSUMERS: &[OfConsumer] = &[
    (metrics::INBOX_MEMBERS, "Live members of the consumer", |sample| Some(sample.members)),
    (
        metrics::INBOX_RETRY_WAITING_MESSAGES,
        "Messages in the consumer's retry queues; counted up to 10 000",
        |sample| Some(sample.waiting),
    ),
];

pub(super) const SECONDS_OF_CONSUMERS: &[SecondsOfConsumer] = &[
    (metrics::INBOX_HEARTBEAT_AGE, "Seconds since the last heartbeat of any member", |sample| sample.heartbeat_age),
    (metrics::INBOX_LAST_MESSAGE_AGE, "Seconds since any member last received a message", |sample| {
        sample.last_message_age
    }),
];

pub(super) fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
