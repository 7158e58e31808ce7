//! Samples databases and brokers, so that no scrape sends requests to them.

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

use crate::config::OutboxConfig;
use crate::error_report::ErrorReport;

/// The time limit of a sample.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Samples take at most a tenth of the time: the pause is this many times as long as the sample.
const REST: u32 = 10;

/// How often samples are taken, and until when.
#[derive(Clone)]
pub(crate) struct SampleLoop {
    pub(crate) interval: Duration,
    pub(crate) stop: CancellationToken,
}

impl SampleLoop {
    /// Samples until `stop` is cancelled. The same failure is logged once.
    async fn repeat<S: Sampler>(self, slot: Arc<LastSample<S::Sampled>>, mut sampler: S) {
        let mut failing = false;
        loop {
            let began = Instant::now();
            let answer = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                answer = timeout(TIMEOUT, sampler.sample()) => answer,
            };
            let answer = answer.unwrap_or_else(|_| Err(format!("no response within {TIMEOUT:?}")));
            let what = sampler.what();
            match &answer {
                Err(error) if failing => debug!(what, error, "still cannot be sampled"),
                Err(error) => warn!(what, error, "cannot be sampled: the last sample is exported for a minute"),
                Ok(Some(_)) if failing => info!(what, "can be sampled again"),
                Ok(_) => {}
            }
            failing = answer.as_ref().map_or(true, |sampled| failing && sampled.is_none());
            match answer {
                Ok(None) => slot.clear(),
                answer => slot.set(answer.ok().flatten()),
            }
            let pause = self.interval.saturating_sub(began.elapsed()).max(began.elapsed() * REST);
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

/// All samplers of a process.
pub(crate) struct SampleLoops {
    sample_loop: SampleLoop,
    brokers: Vec<SampledBroker>,
    waiting: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl SampleLoops {
    pub(crate) fn new(sample_loop: SampleLoop) -> Self {
        Self { sample_loop, brokers: Vec::new(), waiting: Vec::new() }
    }

    /// The sample that the destinations of an outbox share.
    pub(crate) fn outbox(&mut self, outbox: &Arc<OutboxConfig>) -> Arc<LastSample<OutboxSample>> {
        let slot = Arc::default();
        if let Some(first) = outbox.destinations.first() {
            let sampler = OutboxSampler(OperatorConnection::new(outbox, &first.name));
            self.waiting.push(Box::pin(self.sample_loop.clone().repeat(Arc::clone(&slot), sampler)));
        }
        slot
    }

    /// A broker. Destinations with the same broker and the same settings share a sample.
    pub(crate) fn broker(&mut self, broker: &Arc<dyn BrokerAdapter>) -> Arc<LastSample<BrokerSample>> {
        if let Some((_, slot)) = self.brokers.iter().find(|(known, _)| known.is_same_broker(&**broker)) {
            return Arc::clone(slot);
        }
        let slot = Arc::default();
        self.brokers.push((Arc::clone(broker), Arc::clone(&slot)));
        let sampler = BrokerSampler::new(&**broker);
        self.waiting.push(Box::pin(self.sample_loop.clone().repeat(Arc::clone(&slot), sampler)));
        slot
    }

    /// An outbox, for one of its destinations.
    pub(crate) fn destination(&mut self, outbox: &Arc<OutboxConfig>, relay: &Arc<RelayMonitor>) {
        let opened = OperatorConnection::new(outbox, &relay.labels().destination);
        let sampler = DestinationSampler { relay: Arc::clone(relay), opened };
        self.waiting.push(Box::pin(self.sample_loop.clone().repeat(Arc::clone(&relay.samples().destination), sampler)));
    }

    /// Starts sampling. Without an admin port nothing is sampled.
    pub(crate) fn start(self, components: &mut JoinSet<Result<()>>) {
        for sampler in self.waiting {
            components.spawn(async move {
                sampler.await;
                Ok(())
            });
        }
    }
}

/// Takes samples of one database or broker.
#[async_trait]
trait Sampler: Send {
    type Sampled: Clone + Send;

    /// Its subject, for logs.
    fn what(&self) -> String;

    /// `None` while there is nothing to sample. A cancelled call starts from the beginning next time.
    async fn sample(&mut self) -> Result<Option<Self::Sampled>, String>;
}

/// An outbox for one destination. It has its own connection, because counting must not delay a lease.
struct DestinationSampler {
    relay: Arc<RelayMonitor>,
    opened: OperatorConnection,
}

#[async_trait]
impl Sampler for DestinationSampler {
    type Sampled = DestinationSample;

    fn what(&self) -> String {
        format!("outbox `{}` for destination `{}`", self.opened.outbox.name, self.opened.destination)
    }

    /// Also while the relay waits for its broker: operators need the backlog then.
    async fn sample(&mut self) -> Result<Option<DestinationSample>, String> {
        let phase = self.relay.phase();
        if phase == RelayPhase::Stopped {
            return Ok(None);
        }
        let store = self.opened.take().await?;
        // A relay adds its destination after the check of its broker.
        if phase != RelayPhase::Running && !self.opened.is_known(&*store).await? {
            self.opened.store = Some(store);
            return Ok(None);
        }
        let sample = store.sample_destination(&self.opened.destination).await;
        self.opened.keep(store, sample)
    }
}

/// The sample that the destinations of an outbox share.
struct OutboxSampler(OperatorConnection);

#[async_trait]
impl Sampler for OutboxSampler {
    type Sampled = OutboxSample;

    fn what(&self) -> String {
        format!("outbox `{}`", self.0.outbox.name)
    }

    async fn sample(&mut self) -> Result<Option<OutboxSample>, String> {
        let store = self.0.take().await?;
        let sample = store.sample_outbox().await;
        self.0.keep(store, sample)
    }
}

/// An outbox. It is opened for the first sample, and again after a failure.
struct OperatorConnection {
    outbox: Arc<OutboxConfig>,
    destination: String,
    store: Option<Arc<dyn OutboxOperator>>,
}

impl OperatorConnection {
    fn new(outbox: &Arc<OutboxConfig>, destination: &str) -> Self {
        Self { outbox: Arc::clone(outbox), destination: destination.to_owned(), store: None }
    }

    async fn take(&mut self) -> Result<Arc<dyn OutboxOperator>, String> {
        if let Some(store) = self.store.take() {
            return Ok(store);
        }
        let (store, timeout) = (&self.outbox.store, self.outbox.store.call_timeout());
        Ok(store.open_operator(timeout).await.map_err(error_text)?)
    }

    /// Whether the outbox has the destination.
    async fn is_known(&self, store: &dyn OutboxOperator) -> Result<bool, String> {
        let known = store.destinations().await.map_err(error_text)?;
        Ok(known.iter().any(|it| it.name == self.destination))
    }

    /// Keeps the connection if the call succeeded.
    fn keep<T>(&mut self, store: Arc<dyn OutboxOperator>, result: Result<T, StoreError>) -> Result<Option<T>, String> {
        let sample = result.map_err(error_text)?;
        self.store = Some(store);
        Ok(Some(sample))
    }
}

fn error_text(error: StoreError) -> String {
    ErrorReport::of(&error.into()).error().to_owned()
}

/// Samples a broker.
struct BrokerSampler {
    kind: &'static str,
    /// `None` if it has nothing to sample.
    monitor: Option<Box<dyn BrokerMonitor>>,
}

impl BrokerSampler {
    fn new(broker: &dyn BrokerAdapter) -> Self {
        // The relay reports a configuration that cannot be used.
        Self { kind: broker.kind(), monitor: broker.monitor().ok().flatten() }
    }
}

#[async_trait]
impl Sampler for BrokerSampler {
    type Sampled = BrokerSample;

    fn what(&self) -> String {
        format!("the broker ({})", self.kind)
    }

    async fn sample(&mut self) -> Result<Option<BrokerSample>, String> {
        let Some(monitor) = &self.monitor else { return Ok(None) };
        monitor.sample().await.map(Some).map_err(|failure| failure.error_chain())
    }
}
