//! Telling waiting consumers that there may be something.

use std::sync::Arc;

use sqlx::SqlitePool;
use tokio::sync::{Notify, futures::OwnedNotified};

use crate::classify::Error;

/// Wakes consumers of the same process at once; those of other processes see that the file changed.
#[derive(Debug)]
pub(crate) struct Wake {
    stirred: Arc<Notify>,
    watch: SqlitePool,
}

impl Wake {
    /// `watch` has one connection, and nobody writes with it.
    pub(crate) fn new(watch: SqlitePool) -> Self {
        Self { stirred: Arc::default(), watch }
    }

    /// Something was published, given back or made ready.
    pub(crate) fn stir(&self) {
        self.stirred.notify_waiters();
    }

    /// Ready at the next [`stir`](Self::stir) after this call.
    pub(crate) fn stirred(&self) -> OwnedNotified {
        Arc::clone(&self.stirred).notified_owned()
    }

    /// A number that is another one after any other connection has committed.
    pub(crate) async fn version(&self) -> Result<i64, Error> {
        Ok(sqlx::query_scalar("PRAGMA data_version").fetch_one(&self.watch).await?)
    }
}
