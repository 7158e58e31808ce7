//! From the queue to the collector, in the background.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use relevo_core::Traces;
use relevo_core::trace::{About, Recorder, Span};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::http::{ConfigError, Http};
use super::queue::Queue;
use super::{Config, Counts, otlp};

/// The longest pause while the collector is away.
const AWAY_MAX: Duration = Duration::from_secs(30);

/// Sends spans to a collector.
pub struct Exporter {
    config: Config,
    http: Http,
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    failures: u32,
}

impl Exporter {
    /// Nothing is sent before it runs.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        for (name, value) in [("queue_max", config.queue_max), ("batch_max", config.batch_max)] {
            if value == 0 {
                return Err(ConfigError::Zero(name));
            }
        }
        let http = Http::new(&config.endpoint, config.deadline)?;
        let counts = Arc::<Counts>::default();
        let queue = Queue::new(config.queue_max, config.batch_max, config.sample, Arc::clone(&counts));
        Ok(Self { config, http, queue: Arc::new(queue), counts, failures: 0 })
    }

    /// What a relay, a consumer or an outbox is given; its spans have these attributes.
    pub fn traces(&self, about: About) -> Traces {
        Traces::new(Arc::clone(&self.queue) as Arc<dyn Recorder>, about)
    }

    /// What became of spans; stays valid when the exporter is gone.
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Sends what comes until `stop` is cancelled, and then what has come by then. Whoever stops it does so when what it tells
    /// of has ended, and waits as long as spans are worth.
    pub async fn run(mut self, stop: CancellationToken) {
        while self.gather(&stop).await {
            let batch = self.queue.take();
            if !self.send(batch).await {
                self.rest(&stop).await;
            }
        }
        self.queue.close();
        loop {
            let batch = self.queue.take();
            // A collector that refused once would cost the same time again.
            if batch.is_empty() || !self.send(batch).await {
                break;
            }
        }
        Counts::add(&self.counts.dropped, self.queue.len());
    }

    /// Waits until there is a batch to send; `false` when it is time to stop.
    async fn gather(&self, stop: &CancellationToken) -> bool {
        while self.queue.len() == 0 {
            if stop.run_until_cancelled(self.queue.worth_a_look()).await.is_none() {
                return false;
            }
        }
        let until = Instant::now() + self.config.every;
        while self.queue.len() < self.queue.batch() {
            tokio::select! {
                biased;
                () = stop.cancelled() => return false,
                () = sleep_until(until) => return true,
                () = self.queue.worth_a_look() => {}
            }
        }
        !stop.is_cancelled()
    }

    /// Whether the collector took them.
    async fn send(&mut self, batch: Vec<Span>) -> bool {
        let spans = batch.len();
        let body = otlp::request(&self.config.service, batch).encode_to_vec();
        match self.http.post(body).await {
            Ok(answer) => {
                let rejected = otlp::rejected(&answer).min(spans);
                Counts::add(&self.counts.exported, spans - rejected);
                Counts::add(&self.counts.dropped, rejected);
                if std::mem::take(&mut self.failures) > 0 {
                    info!(endpoint = self.config.endpoint, "the collector takes spans again");
                }
                true
            }
            Err(error) => {
                Counts::add(&self.counts.dropped, spans);
                // Once an outage: whoever wants the number has the metric.
                if self.failures == 0 {
                    warn!(
                        endpoint = self.config.endpoint,
                        error, "the collector does not take spans, they are dropped"
                    );
                }
                self.failures = self.failures.saturating_add(1);
                false
            }
        }
    }

    /// Lets a collector that is away be. What comes meanwhile fills the queue, and then is dropped.
    async fn rest(&self, stop: &CancellationToken) {
        let pause = self.config.every.saturating_mul(1 << self.failures.min(6)).min(AWAY_MAX);
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = sleep(pause) => {}
        }
    }
}

impl Drop for Exporter {
    /// What is told to nobody is counted.
    fn drop(&mut self) {
        self.queue.close();
    }
}
