//! Wakes waiting consumers when messages may be available.

use std::sync::Arc;

use sqlx::SqlitePool;
use tokio::sync::{Notify, futures::OwnedNotified};

use crate::classify::Error;

/// Notifies consumers of the same process at once. Consumers of other processes detect that the file changed.
#[derive(Debug)]
pub(crate) struct Wake {
    stirred: Arc<Notify>,
    watch: SqlitePool,
}

impl Wake {
    /// `watch` has one connection, which never writes.
    pub(crate) fn new(watch: SqlitePool) -> Self {
        Self { stirred: Arc::default(), watch }
    }

    /// Notifies consumers that a message was published or returned, or that a lane was released.
    pub(crate) fn stir(&self) {
        self.stirred.notify_waiters();
    }

    /// Completes at the next [`stir`](Self::stir) after this call.
    pub(crate) fn stirred(&self) -> OwnedNotified {
        Arc::clone(&self.stirred).notified_owned()
    }

    /// A number that changes whenever another connection commits.
    pub(crate) async fn version(&self) -> Result<i64, Error> {
        Ok(sqlx::query_scalar("PRAGMA data_version").fetch_one(&self.watch).await?)
    }
}
