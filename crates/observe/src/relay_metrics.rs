//! The metrics of relays, and of what they sample.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, EncodeMetric as _, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use relevo_core::histogram::HistogramSnapshot;
use relevo_core::outbox::sample::ConsumerSample;
use relevo_relay::RelayStatus;

use crate::metrics;
use crate::relay_monitor::RelayMonitor;

/// The metrics of any number of relays.
#[derive(Debug)]
pub(crate) struct RelayMetrics(pub(crate) Vec<Arc<RelayMonitor>>);

impl Collector for RelayMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.encode_counters(&mut encoder)?;
        self.encode_histograms(&mut encoder)?;
        self.encode_gauges(&mut encoder)?;
        self.encode_retention(&mut encoder)?;
        self.encode_brokers(&mut encoder)?;
        let consumers = self.consumers();
        encode_consumers(&consumers, &mut encoder)?;
        self.encode_dead(&consumers, &mut encoder)
    }
}

/// Consumers by the outbox whose database they share. Several relays report the same consumers.
type ConsumerSamples = BTreeMap<String, Vec<ConsumerSample>>;

impl RelayMetrics {
    fn encode_counters(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        for (name, help, value) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for relay in &self.0 {
                ConstCounter::new(value(relay)).encode(family.encode_family(&labels(relay))?)?;
            }
        }
        let help = "Failed attempts to publish a message, by the class of the failure";
        let mut family = encoder.encode_descriptor(metrics::PUBLISH_FAILURES, help, None, MetricType::Counter)?;
        for relay in &self.0 {
            let [outbox, destination] = labels(relay);
            for (class, value) in CLASSES {
                let labels = [outbox, destination, ("class", class)];
                ConstCounter::new(value(relay)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn encode_histograms(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        for (name, help, value) in HISTOGRAMS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
            for relay in &self.0 {
                let Some(snapshot) = value(relay) else { continue };
                let labels = labels(relay);
                let mut series = family.encode_family(&labels)?;
                series.encode_histogram::<NoLabelSet>(snapshot.sum, snapshot.count, &snapshot.buckets, None)?;
            }
        }
        Ok(())
    }

    fn encode_gauges(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        for (name, help, value) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for relay in &self.0 {
                gauge(&mut family, &labels(relay), value(relay))?;
            }
        }
        for (name, help, value) in SECONDS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for relay in &self.0 {
                gauge(&mut family, &labels(relay), value(relay).map(|time| time.as_secs_f64()))?;
            }
        }
        Ok(())
    }

    /// Covers all destinations of an outbox: a destination without a relay retains the most.
    fn encode_retention(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let overdue = self.0.iter().filter_map(|relay| {
            Some((relay.labels().outbox.as_str(), relay.samples().outbox.recent()?.retention_overdue))
        });
        // Several relays report the same outbox.
        let outboxes: BTreeMap<&str, Vec<_>> = overdue.collect();
        let help =
            "How long messages have been retained beyond their retention because this destination has not settled them";
        let mut family = encoder.encode_descriptor(metrics::RETENTION_OVERDUE, help, None, MetricType::Gauge)?;
        for (outbox, destinations) in &outboxes {
            for (destination, overdue) in destinations {
                let labels = [("outbox", *outbox), ("destination", destination.as_str())];
                gauge(&mut family, &labels, Some(overdue.as_secs_f64()))?;
            }
        }
        Ok(())
    }

    fn encode_brokers(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        for (name, help, value) in BROKERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for relay in &self.0 {
                let [outbox, destination] = labels(relay);
                gauge(&mut family, &[outbox, destination, ("broker", relay.labels().broker.as_str())], value(relay))?;
            }
        }
        Ok(())
    }

    fn consumers(&self) -> ConsumerSamples {
        let consumers = |relay: &Arc<RelayMonitor>| {
            Some((relay.labels().outbox.clone(), relay.samples().outbox.recent()?.consumers))
        };
        self.0.iter().filter_map(consumers).collect()
    }

    /// Dead letters in all locations: of the outbox, of inboxes in the same database, in queues at the broker.
    fn encode_dead(&self, consumers: &ConsumerSamples, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Dead letters without a mark: of the outbox by destination, of an inbox by consumer, at the broker by \
                    queue; counted up to 10 000";
        let mut family = encoder.encode_descriptor(metrics::DLQ, help, None, MetricType::Gauge)?;
        for relay in &self.0 {
            gauge(&mut family, &labels(relay), relay.samples().destination.recent().map(|sample| sample.backlog.dead))?;
        }
        for (outbox, consumer) in all(consumers) {
            let labels = [("outbox", outbox), ("consumer", consumer.name.as_str())];
            gauge(&mut family, &labels, Some(whole(consumer.dead)))?;
        }
        // Several relays may publish to the same broker, and report the same queues. Queues of different brokers may
        // have the same name.
        let mut queues: BTreeMap<(&str, String), BTreeMap<&str, u64>> = BTreeMap::new();
        for relay in &self.0 {
            for (queue, messages) in relay.samples().broker.recent().unwrap_or_default().dead_letter_queues {
                let locations = queues.entry((relay.labels().broker.as_str(), queue)).or_default();
                let known = locations.entry(relay.labels().location.as_str()).or_default();
                *known = messages.max(*known);
            }
        }
        for ((broker, queue), locations) in &queues {
            let messages: u64 = locations.values().sum();
            gauge(&mut family, &[("broker", *broker), ("queue", queue.as_str())], Some(whole(messages)))?;
        }
        Ok(())
    }
}

