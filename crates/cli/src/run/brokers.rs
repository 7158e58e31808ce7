//! The far sides of all relays: each opened once, however many destinations it has.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use relevo_broker_embedded::{self as embedded, BrokerFile};
use relevo_broker_nats as nats;
use relevo_broker_rabbitmq as rabbitmq;
use relevo_core::Broker;
use tokio::sync::OnceCell;

use crate::config;
use crate::exit::usage;

/// Why the far side is not open.
pub(crate) enum Unopened {
    /// Waiting may mend it.
    Away(anyhow::Error),
    /// A person must.
    Wrong(anyhow::Error),
}

/// The far sides of all relays. A broker's file is opened once, so that its users take turns instead of locking each
/// other out; destinations of a server that are configured alike share one connection.
#[derive(Default)]
pub(crate) struct Brokers {
    files: BTreeMap<PathBuf, File>,
    rabbits: Vec<(rabbitmq::Config, OnceCell<rabbitmq::Publisher>)>,
    streams: Vec<(nats::Config, OnceCell<nats::Publisher>)>,
}

/// A file of the embedded broker.
struct File {
    lock_wait: Duration,
    allow_network_file_system: bool,
    opened: OnceCell<BrokerFile>,
}

impl Brokers {
    /// What these destinations need; nothing is opened yet.
    pub(crate) fn of<'a>(destinations: impl IntoIterator<Item = &'a config::Destination>) -> Self {
        let mut brokers = Self::default();
        for destination in destinations {
            match &destination.broker {
                config::Broker::Embedded { path, allow_network_file_system } => {
                    let lock_wait = lock_wait(destination.relay.publish_timeout);
                    let allow_network_file_system = *allow_network_file_system;
                    let new = || File { lock_wait, allow_network_file_system, opened: OnceCell::new() };
                    let file = brokers.files.entry(config::one_spelling(path)).or_insert_with(new);
                    file.lock_wait = file.lock_wait.min(lock_wait);
                    // Every destination of the file must allow it.
                    file.allow_network_file_system &= allow_network_file_system;
                }
                config::Broker::Rabbitmq(config) => add(&mut brokers.rabbits, config),
                config::Broker::Nats(config) => add(&mut brokers.streams, config),
            }
        }
        brokers
    }

    /// The far side of one of them.
    pub(crate) async fn open(&self, broker: &config::Broker) -> Result<Arc<dyn Broker>, Unopened> {
        Ok(match broker {
            config::Broker::Embedded { path, allow_network_file_system } => {
                let opened = match self.files.get(&config::one_spelling(path)) {
                    // Whoever comes second waits for the first, and tries again if that one failed.
                    Some(File { lock_wait, allow_network_file_system, opened }) => {
                        let config = embedded_config(path, *allow_network_file_system);
                        let config = embedded::Config { busy_timeout: *lock_wait, ..config };
                        opened.get_or_try_init(|| BrokerFile::open(config)).await.cloned()
                    }
                    None => BrokerFile::open(embedded_config(path, *allow_network_file_system)).await,
                };
                Arc::new(opened.map_err(|error| unopened(path, error))?)
            }
            config::Broker::Rabbitmq(config) => {
                let open = || rabbitmq::Publisher::open(config.as_ref().clone());
                Arc::new(shared(&self.rabbits, config, open).await.map_err(wrong)?)
            }
            config::Broker::Nats(config) => {
                let open = || nats::Publisher::open(config.as_ref().clone());
                Arc::new(shared(&self.streams, config, open).await.map_err(wrong)?)
            }
        })
    }

    /// Gives the connections back.
    pub(crate) async fn close(&self) {
        for broker in self.rabbits.iter().filter_map(|(_, cell)| cell.get()) {
            broker.close().await;
        }
        for broker in self.streams.iter().filter_map(|(_, cell)| cell.get()) {
            broker.close().await;
        }
    }
}

/// The kind of a broker, as metrics name it.
pub(crate) const fn kind(broker: &config::Broker) -> &'static str {
    match broker {
        config::Broker::Embedded { .. } => "embedded",
        config::Broker::Rabbitmq(_) => "rabbitmq",
        config::Broker::Nats(_) => "nats",
    }
}

/// Where a broker is, without whom we are there.
pub(crate) fn place(broker: &config::Broker) -> String {
    let urls = match broker {
        config::Broker::Embedded { path, .. } => return config::one_spelling(path).display().to_string(),
        config::Broker::Rabbitmq(config) => &config.urls,
        config::Broker::Nats(config) => &config.urls,
    };
    let mut places: Vec<&str> =
        urls.iter().map(|url| url.rsplit_once('@').map_or(&**url, |(_, place)| place)).collect();
    places.sort_unstable();
    places.join(",")
}

fn add<C: Clone + PartialEq, B>(all: &mut Vec<(C, OnceCell<B>)>, config: &C) {
    if !all.iter().any(|(known, _)| known == config) {
        all.push((config.clone(), OnceCell::new()));
    }
}

async fn shared<C: PartialEq, B: Clone, E, F: Future<Output = Result<B, E>>>(
    all: &[(C, OnceCell<B>)],
    config: &C,
    open: impl FnOnce() -> F,
) -> Result<B, E> {
    match all.iter().find(|(known, _)| known == config) {
        Some((_, cell)) => cell.get_or_try_init(open).await.cloned(),
        None => open().await,
    }
}

/// A server that is away is connected to later; what a client library does not even try is a wrong configuration.
fn wrong(error: impl std::error::Error + Send + Sync + 'static) -> Unopened {
    Unopened::Wrong(usage(anyhow::Error::new(error).to_string()))
}

/// A lock is given up well before the deadline of the call, also by whoever waits for a connection at most twice as
/// long before: only then is it known to be a lock, rather than an answer that was lost.
fn lock_wait(publish_deadline: Duration) -> Duration {
    publish_deadline / 4
}

/// The embedded broker of a configuration, with the defaults for what it does not name.
pub(crate) fn embedded_config(path: &Path, allow_network_file_system: bool) -> embedded::Config {
    embedded::Config { allow_network_file_system, ..embedded::Config::new(path) }
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
