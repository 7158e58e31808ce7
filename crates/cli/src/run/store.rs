//! Opening what relays carry messages from and to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use relevo_broker_embedded::{self as embedded, EmbeddedBroker};
use relevo_core::Broker;
use relevo_core::operate::{Inspect, Operate};
use relevo_core::store::{Store, StoreError};
use relevo_store_postgres as postgres;
use relevo_store_sqlite as sqlite;
use tokio::sync::OnceCell;
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

/// The far sides of all relays. A broker's file is opened once, so that its users take turns instead of locking each
/// other out.
#[derive(Debug, Default)]
pub(crate) struct Brokers {
    files: BTreeMap<PathBuf, File>,
}

/// A file of the embedded broker.
#[derive(Debug)]
struct File {
    lock_wait: Duration,
    opened: OnceCell<EmbeddedBroker>,
}

impl Brokers {
    /// What these destinations need; nothing is opened yet.
    pub(crate) fn of<'a>(destinations: impl IntoIterator<Item = &'a config::Destination>) -> Self {
        let mut files = BTreeMap::new();
        for destination in destinations {
            let config::Broker::Embedded { path } = &destination.broker;
            let lock_wait = lock_wait(destination.relay.publish_deadline);
            let file: &mut File =
                files.entry(config::one_spelling(path)).or_insert(File { lock_wait, opened: OnceCell::new() });
            file.lock_wait = file.lock_wait.min(lock_wait);
        }
        Self { files }
    }

    /// The far side of one of them.
    pub(crate) async fn open(&self, broker: &config::Broker) -> Result<Arc<dyn Broker>, Unopened> {
        let config::Broker::Embedded { path } = broker;
        let file = self.files.get(&config::one_spelling(path));
        let opened = match file {
            // Whoever comes second waits for the first, and tries again if that one failed.
            Some(file) => file.opened.get_or_try_init(|| open_file(path, file.lock_wait)).await.cloned(),
            None => open_file(path, embedded::Config::new(path).lock_wait).await,
        };
        Ok(Arc::new(opened.map_err(|error| unopened(path, error))?))
    }
}

/// A lock is given up well before the deadline of the call, also by whoever waits for a connection at most twice as
/// long before: only then is it known to be a lock, rather than an answer that was lost.
fn lock_wait(publish_deadline: Duration) -> Duration {
    publish_deadline / 4
}

async fn open_file(path: &Path, lock_wait: Duration) -> Result<EmbeddedBroker, embedded::Error> {
    EmbeddedBroker::open(embedded::Config { lock_wait, ..embedded::Config::new(path) }).await
}

fn unopened(path: &Path, error: embedded::Error) -> Unopened {
    let passing = matches!(error, embedded::Error::Locked(_) | embedded::Error::DiskFull(_));
    let what = match &error {
        embedded::Error::CannotOpen(_) => format!(
            "the embedded broker `{}`; hint: its directory must exist, and this user may write there",
            path.display()
        ),
        _ => format!("the embedded broker `{}`", path.display()),
    };
    let error = anyhow::Error::new(error).context(what);
    if passing { Unopened::Away(error) } else { Unopened::Wrong(error) }
}
