//! Samples what only databases and brokers know, so that no scrape has to ask them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use relevo_broker_nats::NatsSampler;
use relevo_broker_rabbitmq::RabbitAdmin;
use relevo_core::Failure;
use relevo_core::sample::{BrokerVitals, SampleBroker, Surroundings, Vitals};
use relevo_core::store::StoreError;
use relevo_observe::Slot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::brokers::Brokers;
use super::seen::{Phase, Seen};
use super::store::{self, AnyStore};
use crate::config::{Broker, Outbox};

/// A database or a broker that is slower than this has no number to give.
const DEADLINE: Duration = Duration::from_secs(4);
/// Whoever is asked is busy with it for a tenth of the time at most.
const REST: u32 = 10;

/// How often something is asked, and until when.
#[derive(Clone)]
pub(crate) struct Pace {
    pub(crate) every: Duration,
    pub(crate) stop: CancellationToken,
}

impl Pace {
    /// Asks again and again until it is told to stop.
    async fn repeat<S: Sampler>(self, slot: Arc<Slot<S::Sampled>>, mut sampler: S) {
        loop {
            let began = Instant::now();
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                answer = timeout(DEADLINE, sampler.ask()) => slot.put(answer.ok().flatten()),
            }
            let pause = self.every.saturating_sub(began.elapsed()).max(began.elapsed() * REST);
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    }
}

/// Everything that is sampled, for those who scrape.
pub(crate) struct Samplers {
    pace: Pace,
    brokers: Arc<Brokers>,
    far: Vec<(Broker, Arc<Slot<BrokerVitals>>)>,
    waiting: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Samplers {
    pub(crate) fn new(pace: Pace, brokers: Arc<Brokers>) -> Self {
        Self { pace, brokers, far: Vec::new(), waiting: Vec::new() }
    }

    /// What the destinations of an outbox share.
    pub(crate) fn outbox(&mut self, outbox: &Arc<Outbox>) -> Arc<Slot<Surroundings>> {
        let slot = Arc::default();
        if let Some(first) = outbox.destinations.first() {
            let sampler = OfOutbox(Opened::new(outbox, &first.name));
            self.waiting.push(Box::pin(self.pace.clone().repeat(Arc::clone(&slot), sampler)));
        }
        slot
    }

    /// A broker; destinations of one that are configured alike share what is sampled.
    pub(crate) fn broker(&mut self, broker: &Broker) -> Arc<Slot<BrokerVitals>> {
        if let Some((_, slot)) = self.far.iter().find(|(known, _)| known == broker) {
            return Arc::clone(slot);
        }
        let slot = Arc::default();
        self.far.push((broker.clone(), Arc::clone(&slot)));
        let sampler = OfBroker::new(broker, &self.brokers);
        self.waiting.push(Box::pin(self.pace.clone().repeat(Arc::clone(&slot), sampler)));
        slot
    }

    /// An outbox, for one of its destinations.
    pub(crate) fn destination(&mut self, outbox: &Arc<Outbox>, seen: &Arc<Seen>) {
        let opened = Opened::new(outbox, &seen.named.destination);
        let sampler = OfDestination { seen: Arc::clone(seen), opened };
        self.waiting.push(Box::pin(self.pace.clone().repeat(Arc::clone(&seen.vitals), sampler)));
    }

    /// Begins to sample; what is never scraped is not sampled.
    pub(crate) fn start(self, components: &mut JoinSet<Result<()>>) {
        for sampler in self.waiting {
            components.spawn(async move {
                sampler.await;
                Ok(())
            });
        }
    }
}

/// Something that is asked again and again.
#[async_trait]
trait Sampler: Send {
    type Sampled: Clone + Send;

    /// `None` is what could not be sampled. Dropped in the middle, it begins anew.
    async fn ask(&mut self) -> Option<Self::Sampled>;
}

/// An outbox for one destination, over connections of its own: counting must not delay a lease.
struct OfDestination {
    seen: Arc<Seen>,
    opened: Opened,
}

#[async_trait]
impl Sampler for OfDestination {
    type Sampled = Vitals;

    async fn ask(&mut self) -> Option<Vitals> {
        if self.seen.phase() != Phase::Running {
            return None;
        }
        let store = self.opened.take().await?;
        let vitals = store.vitals().await;
        self.opened.keep(store, vitals)
    }
}

/// What the destinations of an outbox share.
struct OfOutbox(Opened);

#[async_trait]
impl Sampler for OfOutbox {
    type Sampled = Surroundings;

    async fn ask(&mut self) -> Option<Surroundings> {
        let store = self.0.take().await?;
        let surroundings = store.surroundings().await;
        self.0.keep(store, surroundings)
    }
}

/// A store that is opened when it is first asked, and again after it failed or did not answer in time.
struct Opened {
    outbox: Arc<Outbox>,
    destination: String,
    store: Option<Arc<dyn AnyStore>>,
}

impl Opened {
    fn new(outbox: &Arc<Outbox>, destination: &str) -> Self {
        Self { outbox: Arc::clone(outbox), destination: destination.to_owned(), store: None }
    }

    async fn take(&mut self) -> Option<Arc<dyn AnyStore>> {
        match self.store.take() {
            Some(store) => Some(store),
            None => self.told(store::open(&self.outbox, &self.destination).await),
        }
    }

    /// Keeps a store that answered.
    fn keep<T>(&mut self, store: Arc<dyn AnyStore>, answer: Result<T, StoreError>) -> Option<T> {
        let answer = self.told(answer)?;
        self.store = Some(store);
        Some(answer)
    }

    fn told<T>(&self, answer: Result<T, StoreError>) -> Option<T> {
        let Self { outbox, destination, .. } = self;
        let tell =
            |error: &StoreError| debug!(outbox = %outbox.name, destination, %error, "the outbox cannot be sampled");
        answer.inspect_err(tell).ok()
    }
}

/// A broker.
struct OfBroker {
    broker: Broker,
    brokers: Arc<Brokers>,
    /// The embedded one is asked as soon as a relay has opened it.
    sampler: Option<Arc<dyn SampleBroker>>,
}

impl OfBroker {
    fn new(broker: &Broker, brokers: &Arc<Brokers>) -> Self {
        let sampler: Option<Arc<dyn SampleBroker>> = match broker {
            Broker::Embedded { .. } => None,
            // A configuration that cannot be used ends the relay, which says why.
            Broker::Rabbitmq(config) => RabbitAdmin::new(config.as_ref().clone()).ok().map(|it| Arc::new(it) as _),
            Broker::Nats(config) => NatsSampler::new(config.as_ref().clone()).ok().map(|it| Arc::new(it) as _),
        };
        Self { broker: broker.clone(), brokers: Arc::clone(brokers), sampler }
    }
}

#[async_trait]
impl Sampler for OfBroker {
    type Sampled = BrokerVitals;

    async fn ask(&mut self) -> Option<BrokerVitals> {
        let sampler = self.sampler.clone().or_else(|| self.brokers.embedded(&self.broker))?;
        let tell = |failure: &Failure| debug!(error = failure.describe(), "the broker tells nothing of itself");
        sampler.vitals().await.inspect_err(tell).ok()
    }
}
