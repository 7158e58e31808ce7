//! The metrics of relays, and of sampled values.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, EncodeMetric as _, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use relevo_core::outbox::sample::ConsumerSample;

use super::Observed;
use super::tables::{
    BROKERS, CLASSES, COUNTERS, GAUGES, HISTOGRAMS, OF_CONSUMERS, SECONDS, SECONDS_OF_CONSUMERS, whole,
};
use crate::metrics;

/// The metrics of any number of relays.
#[derive(Debug)]
pub(crate) struct Relays(pub(crate) Vec<Arc<dyn Observed>>);

impl Collector for Relays {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        self.encode_counters(&mut encoder)?;
        self.encode_histograms(&mut encoder)?;
        self.encode_gauges(&mut encoder)?;
        self.encode_holdbacks(&mut encoder)?;
        self.encode_brokers(&mut encoder)?;
        let consumers = self.consumers();
        encode_consumers(&consumers, &mut encoder)?;
        self.encode_dead(&consumers, &mut encoder)
    }
}

/// Consumers by the outbox whose database they share. Several relays report the same consumers.
type Consumers = BTreeMap<String, Vec<ConsumerSample>>;

impl Relays {
    fn encode_counters(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        for (name, help, value) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for relay in &self.0 {
                ConstCounter::new(value(&**relay)).encode(family.encode_family(&labels(&**relay))?)?;
            }
        }
        let help = "Failed attempts to publish a message, by the class of the failure";
        let mut family = encoder.encode_descriptor(metrics::PUBLISH_FAILURES, help, None, MetricType::Counter)?;
        for relay in &self.0 {
            let [outbox, destination] = labels(&**relay);
            for (class, value) in CLASSES {
                let labels = [outbox, destination, ("class", class)];
                ConstCounter::new(value(&**relay)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn encode_histograms(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        for (name, help, value) in HISTOGRAMS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
            for relay in &self.0 {
                let Some(snapshot) = value(&**relay) else { continue };
                let labels = labels(&**relay);
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
                gauge(&mut family, &labels(&**relay), value(&**relay))?;
            }
        }
        for (name, help, value) in SECONDS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for relay in &self.0 {
                gauge(&mut family, &labels(&**relay), value(&**relay).map(|time| time.as_secs_f64()))?;
            }
        }
        Ok(())
    }

    /// Covers all destinations of an outbox: a destination without a relay holds back the most.
    fn encode_holdbacks(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let overdue =
            self.0.iter().filter_map(|relay| Some((relay.outbox(), relay.last_surroundings()?.retention_overdue)));
        // Several relays report the same outbox.
        let outboxes: BTreeMap<&str, Vec<_>> = overdue.collect();
        let help =
            "How long messages have been kept beyond their retention because this destination has not settled them";
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
                let [outbox, destination] = labels(&**relay);
                gauge(&mut family, &[outbox, destination, ("broker", relay.broker())], value(&**relay))?;
            }
        }
        Ok(())
    }

    fn consumers(&self) -> Consumers {
        let consumers =
            |relay: &Arc<dyn Observed>| Some((relay.outbox().to_owned(), relay.last_surroundings()?.consumers));
        self.0.iter().filter_map(consumers).collect()
    }

    /// Dead letters in all places: of the outbox, of inboxes in the same database, in queues at the broker.
    fn encode_dead(&self, consumers: &Consumers, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Dead letters without a mark: of the outbox by destination, of an inbox by consumer, at the broker by \
                    queue; counted up to 10 000";
        let mut family = encoder.encode_descriptor(metrics::DLQ, help, None, MetricType::Gauge)?;
        for relay in &self.0 {
            gauge(&mut family, &labels(&**relay), relay.last_vitals().map(|vitals| vitals.backlog.dead))?;
        }
        for (outbox, consumer) in all(consumers) {
            let labels = [("outbox", outbox), ("consumer", consumer.name.as_str())];
            gauge(&mut family, &labels, Some(whole(consumer.dead)))?;
        }
        // Several relays may publish to the same broker, and report the same queues. Queues of different brokers may
        // have the same name.
        let mut queues: BTreeMap<(&str, String), BTreeMap<&str, u64>> = BTreeMap::new();
        for relay in &self.0 {
            for (queue, messages) in relay.broker_vitals().unwrap_or_default().dead_letter_queues {
                let places = queues.entry((relay.broker(), queue)).or_default();
                let known = places.entry(relay.broker_place()).or_default();
                *known = messages.max(*known);
            }
        }
        for ((broker, queue), places) in &queues {
            let messages: u64 = places.values().sum();
            gauge(&mut family, &[("broker", *broker), ("queue", queue.as_str())], Some(whole(messages)))?;
        }
        Ok(())
    }
}

fn encode_consumers(consumers: &Consumers, encoder: &mut DescriptorEncoder) -> fmt::Result {
    for (name, help, value) in OF_CONSUMERS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (outbox, consumer) in all(consumers) {
            let labels = [("outbox", outbox), ("consumer", consumer.name.as_str())];
            gauge(&mut family, &labels, value(consumer).map(whole))?;
        }
    }
    for (name, help, value) in SECONDS_OF_CONSUMERS {
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

fn all(consumers: &Consumers) -> impl Iterator<Item = (&str, &ConsumerSample)> {
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

fn labels(relay: &dyn Observed) -> [(&'static str, &str); 2] {
    [("outbox", relay.outbox()), ("destination", relay.destination())]
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use relevo_core::broker::sample::BrokerSample;
    use relevo_core::outbox::sample::{DestinationSample, OutboxSample};
    use relevo_relay::RelayStatus;

    use super::*;

    /// A relay to a broker with one dead-letter queue.
    #[derive(Debug)]
    struct TestRelay {
        destination: &'static str,
        place: &'static str,
        dead: u64,
    }

    impl Observed for TestRelay {
        fn outbox(&self) -> &'static str {
            "shop"
        }

        fn destination(&self) -> &str {
            self.destination
        }

        fn broker(&self) -> &'static str {
            "rabbitmq"
        }

        fn broker_place(&self) -> &str {
            self.place
        }

        fn relay(&self) -> Option<&RelayStatus> {
            None
        }

        fn vitals(&self) -> Option<DestinationSample> {
            None
        }

        fn surroundings(&self) -> Option<OutboxSample> {
            None
        }

        fn broker_vitals(&self) -> Option<BrokerSample> {
            Some(BrokerSample { nodes: None, dead_letter_queues: vec![("billing.dead".to_owned(), self.dead)] })
        }

        fn sampled_ago(&self) -> Option<std::time::Duration> {
            None
        }
    }

    #[test]
    fn equal_queue_names_at_two_brokers_are_summed_and_a_queue_of_two_relays_is_counted_once() {
        let relay = |destination, place, dead| Arc::new(TestRelay { destination, place, dead }) as Arc<dyn Observed>;
        let all = vec![relay("main", "east", 3), relay("audit", "east", 3), relay("far", "west", 4)];
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Relays(all)));
        let mut text = String::new();
        encode(&mut text, &registry).expect("a string has no write errors");
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("billing.dead")).collect();
        assert_eq!(lines, ["mq_dlq_total{broker=\"rabbitmq\",queue=\"billing.dead\"} 7"]);
    }
}
