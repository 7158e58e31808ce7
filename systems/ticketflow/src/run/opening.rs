//! Waits for a database that is unreachable at startup.

use std::time::Duration;

use anyhow::Result;
use relevo::core::store::StoreError;
use tokio::time::sleep;
use tracing::warn;

use crate::desk::DeskError;

/// The maximum pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Retries until it succeeds, or fails with an error that waiting cannot fix.
pub(super) async fn patiently<T, F: Future<Output = Result<T>>>(what: &str, mut open: impl FnMut() -> F) -> Result<T> {
    let mut pause = Duration::from_millis(100);
    loop {
        match open().await {
            Err(error) if is_passing(&error) => {
                warn!(error = format!("{error:#}"), "{what} is unreachable, will retry");
            }
            done => return done,
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn is_passing(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref().is_some_and(StoreError::is_retryable)
            || matches!(cause.downcast_ref(), Some(DeskError::Away(_)))
            || matches!(cause.downcast_ref(), Some(sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut))
    })
}
