//! Sends spans from the queue to the collector, in the background.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use relevo_core::Tracer;
use relevo_core::trace::{CommonAttributes, SpanData, SpanRecorder};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::http::{ConfigError, Http};
use super::queue::Queue;
use super::{Config, SpanCounts, otlp};

/// Maximum pause while the collector is unreachable.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Sends spans to a collector.
pub struct Exporter {
    config: Config,
    http: Http,
    queue: Arc<Queue>,
    counts: Arc<SpanCounts>,
    failures: u32,
}

impl Exporter {
    /// Creates an exporter. It sends nothing until it runs.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        for (name, value) in [("queue_max", config.queue_max), ("batch_max", config.batch_max)] {
            if value == 0 {
                return Err(ConfigError::Zero(name));
            }
        }
        let http = Http::new(&config.endpoint, config.deadline)?;
        let counts = Arc::<SpanCounts>::default();
        let queue = Queue::new(config.queue_max, config.batch_max, config.sample, Arc::clone(&counts));
        Ok(Self { config, http, queue: Arc::new(queue), counts, failures: 0 })
    }

    /// Traces for a relay, a consumer or an outbox. Their spans have these attributes.
    pub fn traces(&self, about: CommonAttributes) -> Tracer {
        Tracer::new(Arc::clone(&self.queue) as Arc<dyn SpanRecorder>, about)
    }

    /// The counters of spans. They stay valid after the exporter is dropped.
    pub fn counts(&self) -> Arc<SpanCounts> {
        Arc::clone(&self.counts)
    }

    /// Sends spans until `stop` is cancelled, then sends those that are still queued. Cancel `stop` after the traced
    /// components have ended, and limit how long you wait for the rest.
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
            // After one failure, a further attempt would cost the same time again.
            if batch.is_empty() || !self.send(batch).await {
                break;
            }
        }
        SpanCounts::add(&self.counts.dropped, self.queue.len());
    }

    /// Waits until there is a batch to send. Returns `false` when it is time to stop.
    async fn gather(&self, stop: &CancellationToken) -> bool {
        while self.queue.len() == 0 {
            if stop.run_until_cancelled(self.queue.ready()).await.is_none() {
                return false;
            }
        }
        let until = Instant::now() + self.config.every;
        while self.queue.len() < self.queue.batch() {
            tokio::select! {
                biased;
                () = stop.cancelled() => return false,
                () = sleep_until(until) => return true,
                () = self.queue.ready() => {}
            }
        }
        !stop.is_cancelled()
    }

    /// Sends a batch. Returns whether the collector accepted it.
    async fn send(&mut self, batch: Vec<SpanData>) -> bool {
        let spans = batch.len();
        let body = otlp::request(&self.config.service, batch).encode_to_vec();
        match self.http.post(body).await {
            Ok(response) => {
                let rejected = otlp::rejected(&response).min(spans);
                SpanCounts::add(&self.counts.exported, spans - rejected);
                SpanCounts::add(&self.counts.dropped, rejected);
                if std::mem::take(&mut self.failures) > 0 {
                    info!(endpoint = self.config.endpoint, "the collector accepts spans again");
                }
                true
            }
            Err(error) => {
                SpanCounts::add(&self.counts.dropped, spans);
                // Logged once per outage: the metric has the number.
                if self.failures == 0 {
                    warn!(
                        endpoint = self.config.endpoint,
                        error, "the collector does not accept spans, they are dropped"
                    );
                }
                self.failures = self.failures.saturating_add(1);
                false
            }
        }
    }

    /// Pauses while the collector is unreachable. Spans that arrive meanwhile fill the queue, and are then dropped.
    async fn rest(&self, stop: &CancellationToken) {
        let pause = self.config.every.saturating_mul(1 << self.failures.min(6)).min(PAUSE_MAX);
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = sleep(pause) => {}
        }
    }
}

impl Drop for Exporter {
    /// Spans that arrive after this are counted as dropped.
    fn drop(&mut self) {
        self.queue.close();
    }
}