fn encode_consumers(consumers: &ConsumerSamples, encoder: &mut DescriptorEncoder) -> fmt::Result {
    for (name, help, value) in CONSUMER_GAUGES {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (outbox, consumer) in all(consumers) {
            let labels = [("outbox", outbox), ("consumer", consumer.name.as_str())];
            gauge(&mut family, &labels, value(consumer).map(whole))?;
        }
    }
    for (name, help, value) in CONSUMER_SECONDS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (outbox, consumer) in all(consumers) {
            let labels = [("outbox", outbox), ("consumer", consumer.name.as_str())];
            gauge(&mut family, &labels, value(consumer).map(|time| time.as_secs_f64()))?;
        }
    }
    let help = "Whether the breaker of a lane is open, as its live member last reported";
    let mut family = encoder.encode_descriptor(metrics::INBOX_BREAKER_OPEN, help, None, MetricType::Gauge)?;
    for (outbox, consumer) in all(consumers) {
        for (lane, open) in &consumer.breakers {
            let labels = [("outbox", outbox), ("consumer", consumer.name.as_str()), ("lane", lane.as_str())];
            gauge(&mut family, &labels, Some(i64::from(*open)))?;
        }
    }
    Ok(())
}

fn all(consumers: &ConsumerSamples) -> impl Iterator<Item = (&str, &ConsumerSample)> {
    consumers.iter().flat_map(|(outbox, all)| all.iter().map(move |consumer| (outbox.as_str(), consumer)))
}

