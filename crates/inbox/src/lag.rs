//! Polls the consumer lag at the broker in the background, so that no message waits for it.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::inbox::Inbox;
use relevo_core::{BrokerConsumer, Lane};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::runtime::ConsumerError;
use crate::stats::set;
use crate::work::Worker;

/// Polls until `stop` is cancelled. After a failed poll the lag is unknown until the next one succeeds.
pub(crate) async fn run<I: Inbox + 'static>(
    work: Arc<Worker<I>>,
    consumer: Arc<dyn BrokerConsumer>,
    every: Duration,
    stop: CancellationToken,
) -> Result<(), ConsumerError>
where
    I::Transaction: 'static,
{
    let mut failures = 0;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            told = sample_lag(&work, &*consumer) => {
                failures = if told.is_some() { 0 } else { failures + 1 };
                set(&work.status.lag_failures, failures);
                work.status.set_lag(told.unwrap_or_default());
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            () = sleep(every) => {}
        }
    }
}

async fn sample_lag<I: Inbox + 'static>(work: &Worker<I>, consumer: &dyn BrokerConsumer) -> Option<Vec<(Lane, u64)>>
where
    I::Transaction: 'static,
{
    match timeout(work.config.broker_timeout, consumer.lag()).await {
        Ok(Ok(told)) => Some(told),
        Ok(Err(failure)) => {
            debug!(error = %failure.error_chain(), "the broker did not say how much waits");
            None
        }
        Err(_) => {
            debug!("the broker did not say in time how much waits");
            None
        }
    }
}
