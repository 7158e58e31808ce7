//! The metrics: their names, and how they come from what relays count.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::seen::Seen;

/// A counter of each relay; the format adds `_total` to the name.
type Counter = (&'static str, &'static str, fn(&Seen) -> u64);
/// The failures of one class of each relay.
type Class = (&'static str, fn(&Seen) -> u64);
/// A gauge of each relay, left out while it is not known.
type Gauge = (&'static str, &'static str, fn(&Seen) -> Option<i64>);

macro_rules! counted {
    ($name:ident) => {
        |seen| seen.relay().map_or(0, |(stats, _)| stats.$name())
    };
}

const COUNTERS: &[Counter] = &[
    ("outbox_publish_attempts", "Messages handed to the broker, repeats included", counted!(attempts)),
    ("outbox_published", "Messages that the broker confirmed", counted!(published)),
    ("outbox_retry", "Times that a message was refused and put off, to be tried again", counted!(retried)),
    ("outbox_parked", "Messages that were parked, at the head of a key or behind one", counted!(parked)),
    ("outbox_failed_permanent", "Messages that went to the dead letters", counted!(buried)),
    ("outbox_skipped", "Messages that no route wanted", counted!(skipped)),
    ("outbox_unknown", "Answers of the broker that were lost", counted!(unknown)),
    ("outbox_outages", "Times that the destination was found away", counted!(outages)),
    ("outbox_database_away", "Times that the database was found away", Seen::database_away),
    ("outbox_leases_lost", "Leases that were lost before they were given back", counted!(leases_lost)),
    ("outbox_settlements", "Settlements that were recorded", counted!(settlements)),
];

/// Outcomes that were no confirmation, by their class; the format adds `_total` to the name.
const FAILURES: &str = "outbox_failures";
const CLASSES: &[Class] = &[
    ("outage", counted!(outage_outcomes)),
    ("unknown", counted!(unknown_outcomes)),
    ("throttled", counted!(throttled_outcomes)),
    ("transient", counted!(transient_outcomes)),
    ("poison", counted!(poison_outcomes)),
    ("blocked", counted!(blocked_outcomes)),
];

macro_rules! now {
    (|$watched:ident| $value:expr) => {
        |seen| seen.relay().map(|(_, $watched)| $value)
    };
}

const GAUGES: &[Gauge] = &[
    ("outbox_backlog_gauge", "Messages that wait to be read; exact up to 10 000", |seen| {
        seen.backlog().map(|backlog| backlog.pending)
    }),
    ("outbox_parked_gauge", "Messages that are parked", |seen| seen.backlog().map(|backlog| backlog.parked)),
    ("outbox_dead_gauge", "Dead letters that nobody has marked", |seen| seen.backlog().map(|backlog| backlog.dead)),
    ("outbox_leases", "Shards that this relay holds", now!(|watched| whole(watched.leases()))),
    ("outbox_in_flight", "Messages that wait for their confirmation", now!(|watched| whole(watched.in_flight()))),
    ("outbox_destination_up", "Whether the destination was there when last tried", |seen| {
        seen.is_destination_up().map(i64::from)
    }),
    ("outbox_destination_away_seconds", "For how long the destination has been away; 0 while it is there", |seen| {
        seen.destination_away_for().map(|time| whole(time.as_secs()))
    }),
    ("outbox_ready", "Whether the relay does its work", |seen| Some(i64::from(seen.readiness().0))),
];

const BUILD: &str = "relevo_build";
const RELOADS: &str = "relevo_config_reloads";
const RELOAD_FAILURES: &str = "relevo_config_reload_failures";
const RELOAD_GOOD: &str = "relevo_config_last_reload_successful";

/// What the daemon counts of itself.
#[derive(Debug)]
pub(crate) struct Reloads {
    good: AtomicU64,
    bad: AtomicU64,
    last_good: AtomicI64,
}

impl Default for Reloads {
    fn default() -> Self {
        Self { good: AtomicU64::new(0), bad: AtomicU64::new(0), last_good: AtomicI64::new(1) }
    }
}

impl Reloads {
    pub(crate) fn count(&self, good: bool) {
        let counter = if good { &self.good } else { &self.bad };
        counter.fetch_add(1, Ordering::Relaxed);
        self.last_good.store(i64::from(good), Ordering::Relaxed);
    }
}

/// Everything that `/metrics` shows.
#[derive(Debug)]
pub(crate) struct Metrics(Registry);

impl Metrics {
    pub(crate) fn new(service: &str, relays: Vec<Arc<Seen>>, reloads: Arc<Reloads>) -> Self {
        let mut registry = Registry::default();
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register(BUILD, "The program", build);
        registry.register_collector(Box::new(All { service: service.to_owned(), relays, reloads }));
        Self(registry)
    }

    /// In the `OpenMetrics` text format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a text does not fail.
        prometheus_client::encoding::text::encode(&mut text, &self.0).ok();
        text
    }
}

#[derive(Debug)]
struct All {
    service: String,
    relays: Vec<Arc<Seen>>,
    reloads: Arc<Reloads>,
}

impl All {
    fn labels<'a>(&'a self, seen: &'a Seen) -> [(&'static str, &'a str); 3] {
        [("service", &self.service), ("outbox", &seen.outbox), ("destination", &seen.destination)]
    }
}

impl Collector for All {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for (name, help, value) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for seen in &self.relays {
                ConstCounter::new(value(seen)).encode(family.encode_family(&self.labels(seen))?)?;
            }
        }
        let help = "Outcomes of messages that were no confirmation, by the class of the failure";
        let mut family = encoder.encode_descriptor(FAILURES, help, None, MetricType::Counter)?;
        for seen in &self.relays {
            let [service, outbox, destination] = self.labels(seen);
            for (class, value) in CLASSES {
                let labels = [service, outbox, destination, ("class", class)];
                ConstCounter::new(value(seen)).encode(family.encode_family(&labels)?)?;
            }
        }
        for (name, help, value) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for seen in &self.relays {
                if let Some(value) = value(seen) {
                    ConstGauge::new(value).encode(family.encode_family(&self.labels(seen))?)?;
                }
            }
        }
        let service = [("service", self.service.as_str())];
        let counters = [
            (RELOADS, "Configurations that were read anew and taken", &self.reloads.good),
            (RELOAD_FAILURES, "Configurations that were read anew and refused", &self.reloads.bad),
        ];
        for (name, help, counter) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(counter.load(Ordering::Relaxed)).encode(family.encode_family(&service)?)?;
        }
        let help = "Whether the configuration that was read last was taken";
        let mut family = encoder.encode_descriptor(RELOAD_GOOD, help, None, MetricType::Gauge)?;
        ConstGauge::new(self.reloads.last_good.load(Ordering::Relaxed)).encode(family.encode_family(&service)?)
    }
}

fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
