//! Opening what relays carry messages from and to.

use std::sync::Arc;
use std::time::Duration;

use relevo_broker_embedded::{self as embedded, EmbeddedBroker};
use relevo_core::Broker;
use relevo_core::operate::{Inspect, Operate};
use relevo_core::store::{Store, StoreError};
use relevo_store_postgres as postgres;
use relevo_store_sqlite as sqlite;
use tokio::time::timeout;

use crate::config::{self, Database};

/// No server is waited for longer before it counts as away.
const OPEN_DEADLINE: Duration = Duration::from_secs(5);

/// An outbox of any kind, as the daemon needs it.
pub(crate) trait AnyStore: Store + Inspect + Operate {}

impl<T: Store + Inspect + Operate> AnyStore for T {}

/// Opens an outbox for one destination, which may not exist yet.
pub(crate) async fn open(outbox: &config::Outbox, destination: &str) -> Result<Arc<dyn AnyStore>, StoreError> {
    let opening = async {
        let store: Arc<dyn AnyStore> = match &outbox.database {
            Database::Postgres(options) => {
                let config = postgres::Config {
                    schema: postgres::Schema::new(outbox.schema.clone()),
                    call_deadline: outbox.call_deadline,
                    ..postgres::Config::new(options.as_ref().clone(), destination)
                };
                Arc::new(postgres::Store::open(config).await?)
            }
            Database::Sqlite(path) => Arc::new(sqlite::Store::open(sqlite::Config::new(path, destination)).await?),
        };
        Ok(store)
    };
    let opened = timeout(OPEN_DEADLINE, opening).await;
    opened.unwrap_or_else(|_| Err(StoreError::Away(format!("no answer within {OPEN_DEADLINE:?}").into())))
}

/// Why the far side is not open.
pub(crate) enum Unopened {
    /// Waiting may mend it.
    Away(anyhow::Error),
    /// A person must.
    Wrong(anyhow::Error),
}

/// Opens the far side.
pub(crate) async fn broker(broker: &config::Broker) -> Result<Arc<dyn Broker>, Unopened> {
    match broker {
        config::Broker::Embedded { path } => {
            let error = match EmbeddedBroker::open(embedded::Config::new(path)).await {
                Ok(broker) => return Ok(Arc::new(broker)),
                Err(error) => error,
            };
            let passing = matches!(error, embedded::Error::Locked(_) | embedded::Error::DiskFull(_));
            let what = match &error {
                embedded::Error::CannotOpen(_) => format!(
                    "the embedded broker `{}`; hint: its directory must exist, and this user may write there",
                    path.display()
                ),
                _ => format!("the embedded broker `{}`", path.display()),
            };
            let error = anyhow::Error::new(error).context(what);
            Err(if passing { Unopened::Away(error) } else { Unopened::Wrong(error) })
        }
    }
}
