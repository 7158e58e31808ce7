//! The store and the broker of a case, and their resources.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use relevo_testkit::nats::{self, NatsVersion};
use relevo_testkit::postgres::{self, Database, PgVersion};
use relevo_testkit::proxy::CutProxy;
use relevo_testkit::rabbitmq::{self, Vhost};
use relevo_torture::ledger::{Feed, Store, prepare};
use uuid::Uuid;

/// The store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Postgres,
    Sqlite,
}

/// The broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokerKind {
    Embedded,
    RabbitMq,
    Nats,
}

/// The pair of store and broker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backends {
    pub(crate) store: StoreKind,
    pub(crate) broker: BrokerKind,
}

/// Whether the consumer keeps order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderMode {
    Ordered,
    Unordered,
}

pub(crate) const LANES: u16 = 4;
/// The delay of RabbitMQ's retry queue.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The case's own directory.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("relevo-consumers-{}", Uuid::new_v4().simple()));
        std::fs::create_dir(&path).expect("a directory");
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover directory is harmless, and a panic in `drop` would hide the test's own.
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Resources that must live as long as a case.
pub(crate) struct Resources {
    pub(crate) scratch: Scratch,
    pub(crate) database: Option<Database>,
    vhost: Option<Vhost>,
    pub(crate) rabbitmq: Option<rabbitmq::Private>,
    pub(crate) nats: Option<nats::Private>,
}

impl Resources {
    /// Uses the servers that all cases share.
    pub(crate) async fn shared(backends: Backends) -> Self {
        let database = async {
            match backends.store {
                StoreKind::Postgres => Some(postgres::Server::shared(PgVersion::V15).database().await),
                StoreKind::Sqlite => None,
            }
        };
        let vhost = async {
            match backends.broker {
                BrokerKind::RabbitMq => Some(rabbitmq::Server::shared().vhost().await),
                BrokerKind::Embedded | BrokerKind::Nats => None,
            }
        };
        let (database, vhost) = tokio::join!(database, vhost);
        Self { scratch: Scratch::new(), database, vhost, rabbitmq: None, nats: None }
    }

    /// Like `shared`, but with a private broker that the case may kill.
    pub(crate) async fn private(backends: Backends) -> Self {
        let mut resources = Self::shared(Backends { broker: BrokerKind::Embedded, ..backends }).await;
        match backends.broker {
            BrokerKind::Embedded => {}
            BrokerKind::RabbitMq => resources.rabbitmq = Some(rabbitmq::Private::start().await),
            BrokerKind::Nats => {
                resources.nats = Some(nats::Private::start(NatsVersion::V2_15, nats::Settings::new()).await);
            }
        }
        resources
    }

    pub(crate) async fn store(&self) -> Store {
        let store: Store = self.store_url().parse().expect("a URL");
        prepare(&store).await.expect("a new database");
        store
    }

    pub(crate) fn store_url(&self) -> String {
        match &self.database {
            Some(database) => database.url(),
            None => format!("sqlite:{}", self.scratch.file("store.db").display()),
        }
    }

    /// The location of the broker, for one group.
    pub(crate) fn broker(&self, backends: Backends, group: &str) -> String {
        let rung = RETRY_DELAY.as_millis();
        match backends.broker {
            BrokerKind::Embedded => format!("embedded:{}", self.scratch.file("broker.db").display()),
            BrokerKind::RabbitMq => {
                let shared = self.vhost.as_ref().map(Vhost::amqp_url);
                let url = shared.or_else(|| self.rabbitmq.as_ref().map(rabbitmq::Private::amqp_url));
                format!("{}#{group}?retry_ms={rung}", url.expect("there is a server"))
            }
            BrokerKind::Nats => {
                let private = self.nats.as_ref().map(nats::Private::url);
                let url = private.unwrap_or_else(|| nats::Server::shared(NatsVersion::V2_15).url().to_owned());
                // Streams need unique names per case, and so do the groups that read them.
                format!("{url}#{}", self.stream())
            }
        }
    }

    fn stream(&self) -> String {
        let name = self.scratch.0.file_name().and_then(|name| name.to_str()).expect("a name that we chose");
        name.replace("relevo-consumers-", "S")
    }
}

/// Declares the group at the broker, and returns its feed.
pub(crate) async fn feed(spec: &str, backends: Backends, order_mode: OrderMode, group: &str) -> Feed {
    // A shared RabbitMQ queue has no lanes. With other brokers, members share the lanes.
    let lanes = (order_mode == OrderMode::Ordered || backends.broker != BrokerKind::RabbitMq).then_some(LANES);
    let feed = Feed::new(spec, group, lanes, order_mode == OrderMode::Ordered).expect("a spec");
    feed.declare().await.expect("the broker accepts it");
    feed
}

/// The host and port of a URL.
pub(crate) fn authority(url: &str) -> SocketAddr {
    let rest = url.split("://").nth(1).expect("a URL");
    let authority = rest.split(['/', '#', '?']).next().expect("a host");
    let host = authority.rsplit('@').next().expect("a host");
    host.parse().unwrap_or_else(|_| panic!("no address in `{url}`"))
}

/// Starts a proxy in front of the server of a URL. Returns it with the URL through the proxy.
pub(crate) async fn behind_proxy(url: &str) -> (CutProxy, String) {
    let server = authority(url);
    let proxy = CutProxy::start(server).await;
    let through = url.replacen(&server.to_string(), &proxy.addr().to_string(), 1);
    (proxy, through)
}

/// The file in the spec of an embedded broker, or in the URL of a SQLite store.
pub(crate) fn file_of(url: &str) -> Option<&Path> {
    url.strip_prefix("embedded:").or_else(|| url.strip_prefix("sqlite:")).map(Path::new)
}
