//! Opening the outboxes that relays carry messages from.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::outbox::{OutboxOperator, RelayStore};
use relevo_core::store::StoreError;
use relevo_store_postgres as postgres;
use relevo_store_sqlite as sqlite;
use tokio::time::timeout;

use crate::config::{self, Database};

/// No server is waited for longer before it counts as away.
const OPEN_DEADLINE: Duration = Duration::from_secs(5);

/// Opens an outbox for one destination, which may not exist yet.
pub(crate) async fn open(outbox: &config::Outbox, destination: &str) -> Result<Arc<dyn RelayStore>, StoreError> {
    within_deadline(async {
        let store: Arc<dyn RelayStore> = match &outbox.database {
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
    })
    .await
}

/// Opens an outbox for what a start and its samples ask.
pub(crate) async fn operator(outbox: &config::Outbox) -> Result<Arc<dyn OutboxOperator>, StoreError> {
    within_deadline(async {
        let operator: Arc<dyn OutboxOperator> = match &outbox.database {
            Database::Postgres(options) => {
                let config = postgres::OperatorConfig {
                    schema: postgres::Schema::new(outbox.schema.clone()),
                    call_timeout: outbox.call_deadline,
                    ..postgres::OperatorConfig::new(options.as_ref().clone())
                };
                Arc::new(postgres::Operator::open(config).await?)
            }
            Database::Sqlite(path) => {
                let config = sqlite::OperatorConfig {
                    allow_network_file_system: outbox.allow_network_file_system,
                    ..sqlite::OperatorConfig::new(path)
                };
                Arc::new(sqlite::Operator::open(config).await?)
            }
        };
        Ok(operator)
    })
    .await
}

async fn within_deadline<T>(opening: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let opened = timeout(OPEN_DEADLINE, opening).await;
    opened.unwrap_or_else(|_| Err(StoreError::Unavailable(format!("no answer within {OPEN_DEADLINE:?}").into())))
}
