//! Wakes waiting consumers when messages may be available.

use std::sync::Arc;

use sqlx::SqlitePool;
use tokio::sync::{Notify, futures::OwnedNotified};

use crate::classify::Error;

/// Notifies consumers of the same process at once. Consumers of other processes detect that the file changed.
#[derive(Debug)]
pub(crate) struct ChangeNotifier {
    notify: Arc<Notify>,
    watch_pool: SqlitePool,
}

impl ChangeNotifier {
    /// `watch` has one connection, which never writes.
    pub(crate) fn new(watch_pool: SqlitePool) -> Self {
        Self { notify: Arc::default(), watch_pool }
    }

    /// Notifies consumers that a message was published or returned, or that a lane was released.
    pub(crate) fn notify(&self) {
        self.notify.notify_waiters();
    }

    /// Completes at the next [`stir`](Self::notify) after this call.
    pub(crate) fn notified(&self) -> OwnedNotified {
        Arc::clone(&self.notify).notified_owned()
    }

    /// A number that changes whenever another connection commits.
    pub(crate) async fn data_version(&self) -> Result<i64, Error> {
        Ok(sqlx::query_scalar("PRAGMA data_version").fetch_one(&self.watch_pool).await?)
    }
}
