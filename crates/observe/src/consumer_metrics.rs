//! The metrics and rates of the consumers in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use relevo_admin::ConsumerRates;
use relevo_core::Lane;
use relevo_core::histogram::HistogramSnapshot;
use relevo_inbox::{ConsumerStatus, RunState};
use tokio::time::Instant;

use crate::metrics;
use crate::rates::{RateWindow, Rates};
use crate::relay_metrics::whole;

/// Reads one number of a member.
type Number = fn(&ConsumerStatus) -> u64;

const COUNTERS: &[(&str, &str, Number)] = &[
    (metrics::INBOX_RECEIVED, "Messages that the broker delivered, including repeats", ConsumerStatus::received),
    (
        metrics::INBOX_HANDLER_FAILURES,
        "Handler attempts that failed and were counted",
        ConsumerStatus::handler_failures,
    ),
    (metrics::INBOX_HANDLER_PANICS, "Handler attempts that panicked", ConsumerStatus::handler_panics),
    (metrics::INBOX_HANDLER_TIMEOUTS, "Handler attempts that timed out", ConsumerStatus::handler_timeouts),
    (
        metrics::INBOX_DEAD_LETTER_COPIES_FAILED,
        "Copies of dead letters that could not be published",
        ConsumerStatus::dead_letter_copies_failed,
    ),
    (
        metrics::INBOX_OUT_OF_ORDER,
        "First deliveries that arrived after a later message of their key",
        ConsumerStatus::out_of_order,
    ),
    (
        metrics::INBOX_SEQUENCE_REPEATS,
        "Deliveries whose sequence number had arrived before",
        ConsumerStatus::sequence_repeats,
    ),
    (metrics::INBOX_DATABASE_OUTAGES, "Outages of the database", ConsumerStatus::database_outages),
    (metrics::INBOX_DATABASE_ERRORS, "Failed database calls about a single message", ConsumerStatus::database_errors),
    (metrics::INBOX_BROKER_OUTAGES, "Outages of the broker", ConsumerStatus::broker_outages),
];

const OUTCOMES: &[(&str, Number)] = &[
    ("done", ConsumerStatus::done),
    ("skipped", ConsumerStatus::skipped),
    ("duplicate", ConsumerStatus::duplicates),
    ("retried", |stats| stats.retried_in_memory() + stats.retried_later()),
    ("dead_lettered", ConsumerStatus::dead_lettered),
];

const GAUGES: &[(&str, &str, Number)] = &[
    (
        metrics::INBOX_HANDLERS_RUNNING,
        "Running handlers, including those of the retry queues",
        ConsumerStatus::handlers_running,
    ),
    (metrics::INBOX_BUFFERED_MESSAGES, "Messages in memory", ConsumerStatus::buffered_messages),
];

/// The metrics and rates of any number of consumers in this process. Members of the same consumer are combined.
#[derive(Clone, Debug, Default)]
pub struct ConsumerMetrics {
    members: Vec<Arc<ConsumerStatus>>,
    rates: Arc<Mutex<BTreeMap<String, RateWindow>>>,
}

impl ConsumerMetrics {
    /// Creates it from the status that [`ConsumerRuntime::status`](relevo_inbox::ConsumerRuntime::status) returns before
    /// they run.
    pub fn new(consumers: impl IntoIterator<Item = Arc<ConsumerStatus>>) -> Self {
        Self { members: consumers.into_iter().collect(), rates: Arc::default() }
    }

    /// All members.
    pub(crate) fn members(&self) -> &[Arc<ConsumerStatus>] {
        &self.members
    }

    /// Adds a snapshot for [`rates`](Self::rates). Called every second.
    pub(crate) fn record_rates(&self, now: Instant) {
        let mut windows = self.rates.lock();
        for (consumer, members) in self.by_name() {
            let window = windows.entry(consumer.to_owned()).or_default();
            window.record(now, members.sum(ConsumerStatus::done), members.durations());
        }
    }

    /// Rates and durations of the last ten seconds, and the current lag.
    pub(crate) fn rates(&self) -> Vec<ConsumerRates> {
        let windows = self.rates.lock();
        let rates = |(consumer, members): (&str, Members<'_>)| {
            let Rates { per_second, p50, p99 } = windows.get(consumer).map(RateWindow::rates).unwrap_or_default();
            ConsumerRates {
                consumer: consumer.to_owned(),
                handled_per_second: per_second,
                handler_p50_seconds: p50,
                handler_p99_seconds: p99,
                lag: members.lag().into_iter().map(|(lane, waiting)| (lane.name().to_owned(), waiting)).collect(),
            }
        };
        self.by_name().into_iter().map(rates).collect()
    }

