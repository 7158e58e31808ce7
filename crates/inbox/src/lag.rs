//! Polls the consumer lag at the broker in the background, so that no message waits for it.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::inbox::Inbox;
use relevo_core::{BrokerConsumer, Lane};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::runtime::ConsumerError;
use crate::status::set;
use crate::worker::Worker;

/// Polls until `stop` is cancelled. After a failed poll the lag is unknown until the next one succeeds.
pub(crate) async fn run<I: Inbox>(
    worker: Arc<Worker<I>>,
    consumer: Arc<dyn BrokerConsumer>,
    interval: Duration,
    stop: CancellationToken,
) -> Result<(), ConsumerError> {
    let mut failures = 0;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            lag = sample_lag(&worker, &*consumer) => {
                failures = if lag.is_some() { 0 } else { failures + 1 };
                set(&worker.status.lag_failures, failures);
                worker.status.set_lag(lag.unwrap_or_default());
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            () = sleep(interval) => {}
        }
    }
}

async fn sample_lag<I: Inbox>(worker: &Worker<I>, consumer: &dyn BrokerConsumer) -> Option<Vec<(Lane, u64)>> {
    match timeout(worker.config.broker_timeout, consumer.lag()).await {
        Ok(Ok(lag)) => Some(lag),
        Ok(Err(failure)) => {
            debug!(error = %failure.error_chain(), "reading the lag failed");
            None
        }
        Err(_) => {
            debug!("reading the lag timed out");
            None
        }
    }
}
