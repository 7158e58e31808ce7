//! The registration of this adapter.

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::adapter::{AdapterConfig, BrokerAdapter, LaneMismatch};
use relevo_core::broker::sample::BrokerMonitor;
use relevo_core::inbox::retention_check::RedeliveryWindow;
use relevo_core::replay_source::{ReplaySource, ReplaySourceError};
use relevo_core::{Broker, BrokerAdmin, BrokerConsumer, Class, ConsumerOptions, Failure};
use relevo_sqlite_file::canonical_path;
use tokio::sync::Mutex;

use crate::classify::Error;
use crate::config::Config;
use crate::publish::{BrokerFile, BrokerInner};

/// A configured broker file. Its consumers and replays in this process share one handle, so that they take turns instead
/// of waiting for each other's locks. A publisher has a handle of its own, with its own lock timeout.
pub struct Adapter {
    config: Config,
    open_file: Mutex<Weak<BrokerInner>>,
}

/// The file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the embedded broker `{}`{hint}", path.display())]
struct OpenError {
    path: PathBuf,
    hint: &'static str,
    source: Error,
}

impl Adapter {
    /// The configuration.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The handle of consumers and replays.
    async fn shared_file(&self) -> Result<BrokerFile, Failure> {
        let mut open_file = self.open_file.lock().await;
        if let Some(inner) = open_file.upgrade() {
            return Ok(BrokerFile(inner));
        }
        let file = self.open_with(self.config.busy_timeout).await?;
        *open_file = Arc::downgrade(&file.0);
        Ok(file)
    }

    async fn open_with(&self, busy_timeout: Duration) -> Result<BrokerFile, Failure> {
        let opened = BrokerFile::open(Config { busy_timeout, ..self.config.clone() }).await;
        opened.map_err(|error| open_failure(&self.config.path, error))
    }
}

/// At the first open, a missing directory is a wrong configuration: waiting does not help.
fn open_failure(path: &Path, source: Error) -> Failure {
    let class = match &source {
        Error::Locked(_) | Error::DiskFull(_) => Class::Outage,
        _ => Class::Blocked,
    };
    let hint = match &source {
        Error::CannotOpen(_) => "; hint: its directory must exist, and this user may write there",
        _ => "",
    };
    Failure::new(class, OpenError { path: path.to_owned(), hint, source })
}

impl AdapterConfig for Config {
    const KIND: &'static str = "embedded";
    const EXAMPLE: &'static str = "\
# The SQLite file of the broker. It is created if it does not exist.
path = \"relevo-broker.db\"
";

    fn adapter(self) -> Result<Arc<dyn BrokerAdapter>, Failure> {
        Ok(Arc::new(Adapter { config: self, open_file: Mutex::default() }))
    }
}

#[async_trait]
impl BrokerAdapter for Adapter {
    fn kind(&self) -> &'static str {
        Config::KIND
    }

    fn location(&self) -> String {
        canonical_path(&self.config.path).display().to_string()
    }

    fn source(&self) -> &str {
        &self.config.source
    }

    fn is_same_broker(&self, other: &dyn BrokerAdapter) -> bool {
        let other: &dyn Any = other;
        let comparable = |config: &Config| Config { path: canonical_path(&config.path), ..config.clone() };
        other.downcast_ref::<Self>().is_some_and(|other| comparable(&other.config) == comparable(&self.config))
    }

    fn reserved_header(&self, _name: &str) -> Option<&'static str> {
        None
    }

    fn check_lanes(&self, _addresses: &[String]) -> Vec<LaneMismatch> {
        // The lanes of a group are part of the file, and published addresses contain no lane.
        Vec::new()
    }

    fn redelivery_windows(&self) -> Vec<RedeliveryWindow> {
        let Config { path, retention, .. } = &self.config;
        let source = format!("the embedded broker `{}`", path.display());
        vec![RedeliveryWindow { source, duration: Some(*retention) }]
    }

    async fn open(&self, publish_timeout: Duration) -> Result<Arc<dyn Broker>, Failure> {
        // A call waits for a connection, which takes up to two lock waits, and then for the lock. It must end before the
        // publish timeout, so that the relay learns that nothing was written.
        Ok(Arc::new(self.open_with(publish_timeout / 4).await?))
    }

    async fn consume(&self, group: &str, options: ConsumerOptions) -> Result<Arc<dyn BrokerConsumer>, Failure> {
        Ok(Arc::new(self.shared_file().await?.consumer(group, options).await?))
    }

    fn admin(&self) -> Result<Option<Box<dyn BrokerAdmin>>, Failure> {
        Ok(None)
    }

    fn monitor(&self) -> Result<Option<Box<dyn BrokerMonitor>>, Failure> {
        Ok(None)
    }

    async fn replay_source(&self, group: &str) -> Result<Box<dyn ReplaySource>, ReplaySourceError> {
        let path = &self.config.path;
        if !path.exists() {
            return Err(ReplaySourceError::NotFound(format!("there is no embedded broker at `{}`", path.display())));
        }
        let file = self.shared_file().await?;
        match file.replay_log(group).await {
            Ok(log) => Ok(Box::new(log)),
            Err(Error::GroupNotFound(_)) => {
                let groups = file.groups().await.map_err(Failure::from)?;
                let names: Vec<String> = groups.into_iter().map(|group| group.name).collect();
                Err(ReplaySourceError::group_not_found(group, &names))
            }
            Err(error) => Err(Failure::from(error).into()),
        }
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Adapter").field(&self.config).finish()
    }
}
