//! Deletes expired rows, a limited number at a time.

use std::sync::Arc;

use relevo_core::inbox::Inbox;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::runtime::ConsumerError;
use crate::work::Worker;

/// Prunes at each interval until `stop` is cancelled, without a pause while more expired rows exist.
pub(crate) async fn run<I: Inbox + 'static>(work: Arc<Worker<I>>, stop: CancellationToken) -> Result<(), ConsumerError>
where
    I::Transaction: 'static,
{
    // The first prune runs immediately: it also records the inbox retention.
    loop {
        loop {
            match work.store_call(work.inbox.prune(work.config.prune_batch_max)).await {
                Ok(true) if !stop.is_cancelled() => tokio::task::yield_now().await,
                Ok(_) => break,
                Err(error) if error.is_retryable() => {
                    warn!(error = &error as &dyn std::error::Error, "nothing was pruned, will try again");
                    break;
                }
                Err(error) => return Err(ConsumerError::Store(error)),
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            () = sleep(work.config.prune_interval) => {}
        }
    }
}
