//! Samples what only databases and brokers know, so that no scrape has to ask them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use relevo_core::BrokerAdapter;
use relevo_core::broker::sample::{BrokerMonitor, BrokerSample};
use relevo_core::outbox::OutboxOperator;
use relevo_core::outbox::sample::{DestinationSample, OutboxSample};
use relevo_core::store::StoreError;
use relevo_observe::{LastSample, RelayMonitor, RelayPhase};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::config::Outbox;
use crate::error_report::ErrorReport;

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
    /// Asks again and again until it is told to stop. The same news again is no news.
    async fn repeat<S: Sampler>(self, slot: Arc<LastSample<S::Sampled>>, mut sampler: S) {
        let mut failing = false;
        loop {
            let began = Instant::now();
            let answer = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                answer = timeout(DEADLINE, sampler.ask()) => answer,
            };
            let answer = answer.unwrap_or_else(|_| Err(format!("it has not answered within {DEADLINE:?}")));
            let what = sampler.what();
            match &answer {
                Err(error) if failing => debug!(what, error, "still cannot be sampled"),
                Err(error) => warn!(what, error, "cannot be sampled: what was last known of it is told for a minute"),
                Ok(Some(_)) if failing => info!(what, "can be sampled again"),
                Ok(_) => {}
            }
            failing = answer.as_ref().map_or(true, |sampled| failing && sampled.is_none());
            match answer {
                Ok(None) => slot.clear(),
                answer => slot.set(answer.ok().flatten()),
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

/// A broker and its last sample.
type SampledBroker = (Arc<dyn BrokerAdapter>, Arc<LastSample<BrokerSample>>);

/// Everything that is sampled, for those who scrape.
pub(crate) struct Samplers {
    pace: Pace,
    far: Vec<SampledBroker>,
    waiting: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Samplers {
    pub(crate) fn new(pace: Pace) -> Self {
        Self { pace, far: Vec::new(), waiting: Vec::new() }
    }

    /// What the destinations of an outbox share.
    pub(crate) fn outbox(&mut self, outbox: &Arc<Outbox>) -> Arc<LastSample<OutboxSample>> {
        let slot = Arc::default();
        if let Some(first) = outbox.destinations.first() {
            let sampler = OfOutbox(Opened::new(outbox, &first.name));
            self.waiting.push(Box::pin(self.pace.clone().repeat(Arc::clone(&slot), sampler)));
        }
        slot
    }

    /// A broker; destinations of one that are configured alike share what is sampled.
    pub(crate) fn broker(&mut self, broker: &Arc<dyn BrokerAdapter>) -> Arc<LastSample<BrokerSample>> {
        if let Some((_, slot)) = self.far.iter().find(|(known, _)| known.is_same_broker(&**broker)) {
            return Arc::clone(slot);
        }
        let slot = Arc::default();
        self.far.push((Arc::clone(broker), Arc::clone(&slot)));
        let sampler = OfBroker::new(&**broker);
        self.waiting.push(Box::pin(self.pace.clone().repeat(Arc::clone(&slot), sampler)));
        slot
    }

    /// An outbox, for one of its destinations.
    pub(crate) fn destination(&mut self, outbox: &Arc<Outbox>, relay: &Arc<RelayMonitor>) {
        let opened = Opened::new(outbox, &relay.labels().destination);
        let sampler = OfDestination { relay: Arc::clone(relay), opened };
        self.waiting.push(Box::pin(self.pace.clone().repeat(Arc::clone(&relay.samples().destination), sampler)));
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

    /// What is asked, for people.
    fn what(&self) -> String;

    /// `None` while there is nothing to ask yet; an error says why it could not be sampled. Dropped in the middle, it begins
    /// anew.
    async fn ask(&mut self) -> Result<Option<Self::Sampled>, String>;
}

/// An outbox for one destination, over connections of its own: counting must not delay a lease.
struct OfDestination {
    relay: Arc<RelayMonitor>,
    opened: Opened,
}

#[async_trait]
impl Sampler for OfDestination {
    type Sampled = DestinationSample;

    fn what(&self) -> String {
        format!("outbox `{}` for destination `{}`", self.opened.outbox.name, self.opened.destination)
    }

    /// Whatever the relay waits for: what piles up meanwhile is what people want to know.
    async fn ask(&mut self) -> Result<Option<DestinationSample>, String> {
        let phase = self.relay.phase();
        if phase == RelayPhase::Stopped {
            return Ok(None);
        }
        let store = self.opened.take().await?;
        // A relay adds its destination once its broker is there.
        if phase != RelayPhase::Running && !self.opened.is_known(&*store).await? {
            self.opened.store = Some(store);
            return Ok(None);
        }
        let vitals = store.sample_destination(&self.opened.destination).await;
        self.opened.keep(store, vitals)
    }
}

/// What the destinations of an outbox share.
struct OfOutbox(Opened);

#[async_trait]
impl Sampler for OfOutbox {
    type Sampled = OutboxSample;

    fn what(&self) -> String {
        format!("what the destinations of outbox `{}` share", self.0.outbox.name)
    }

    async fn ask(&mut self) -> Result<Option<OutboxSample>, String> {
        let store = self.0.take().await?;
        let surroundings = store.sample_outbox().await;
        self.0.keep(store, surroundings)
    }
}

/// An outbox that is opened when it is first asked, and again after it failed or did not answer in time.
struct Opened {
    outbox: Arc<Outbox>,
    destination: String,
    store: Option<Arc<dyn OutboxOperator>>,
}

impl Opened {
    fn new(outbox: &Arc<Outbox>, destination: &str) -> Self {
        Self { outbox: Arc::clone(outbox), destination: destination.to_owned(), store: None }
    }

    async fn take(&mut self) -> Result<Arc<dyn OutboxOperator>, String> {
        match self.store.take() {
            Some(store) => Ok(store),
            None => {
                let (store, timeout) = (&self.outbox.store, self.outbox.store.call_timeout());
                Ok(store.open_operator(timeout).await.map_err(told)?)
            }
        }
    }

    /// Whether the outbox has the destination.
    async fn is_known(&self, store: &dyn OutboxOperator) -> Result<bool, String> {
        let known = store.destinations().await.map_err(told)?;
        Ok(known.iter().any(|it| it.name == self.destination))
    }

    /// Keeps a store that answered.
    fn keep<T>(&mut self, store: Arc<dyn OutboxOperator>, answer: Result<T, StoreError>) -> Result<Option<T>, String> {
        let answer = answer.map_err(told)?;
        self.store = Some(store);
        Ok(Some(answer))
    }
}

fn told(error: StoreError) -> String {
    ErrorReport::of(&error.into()).error().to_owned()
}

/// A broker.
struct OfBroker {
    kind: &'static str,
    /// `None` if it has nothing to sample.
    monitor: Option<Box<dyn BrokerMonitor>>,
}

impl OfBroker {
    fn new(broker: &dyn BrokerAdapter) -> Self {
        // A configuration that cannot be used ends the relay, which says why.
        Self { kind: broker.kind(), monitor: broker.monitor().ok().flatten() }
    }
}

#[async_trait]
impl Sampler for OfBroker {
    type Sampled = BrokerSample;

    fn what(&self) -> String {
        format!("the broker ({})", self.kind)
    }

    async fn ask(&mut self) -> Result<Option<BrokerSample>, String> {
        let Some(monitor) = &self.monitor else { return Ok(None) };
        monitor.sample().await.map(Some).map_err(|failure| failure.error_chain())
    }
}