    /// The members of each consumer, by its name.
    fn by_name(&self) -> BTreeMap<&str, Members<'_>> {
        let mut all: BTreeMap<&str, Members<'_>> = BTreeMap::new();
        for stats in &self.members {
            all.entry(stats.consumer()).or_default().0.push(stats);
        }
        all
    }
}

/// The members of one consumer in this process. There is almost always exactly one.
#[derive(Default)]
struct Members<'a>(Vec<&'a ConsumerStatus>);

impl Members<'_> {
    fn sum(&self, number: Number) -> u64 {
        self.0.iter().map(|stats| number(stats)).sum()
    }

    /// The longest time since a heartbeat of any member. Stopped members send no heartbeats and do not count.
    fn heartbeat_age(&self) -> Option<Duration> {
        let alive = self.0.iter().filter(|stats| stats.run_state() != RunState::Stopped);
        alive.map(|stats| stats.heartbeat_age()).max()
    }

    fn open_lanes(&self) -> usize {
        let open: BTreeSet<Lane> =
            self.0.iter().flat_map(|stats| stats.open_breakers()).map(|(lane, _)| lane).collect();
        open.len()
    }

    /// If several members report the same lane, the highest number is closest to the truth.
    fn lag(&self) -> BTreeMap<Lane, u64> {
        let mut lag = BTreeMap::new();
        for (lane, waiting) in self.0.iter().flat_map(|stats| stats.lag()) {
            let most = lag.entry(lane).or_insert(0);
            *most = waiting.max(*most);
        }
        lag
    }

    /// The durations of all members.
    fn durations(&self) -> HistogramSnapshot {
        self.0.iter().map(|stats| stats.durations()).reduce(HistogramSnapshot::merge).unwrap_or_default()
    }
}

impl Collector for ConsumerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        if self.members.is_empty() {
            return Ok(());
        }
        let all = self.by_name();
        for (name, help, number) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (consumer, members) in &all {
                ConstCounter::new(members.sum(*number)).encode(family.encode_family(&[("consumer", *consumer)])?)?;
            }
        }
        let help = "Messages by outcome: done, skipped, duplicate, retried (a retry is scheduled), dead_lettered";
        let mut family = encoder.encode_descriptor(metrics::INBOX_HANDLED, help, None, MetricType::Counter)?;
        for (consumer, members) in &all {
            for (outcome, number) in OUTCOMES {
                let labels = [("consumer", *consumer), ("outcome", *outcome)];
                ConstCounter::new(members.sum(*number)).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Duration of handler attempts, whatever their result";
        let mut family =
            encoder.encode_descriptor(metrics::INBOX_HANDLER_DURATION, help, None, MetricType::Histogram)?;
        for (consumer, members) in &all {
            let HistogramSnapshot { sum, count, buckets } = members.durations();
            let labels = [("consumer", *consumer)];
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        for (name, help, number) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (consumer, members) in &all {
                gauge(&mut family, consumer, members.sum(*number))?;
            }
        }
        let help = "Lanes whose breaker is open, by a handler's report or forced by an operator";
        let mut family =
            encoder.encode_descriptor(metrics::INBOX_MEMBER_BREAKERS_OPEN, help, None, MetricType::Gauge)?;
        for (consumer, members) in &all {
            gauge(&mut family, consumer, members.open_lanes() as u64)?;
        }
        let help = "Seconds since the last heartbeat of this process that the database accepted";
        let mut family =
            encoder.encode_descriptor(metrics::INBOX_MEMBER_HEARTBEAT_AGE, help, None, MetricType::Gauge)?;
        for (consumer, members) in &all {
            let Some(age) = members.heartbeat_age() else { continue };
            ConstGauge::new(age.as_secs_f64()).encode(family.encode_family(&[("consumer", *consumer)])?)?;
        }
        let help = "Messages that wait at the broker; absent while it does not report them, a lower bound above 10 000";
        let mut family = encoder.encode_descriptor(metrics::INBOX_LAG_MESSAGES, help, None, MetricType::Gauge)?;
        for (consumer, members) in &all {
            for (lane, waiting) in members.lag() {
                let labels = [("consumer", *consumer), ("lane", lane.name())];
                ConstGauge::new(whole(waiting)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

fn gauge(family: &mut prometheus_client::encoding::MetricEncoder, consumer: &str, value: u64) -> fmt::Result {
    ConstGauge::new(whole(value)).encode(family.encode_family(&[("consumer", consumer)])?)
}
