//! The state of relays for monitoring.

mod collect;
mod tables;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relevo_core::broker::sample::BrokerSample;
use relevo_core::outbox::sample::{DestinationSample, OutboxMonitor, OutboxSample};
use relevo_relay::RelayStatus;
use tokio::time::timeout;

use crate::slot::Slot;

pub(crate) use collect::Relays;

/// If the database is slower than this, there is no sample.
const DEADLINE: Duration = Duration::from_secs(4);

/// One relay. All answers come from memory: a scrape never waits.
pub trait Observed: fmt::Debug + Send + Sync + 'static {
    /// The outbox that it reads.
    fn outbox(&self) -> &str;

    /// The destination that it publishes to.
    fn destination(&self) -> &str;

    /// The kind of broker: `rabbitmq`, `nats`, `embedded`, `memory`.
    fn broker(&self) -> &str;

    /// Identifies the broker among those of one kind: two relays with the same value publish to the same broker. It is
    /// not exported.
    fn broker_place(&self) -> &str;

    /// Its status. `None` while there is no relay yet.
    fn relay(&self) -> Option<&RelayStatus>;

    /// Whether it currently does its work.
    fn is_ready(&self) -> bool {
        self.relay().is_some_and(|status| status.is_started() && !status.is_database_down())
    }

    /// How often the database was found unreachable.
    fn database_outages(&self) -> u64 {
        self.relay().map_or(0, RelayStatus::database_outages)
    }

    /// How long the broker has been unreachable, if known. Zero while it is reachable.
    fn broker_away_for(&self) -> Option<Duration> {
        self.relay().map(|status| status.broker_down_for().unwrap_or_default())
    }

    /// Whether the broker was reachable at the last attempt, and no connection to it was lost since.
    fn is_broker_up(&self) -> Option<bool> {
        self.relay().map(|status| !status.is_broker_down())
    }

    /// The last sample of the outbox. `None` if it cannot be sampled.
    fn vitals(&self) -> Option<DestinationSample>;

    /// The last sample of what the destinations of the outbox share. All relays of an outbox may report it.
    fn surroundings(&self) -> Option<OutboxSample>;

    /// The last sample of the broker.
    fn broker_vitals(&self) -> Option<BrokerSample>;

    /// The values for the metrics of the outbox: [`vitals`](Self::vitals), or for a while the last sample after
    /// sampling failed. A single failed sample must not end the alerts that depend on it.
    fn last_vitals(&self) -> Option<DestinationSample> {
        self.vitals()
    }

    /// The values for the metrics that the destinations of the outbox share: [`surroundings`](Self::surroundings), or
    /// for a while the last sample.
    fn last_surroundings(&self) -> Option<OutboxSample> {
        self.surroundings()
    }

    /// Time since [`vitals`](Self::vitals) and [`surroundings`](Self::surroundings) were both last sampled. `None` if
    /// nothing is sampled.
    fn sampled_ago(&self) -> Option<Duration>;
}

/// A relay that an application embeds in its own process.
#[derive(Debug)]
pub struct Embedded {
    outbox: String,
    destination: String,
    broker: String,
    relay: Arc<RelayStatus>,
    vitals: Slot<DestinationSample>,
    surroundings: Slot<OutboxSample>,
    broker_vitals: Slot<BrokerSample>,
    /// Whether it was ever sampled.
    is_sampled: AtomicBool,
}

impl Embedded {
    /// Creates it from the relay's names and status. `broker` is the kind of broker that it publishes to.
    pub fn new(outbox: &str, destination: &str, broker: &str, relay: Arc<RelayStatus>) -> Self {
        Self {
            outbox: outbox.to_owned(),
            destination: destination.to_owned(),
            broker: broker.to_owned(),
            relay,
            vitals: Slot::default(),
            surroundings: Slot::default(),
            broker_vitals: Slot::default(),
            is_sampled: AtomicBool::new(false),
        }
    }

    /// Samples the outbox once. Call it every few seconds next to the relay: a scrape does not query the database.
    pub async fn sample(&self, store: &dyn OutboxMonitor) {
        self.is_sampled.store(true, Ordering::Relaxed);
        let vitals = timeout(DEADLINE, store.sample_destination(&self.destination)).await;
        self.vitals.put(vitals.ok().and_then(Result::ok));
        let surroundings = timeout(DEADLINE, store.sample_outbox()).await;
        self.surroundings.put(surroundings.ok().and_then(Result::ok));
    }

    /// Stores a sample of the broker.
    pub fn broker_sampled(&self, vitals: Option<BrokerSample>) {
        self.broker_vitals.put(vitals);
    }
}

impl Observed for Embedded {
    fn outbox(&self) -> &str {
        &self.outbox
    }

    fn destination(&self) -> &str {
        &self.destination
    }

    fn broker(&self) -> &str {
        &self.broker
    }

    /// All brokers of a kind count as one, because nothing else is known about them here.
    fn broker_place(&self) -> &str {
        &self.broker
    }

    fn relay(&self) -> Option<&RelayStatus> {
        Some(&self.relay)
    }

    fn vitals(&self) -> Option<DestinationSample> {
        self.vitals.get()
    }

    fn surroundings(&self) -> Option<OutboxSample> {
        self.surroundings.get()
    }

    fn broker_vitals(&self) -> Option<BrokerSample> {
        self.broker_vitals.last()
    }

    fn last_vitals(&self) -> Option<DestinationSample> {
        self.vitals.last()
    }

    fn last_surroundings(&self) -> Option<OutboxSample> {
        self.surroundings.last()
    }

    fn sampled_ago(&self) -> Option<Duration> {
        self.is_sampled.load(Ordering::Relaxed).then(|| self.vitals.age().max(self.surroundings.age()))
    }
}
