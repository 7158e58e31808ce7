//! A consumer on PostgreSQL and a broker, in a service that exposes its metrics.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use relevo_admin::Server;
use relevo_broker_embedded::{BrokerFile, Config as FileConfig, ConsumerOptions, Group};
use relevo_broker_rabbitmq as rabbitmq;
use relevo_core::broker::OutcomeReceiver;
use relevo_core::inbox::InboxRetention;
use relevo_core::retry::RetryPolicy;
use relevo_core::{Broker, BrokerAdmin as _, BrokerConsumer, Draft, MessageId, Publication};
use relevo_inbox::{
    Config, ConsumerError, ConsumerRuntime, Handler, HandlerError, HandlerResult, Handlers, Incoming, MessageOrder,
    Verdict,
};
use relevo_observe::ProcessMonitor;
use relevo_store_postgres::inbox::{Config as InboxConfig, Inbox, Transaction};
use relevo_store_postgres::{Schema, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::{Database, Server as Postgres};
use relevo_testkit::proxy::CutProxy;
use relevo_testkit::rabbitmq::{Server as RabbitServer, Vhost};
use sqlx::Executor as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::scrape::{Scrape, get};

const LANES: u16 = 4;
const EXCHANGE: &str = "shop";

/// The broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Embedded,
    RabbitMq,
}

/// Everything that outlives the service.
pub(crate) struct Harness {
    database: Database,
    /// The proxy between the consumer and its database.
    proxy: CutProxy,
    broker: Arc<dyn Broker>,
    place: Place,
    held: watch::Sender<bool>,
    service_down: Arc<AtomicBool>,
}

#[expect(dead_code, reason = "folder and virtual host live as long as the harness")]
enum Place {
    Embedded(BrokerFile, Folder),
    RabbitMq(Vhost, Box<rabbitmq::Config>),
}

/// A directory that is deleted at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Writes a row when it is not on hold. It rejects some messages.
struct Effect {
    held: watch::Receiver<bool>,
    service_down: Arc<AtomicBool>,
}

#[async_trait]
impl Handler<Transaction> for Effect {
    async fn handle(&self, transaction: &mut Transaction, incoming: &Incoming) -> HandlerResult {
        self.held.clone().wait_for(|held| !*held).await.map_err(HandlerError::transient)?;
        match incoming.kind() {
            "Poison" => return Err(HandlerError::permanent("it is invalid").into()),
            "Letter" if self.service_down.load(Ordering::Relaxed) => {
                return Err(HandlerError::unavailable("the mail server is down").into());
            }
            _ => {}
        }
        transaction.execute("INSERT INTO effect DEFAULT VALUES").await.map_err(HandlerError::transient)?;
        Ok(Verdict::Done)
    }
}

impl Harness {
    pub(crate) async fn at(at: At) -> Self {
        let database = Postgres::shared(PgVersion::V18).database().await;
        let mut connection = database.connect().await;
        migrate::migrate(&mut connection, &Schema::default()).await.expect("an empty database");
        connection.execute("CREATE TABLE effect (no bigint GENERATED ALWAYS AS IDENTITY)").await.expect("a table");
        let options = database.options();
        let upstream = tokio::net::lookup_host((options.get_host(), options.get_port())).await.expect("a host").next();
        let (place, broker) = match at {
            At::Embedded => embedded().await,
            At::RabbitMq => on_rabbitmq().await,
        };
        Self {
            database,
            proxy: CutProxy::start(upstream.expect("an address")).await,
            broker,
            place,
            held: watch::Sender::new(false),
            service_down: Arc::default(),
        }
    }

