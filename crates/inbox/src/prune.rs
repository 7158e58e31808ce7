//! Deletes expired rows, a limited number at a time.

use std::sync::Arc;

use relevo_core::inbox::Inbox;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::runtime::ConsumerError;
use crate::worker::Worker;

/// Prunes at each interval until `stop` is cancelled, without a pause while more expired rows exist.
pub(crate) async fn run<I: Inbox>(worker: Arc<Worker<I>>, stop: CancellationToken) -> Result<(), ConsumerError> {
    // The first prune runs immediately: it also records the inbox retention.
    loop {
        loop {
            match worker.store_call(worker.inbox.prune(worker.config.prune_batch_max)).await {
                Ok(true) if !stop.is_cancelled() => tokio::task::yield_now().await,
                Ok(_) => break,
                Err(error) if error.is_retryable() => {
                    warn!(error = &error as &dyn std::error::Error, "pruning failed, will retry");
                    break;
                }
                Err(error) => return Err(ConsumerError::Store(error)),
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            () = sleep(worker.config.prune_interval) => {}
        }
    }
}
