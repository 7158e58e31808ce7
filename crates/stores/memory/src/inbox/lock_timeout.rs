//! Waits for other transactions, for a short time.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use relevo_core::store::StoreError;
use tokio::time::{Instant, timeout_at};

use crate::state::Tables;

/// How long a call waits for another transaction before it returns busy.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Repeats an attempt whenever a transaction has ended, until it succeeds or the time is over. A blocked attempt
/// changes nothing and returns `None`.
pub(crate) async fn with_lock_timeout<T>(
    state: &Mutex<Tables>,
    mut attempt: impl FnMut(&mut Tables) -> Option<T>,
) -> Option<T> {
    let ends = Arc::clone(&state.lock().transaction_ended);
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        let mut end = pin!(ends.notified());
        // Register now, so that no end of a transaction is missed before the await.
        end.as_mut().enable();
        let result = attempt(&mut state.lock());
        if result.is_some() || timeout_at(deadline, end).await.is_err() {
            return result;
        }
    }
}

/// The same for a call whose result has no value for busy.
pub(crate) async fn or_busy_error<T>(
    state: &Mutex<Tables>,
    attempt: impl FnMut(&mut Tables) -> Option<T>,
) -> Result<T, StoreError> {
    let busy = || StoreError::Busy { retry_after: None, source: "another transaction holds the row".into() };
    with_lock_timeout(state, attempt).await.ok_or_else(busy)
}