    /// Makes handlers wait, or lets them continue.
    pub(crate) fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }

    pub(crate) fn set_service_down(&self, down: bool) {
        self.service_down.store(down, Ordering::Relaxed);
    }

    pub(crate) async fn cut_database(&self, cut: bool) {
        if cut { self.proxy.block().await } else { self.proxy.unblock() }
    }

    pub(crate) async fn publish(&self, kind: &str, number: u32) {
        self.publish_to("orders", kind, number).await;
    }

    /// Publishes the same message to another address: brokers that detect duplicates treat it as a new one.
    pub(crate) async fn publish_again(&self, kind: &str, number: u32) {
        self.publish_to("orders.again", kind, number).await;
    }

    async fn publish_to(&self, address: &str, kind: &str, number: u32) {
        let id = MessageId::v7(u64::from(number), [7; 10]);
        let message =
            Draft::json("orders", &format!("k-{number}"), kind, "{}").into_message(id, jiff::Timestamp::now());
        let message = Arc::new(message);
        let seq = i64::from(number) + 1;
        let batch = [Publication { message, address: address.into(), headers: Arc::default(), seq, epoch: 1 }];
        let reports = OutcomeReceiver::default();
        self.broker.publish(&batch, &reports.sender(0)).await;
        assert!(reports.take().iter().all(|(_, _, outcome)| outcome.is_ok()));
    }

    /// The number of committed effects.
    pub(crate) async fn effects(&self) -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM effect");
        count.fetch_one(&mut self.database.connect().await).await.expect("a table")
    }

    async fn consumer(&self) -> Arc<dyn BrokerConsumer> {
        match &self.place {
            Place::Embedded(broker, _) => {
                Arc::new(broker.consumer("billing", ConsumerOptions::default()).await.expect("a group"))
            }
            Place::RabbitMq(_, config) => {
                let membership = rabbitmq::ConsumerOptions::default();
                Arc::new(rabbitmq::GroupConsumer::open(config, &queue(), membership).await.expect("a group"))
            }
        }
    }

    /// A service whose only consumer handles one message at a time.
    pub(crate) async fn start(&self) -> Running {
        self.start_with_ttl(Duration::from_secs(30)).await
    }

    /// Like `start`, but its heartbeats expire after one second, and so do its calls to the database.
    pub(crate) async fn start_with_short_ttl(&self) -> Running {
        self.start_with_ttl(Duration::from_secs(1)).await
    }

    async fn start_with_ttl(&self, ttl: Duration) -> Running {
        let options = self.database.options().host("127.0.0.1").port(self.proxy.addr().port());
        let inbox =
            Inbox::open(&InboxConfig::new(options), "billing", InboxRetention::default()).await.expect("a database");
        let config = Config {
            order: MessageOrder::ByKey { concurrency: 1 },
            in_memory_messages_max: 1,
            receive_batch_max: 1,
            breaker: RetryPolicy { base: Duration::from_millis(200), ..Config::default().breaker },
            lag_interval: Some(Duration::from_millis(50)),
            heartbeat_interval: Duration::from_millis(200),
            heartbeat_ttl: ttl,
            store_timeout: ttl,
            lane_acquire_interval: Duration::from_millis(50),
            ..Config::default()
        };
        let kinds = ["OrderPlaced", "Poison", "Letter"];
        let handlers = kinds.iter().fold(Handlers::new(), |handlers, kind| handlers.handler(kind, self.effect()));
        let runtime = ConsumerRuntime::new(Arc::new(inbox), self.consumer().await, handlers, config);
        let service = ProcessMonitor::new("shop", "0").consumers([runtime.status()]);
        let server = Server::bind("127.0.0.1:0".parse().expect("an address")).await.expect("a port");
        let (address, stop) = (server.address(), CancellationToken::new());
        let (mut serving, mut consuming) = (JoinSet::new(), JoinSet::new());
        let end = CancellationToken::new();
        serving.spawn(async move { server.run(Arc::new(service), None, end).await.expect("it serves") });
        consuming.spawn(runtime.run(stop.clone()));
        Running { address, stop, consuming, _serving: serving }
    }

    fn effect(&self) -> Effect {
        Effect { held: self.held.subscribe(), service_down: Arc::clone(&self.service_down) }
    }
}

async fn embedded() -> (Place, Arc<dyn Broker>) {
    let folder = Folder(std::env::temp_dir().join(format!("relevo-observe-{}", uuid::Uuid::new_v4())));
    std::fs::create_dir_all(&folder.0).expect("a folder");
    let broker = BrokerFile::open(FileConfig::new(folder.0.join("broker.db"))).await.expect("a file");
    broker.declare_group(&Group { lanes: LANES, ..Group::new("billing", ["orders.**"]) }).await.expect("a group");
    (Place::Embedded(broker.clone(), folder), Arc::new(broker))
}

fn queue() -> rabbitmq::Queue {
    rabbitmq::Queue { lanes: Some(LANES), single_active_consumer: true, ..rabbitmq::Queue::new("billing") }
}

async fn on_rabbitmq() -> (Place, Arc<dyn Broker>) {
    let vhost = RabbitServer::shared().vhost().await;
    let topology = rabbitmq::Topology {
        exchanges: vec![rabbitmq::Exchange::new(EXCHANGE)],
        bindings: vec![rabbitmq::Binding::to_queue(EXCHANGE, "orders.#", "billing")],
        queues: vec![queue()],
        policies: Vec::new(),
    };
    let config = rabbitmq::Config {
        exchange: EXCHANGE.to_owned(),
        lanes: Some(LANES),
        topology,
        ..rabbitmq::Config::new(vhost.amqp_url())
    };
    rabbitmq::Admin::new(config.clone()).expect("a configuration").apply().await.expect("a topology");
    let broker = rabbitmq::Publisher::open(config.clone()).await.expect("a configuration");
    (Place::RabbitMq(vhost, Box::new(config)), Arc::new(broker))
}

/// A running service.
pub(crate) struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    consuming: JoinSet<Result<(), ConsumerError>>,
    _serving: JoinSet<()>,
}

impl Running {
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        get(self.address, path).await
    }

    pub(crate) async fn scrape(&self) -> Scrape {
        let (status, text) = self.get("/metrics").await;
        assert_eq!(status, 200);
        Scrape { text }
    }

    /// Scrapes until a condition holds.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Scrape) -> bool) -> Scrape {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let seen = self.scrape().await;
            if holds(&seen) {
                return seen;
            }
            assert!(Instant::now() < end, "timed out waiting until {what}:\n{}", seen.text);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Probes until the status is `wanted`. Returns the body.
    pub(crate) async fn becomes(&self, probe: &str, wanted: u16) -> String {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let (status, body) = self.get(probe).await;
            if status == wanted {
                return body;
            }
            assert!(Instant::now() < end, "{probe} stays {status}: {body}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn stop(mut self) {
        self.stop_consumer().await;
    }

    /// Stops the consumer cleanly. The port is still served.
    pub(crate) async fn stop_consumer(&mut self) {
        self.stop.cancel();
        self.consuming.join_next().await.expect("it runs").expect("it does not panic").expect("a clean shutdown");
    }

    /// Drops the task of the consumer, as if it had died. The port is still served.
    pub(crate) async fn kill_consumer(&mut self) {
        self.consuming.shutdown().await;
    }
}
