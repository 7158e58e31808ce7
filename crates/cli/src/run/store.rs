//! Opening the outboxes that relays carry messages from.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::outbox::RelayStore;
use relevo_core::outbox::admin::OutboxAdmin;
use relevo_core::outbox::inspect::OutboxInspector;
use relevo_core::outbox::sample::OutboxMonitor;
use relevo_core::store::StoreError;
use relevo_store_postgres as postgres;
use relevo_store_sqlite as sqlite;
use tokio::time::timeout;

use crate::config::{self, Database};

/// No server is waited for longer before it counts as away.
const OPEN_DEADLINE: Duration = Duration::from_secs(5);

/// An outbox of any kind, as the daemon needs it.
pub(crate) trait AnyStore: RelayStore + OutboxInspector + OutboxAdmin + OutboxMonitor {}

impl<T: RelayStore + OutboxInspector + OutboxAdmin + OutboxMonitor> AnyStore for T {}

/// Opens an outbox for one destination, which may not exist yet.
pub(crate) async fn open(outbox: &config::Outbox, destination: &str) -> Result<Arc<dyn AnyStore>, StoreError> {
    let opening = async {
        let store: Arc<dyn AnyStore> = match &outbox.database {
            Database::Postgres(options) => {
                let config = postgres::Config {
                    schema: postgres::Schema::new(outbox.schema.clone()),
                    call_timeout: outbox.call_deadline,
                    ..postgres::Config::new(options.as_ref().clone(), destination)
                };
                Arc::new(postgres::Store::open(config).await?)
            }
            Database::Sqlite(path) => {
                let config = sqlite::Config {
                    allow_network_file_system: outbox.allow_network_file_system,
                    ..sqlite::Config::new(path, destination)
                };
                Arc::new(sqlite::Store::open(config).await?)
            }
        };
        Ok(store)
    };
    let opened = timeout(OPEN_DEADLINE, opening).await;
    opened.unwrap_or_else(|_| Err(StoreError::Unavailable(format!("no answer within {OPEN_DEADLINE:?}").into())))
}
