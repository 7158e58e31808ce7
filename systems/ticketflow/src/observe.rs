//! What a process tells of itself: metrics, and most of what `/health` is made of. Everything here is sampled now and then; no
//! question of anybody's waits for the database or the broker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use parking_lot::Mutex;
use relevo::core::outbox::OutboxOperator;
use relevo::core::outbox::sample::OutboxSample;
use relevo::inbox::ConsumerStatus;
use relevo::observe::consumer::Consumers;
use relevo::observe::relay::{Embedded, Observed as _};
use relevo::observe::{Exposition, Slot};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::api;
use crate::flow::{Broker, METRICS, NOTIFICATIONS};

/// How often is sampled.
const EVERY: Duration = Duration::from_secs(1);
/// What takes longer is not known.
const DEADLINE: Duration = Duration::from_secs(3);

/// The metrics of this process: of its relay and of its consumers, if it has them.
pub struct Metrics(Exposition);

impl Metrics {
    /// Every series carries the name of the service.
    pub fn new(relay: Option<&Arc<Embedded>>, consumers: &[Arc<ConsumerStatus>]) -> Self {
        let relays = relay.map(|relay| Arc::clone(relay) as _).into_iter().collect();
        let exposition = Exposition::new("ticketflow", env!("CARGO_PKG_VERSION")).relays(relays);
        Self(exposition.collector(Consumers::new(consumers.iter().cloned())))
    }

    /// In the `OpenMetrics` text format.
    pub fn text(&self) -> String {
        self.0.text()
    }
}

/// What was last seen of database and broker.
pub struct Sampler {
    outbox: Arc<dyn OutboxOperator>,
    broker: Broker,
    relay: Option<Arc<Embedded>>,
    surroundings: Slot<OutboxSample>,
    /// Since when the broker is away.
    away: Mutex<Option<Timestamp>>,
}

impl Sampler {
    /// Samples this database and this broker; a relay's metrics get their numbers from it.
    pub fn new(outbox: Arc<dyn OutboxOperator>, broker: Broker, relay: Option<Arc<Embedded>>) -> Self {
        Self { outbox, broker, relay, surroundings: Slot::default(), away: Mutex::default() }
    }

    /// Samples until it is told to stop.
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
        self.broker_away_since();
        let outbox = &*self.outbox;
        let Some(relay) = &self.relay else {
            let seen = timeout(DEADLINE, outbox.sample_outbox()).await;
            return self.surroundings.put(seen.ok().and_then(Result::ok));
        };
        relay.sample(outbox).await;
        self.surroundings.put(relay.surroundings());
        relay.broker_sampled(timeout(DEADLINE, self.broker.vitals()).await.ok().flatten());
    }

    /// What the database knows of the consumers; `None` while it does not answer.
    pub fn surroundings(&self) -> Option<OutboxSample> {
        self.surroundings.get()
    }

    /// What is under way; `None` while the database does not answer.
    pub fn flow(&self) -> Option<api::Flow> {
        let backlog = self.relay.as_ref()?.vitals()?.backlog;
        let mut dead = BTreeMap::from([NOTIFICATIONS, METRICS].map(|consumer| (consumer.to_owned(), 0)));
        dead.extend(self.surroundings()?.consumers.into_iter().map(|consumer| (consumer.name, consumer.dead)));
        Some(api::Flow { pending: (backlog.pending + backlog.parked).unsigned_abs(), dead })
    }

    /// Why the broker refuses us, if that is why it is away.
    pub fn broker_refusal(&self) -> Option<String> {
        self.broker.refusal()
    }

    /// Since when the broker is away; `None` while it is there.
    pub fn broker_away_since(&self) -> Option<Timestamp> {
        // Nothing panics while it is held.
        let mut away = self.away.lock();
        *away = if self.broker.is_up() { None } else { Some(away.unwrap_or_else(Timestamp::now)) };
        *away
    }
}