/// An unknown value has no series.
fn gauge<N>(family: &mut MetricEncoder<'_>, labels: &impl EncodeLabelSet, value: Option<N>) -> fmt::Result
where
    N: EncodeGaugeValue + Copy + fmt::Debug,
{
    match value {
        Some(value) => ConstGauge::new(value).encode(family.encode_family(labels)?),
        None => Ok(()),
    }
}

fn labels(relay: &RelayMonitor) -> [(&'static str, &str); 2] {
    [("outbox", &relay.labels().outbox), ("destination", &relay.labels().destination)]
}

/// A counter of each relay.
type Counter = (&'static str, &'static str, fn(&RelayMonitor) -> u64);
/// The failures of one class of each relay.
type Class = (&'static str, fn(&RelayMonitor) -> u64);
/// A histogram of each relay. Omitted while there is no relay.
type Histogram = (&'static str, &'static str, fn(&RelayMonitor) -> Option<HistogramSnapshot>);
/// A gauge of each relay. Omitted while it is unknown.
type Gauge = (&'static str, &'static str, fn(&RelayMonitor) -> Option<i64>);
/// A gauge of each relay, in seconds. Omitted while it is unknown.
type Seconds = (&'static str, &'static str, fn(&RelayMonitor) -> Option<Duration>);
/// A gauge of each consumer in the database. Omitted while it is unknown.
type ConsumerGauge = (&'static str, &'static str, fn(&ConsumerSample) -> Option<u64>);
/// A gauge of each consumer in the database, in seconds. Omitted while it is unknown.
type ConsumerSeconds = (&'static str, &'static str, fn(&ConsumerSample) -> Option<Duration>);

macro_rules! counter {
    ($name:ident) => {
        |relay| relay.status().map_or(0, RelayStatus::$name)
    };
}

const COUNTERS: &[Counter] = &[
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

const CLASSES: &[Class] = &[
    ("outage", counter!(outage_outcomes)),
    ("unknown", counter!(unknown_outcomes)),
    ("throttled", counter!(throttled_outcomes)),
    ("transient", counter!(transient_outcomes)),
    ("poison", counter!(poison_outcomes)),
    ("blocked", counter!(blocked_outcomes)),
];

const HISTOGRAMS: &[Histogram] = &[
    (
        metrics::PUBLISH_LATENCY,
        "From emit to the broker's confirmation, between the clocks of database and relay; never negative",
        |relay| relay.status().map(|status| status.publish_latency().snapshot()),
    ),
    (
        metrics::DISPATCH_LATENCY,
        "From emit to the first attempt to publish, between the clocks of database and relay; never negative",
        |relay| relay.status().map(|status| status.dispatch_latency().snapshot()),
    ),
];

macro_rules! current {
    ($name:ident) => {
        |relay| relay.status().map(|status| whole(status.$name()))
    };
}

macro_rules! sampled {
    (|$sample:ident| $value:expr) => {
        |relay| relay.samples().destination.recent().map(|$sample| $value)
    };
}

const GAUGES: &[Gauge] = &[
    (metrics::LEASES, "Shards that this relay leases", current!(leases)),
    (metrics::IN_FLIGHT_MESSAGES, "Messages that wait for a confirmation", current!(in_flight)),
    (metrics::READY, "Whether the relay is ready", |relay| Some(i64::from(relay.is_ready()))),
    (
        metrics::BACKLOG,
        "Unsettled messages of the log; exact up to 10 000, an estimate above",
        sampled!(|sample| sample.backlog.pending),
    ),
    (
        metrics::PENDING,
        "Unsettled and parked messages, without dead letters",
        sampled!(|sample| sample.backlog.pending + sample.backlog.parked),
    ),
    (metrics::PARKED_MESSAGES, "Parked messages; counted up to 10 000", sampled!(|sample| sample.backlog.parked)),
    (metrics::PARKED_KEYS, "Parked keys; counted up to 10 000", sampled!(|sample| sample.parked_keys)),
    (metrics::HELD_ADDRESSES, "Addresses that reject every message", sampled!(|sample| sample.held_addresses)),
    (
        metrics::XMIN_AGE,
        "Age of the oldest transaction that a snapshot, a prepared transaction or a slot holds, in transactions",
        |relay| relay.samples().outbox.recent()?.horizon.map(|horizon| whole(horizon.transactions)),
    ),
];

const SECONDS: &[Seconds] = &[
    (
        metrics::OLDEST_PENDING_AGE,
        "Age since emit of the oldest unsettled or parked message; 0 without one",
        sampled!(|sample| sample.oldest_pending),
    ),
    (metrics::SAMPLE_AGE, "Seconds since the last complete sample of the outbox, or since the start", |relay| {
        relay.sample_age()
    }),
    (
        metrics::XMIN_HELD,
        "How long a session or a prepared transaction has held the oldest snapshot of the database",
        |relay| Some(relay.samples().outbox.recent()?.horizon?.held_for),
    ),
];

/// Gauges with a label for the kind of broker.
const BROKERS: &[Gauge] = &[
    (metrics::BROKER_UP, "Whether the broker was reachable at the last attempt", |relay| {
        relay.is_broker_up().map(i64::from)
    }),
    (metrics::BROKER_DOWN, "How long the broker has been unreachable; 0 while it is reachable", |relay| {
        relay.broker_down_for().map(|time| whole(time.as_secs()))
    }),
    (metrics::BROKER_NODES_RUNNING, "Running nodes of the broker's cluster", |relay| {
        Some(whole(relay.samples().broker.recent()?.nodes?.running))
    }),
    (metrics::BROKER_NODES, "Known nodes of the broker's cluster", |relay| {
        Some(whole(relay.samples().broker.recent()?.nodes?.total))
    }),
];

const CONSUMER_GAUGES: &[ConsumerGauge] = &[
    (metrics::INBOX_MEMBERS, "Live members of the consumer", |sample| Some(sample.members)),
    (
        metrics::INBOX_RETRY_WAITING_MESSAGES,
        "Messages in the consumer's retry queues; counted up to 10 000",
        |sample| Some(sample.waiting),
    ),
];

const CONSUMER_SECONDS: &[ConsumerSeconds] = &[
    (metrics::INBOX_HEARTBEAT_AGE, "Seconds since the last heartbeat of any member", |sample| sample.heartbeat_age),
    (metrics::INBOX_LAST_MESSAGE_AGE, "Seconds since any member last received a message", |sample| {
        sample.last_message_age
    }),
];

pub(crate) fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use relevo_core::broker::sample::BrokerSample;

    use super::*;
    use crate::RelayLabels;

    /// A relay to a broker with one dead-letter queue.
    fn relay(destination: &str, location: &str, dead: u64) -> Arc<RelayMonitor> {
        let relay = RelayMonitor::new(RelayLabels {
            outbox: "shop".to_owned(),
            database: String::new(),
            destination: destination.to_owned(),
            broker: "queues".to_owned(),
            location: location.to_owned(),
        });
        let dead_letter_queues = vec![("billing.dead".to_owned(), dead)];
        relay.samples().broker.set(Some(BrokerSample { nodes: None, dead_letter_queues }));
        Arc::new(relay)
    }

    #[test]
    fn equal_queue_names_at_two_brokers_are_summed_and_a_queue_of_two_relays_is_counted_once() {
        let all = vec![relay("main", "east", 3), relay("audit", "east", 3), relay("other", "west", 4)];
        let mut registry = Registry::default();
        registry.register_collector(Box::new(RelayMetrics(all)));
        let mut text = String::new();
        encode(&mut text, &registry).expect("a string has no write errors");
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("billing.dead")).collect();
        assert_eq!(lines, ["mq_dlq_total{broker=\"queues\",queue=\"billing.dead\"} 7"]);
    }
}
