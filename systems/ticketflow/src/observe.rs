//! The metrics of a process, and most of the data of `/health`. Values are sampled periodically, so that no request waits for the
//! database or the broker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use parking_lot::Mutex;
use relevo::core::outbox::OutboxOperator;
use relevo::core::outbox::sample::OutboxSample;
use relevo::inbox::ConsumerStatus;
use relevo::observe::{ConsumerMetrics, Exposition, LastSample, RelayMonitor};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::api;
use crate::flow::{Broker, METRICS, NOTIFICATIONS};

/// The interval of samples.
const EVERY: Duration = Duration::from_secs(1);
/// The timeout of a sample.
const DEADLINE: Duration = Duration::from_secs(3);

/// The metrics of this process, including its relay and its consumers if it has them.
pub struct Metrics(Exposition);

impl Metrics {
    /// Every series has the label of the service.
    pub fn new(relay: Option<&Arc<RelayMonitor>>, consumers: &[Arc<ConsumerStatus>]) -> Self {
        let relays = relay.map(Arc::clone).into_iter().collect();
        let exposition = Exposition::new("ticketflow", env!("CARGO_PKG_VERSION")).relays(relays);
        Self(exposition.collector(ConsumerMetrics::new(consumers.iter().cloned())))
    }

    /// In the `OpenMetrics` text format.
    pub fn text(&self) -> String {
        self.0.text()
    }
}

/// The last samples of database and broker.
pub struct Sampler {
    outbox: Arc<dyn OutboxOperator>,
    broker: Broker,
    relay: Option<Arc<RelayMonitor>>,
    /// The last sample of the outbox, shared with the relay.
    last: Arc<LastSample<OutboxSample>>,
    /// Since when the broker has been unreachable.
    down_since: Mutex<Option<Timestamp>>,
}

impl Sampler {
    /// Samples this database and this broker. The metrics of the relay use these samples.
    pub fn new(outbox: Arc<dyn OutboxOperator>, broker: Broker, relay: Option<Arc<RelayMonitor>>) -> Self {
        let last = relay.as_ref().map_or_else(Arc::default, |relay| Arc::clone(&relay.samples().outbox));
        Self { outbox, broker, relay, last, down_since: Mutex::default() }
    }

    /// Samples until `stop` is cancelled.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<()> {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = ticks.tick() => self.sample().await,
            }
        }
    }

    /// Samples once.
    pub async fn sample(&self) {
        self.broker_down_since();
        let Some(relay) = &self.relay else {
            let sampled = timeout(DEADLINE, self.outbox.sample_outbox()).await;
            return self.last.set(sampled.ok().and_then(Result::ok));
        };
        relay.sample(&*self.outbox).await;
        relay.samples().broker.set(timeout(DEADLINE, self.broker.vitals()).await.ok().flatten());
    }

    /// The consumers in the database; `None` while it does not respond.
    pub fn outbox_sample(&self) -> Option<OutboxSample> {
        self.last.fresh()
    }

    /// The backlog and the dead letters; `None` while the database does not respond.
    pub fn flow(&self) -> Option<api::Flow> {
        let backlog = self.relay.as_ref()?.samples().destination.fresh()?.backlog;
        let mut dead = BTreeMap::from([NOTIFICATIONS, METRICS].map(|consumer| (consumer.to_owned(), 0)));
        dead.extend(self.outbox_sample()?.consumers.into_iter().map(|consumer| (consumer.name, consumer.dead)));
        Some(api::Flow { pending: (backlog.pending + backlog.parked).unsigned_abs(), dead })
    }

    /// The reason if the broker rejects this service.
    pub fn broker_refusal(&self) -> Option<String> {
        self.broker.refusal()
    }

    /// Since when the broker has been unreachable; `None` while it is reachable.
    pub fn broker_down_since(&self) -> Option<Timestamp> {
        // No code panics while it holds the lock.
        let mut down_since = self.down_since.lock();
        *down_since = if self.broker.is_up() { None } else { Some(down_since.unwrap_or_else(Timestamp::now)) };
        *down_since
    }
}
