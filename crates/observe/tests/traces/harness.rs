//! A producer, two relays, two brokers and two consumers, each with its own exporter.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use relevo_broker_embedded::{BrokerFile, Config as FileConfig, ConsumerOptions, Group};
use relevo_broker_rabbitmq as rabbitmq;
use relevo_core::inbox::InboxRetention;
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_core::trace::CommonAttributes;
use relevo_core::{Broker, BrokerAdmin as _, BrokerConsumer, Draft, MessageId, Tracer};
use relevo_inbox::{
    Config as ConsumerConfig, ConsumerRuntime, Handler, HandlerError, HandlerResult, Handlers, Incoming, Verdict,
};
use relevo_observe::traces::{Config, Exporter, Ratio};
use relevo_relay::{Config as RelayConfig, Relay};
use relevo_store_postgres::inbox::{Config as InboxConfig, Inbox, Transaction};
use relevo_store_postgres::{Config as StoreConfig, Emitter, Schema, Store, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::{Database, Server};
use relevo_testkit::rabbitmq::{Server as RabbitServer, Vhost};
use sqlx::Connection as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::collector::Collector;

const EXCHANGE: &str = "shop";

/// Everything runs until the value is dropped.
pub(crate) struct Harness {
    pub(crate) database: Database,
    producer: Emitter,
    exporting: Exporting,
    _vhost: Vhost,
    _folder: Folder,
    _running: JoinSet<()>,
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Starts an exporter for each service.
struct Exporting {
    endpoint: String,
    sample: Ratio,
    running: JoinSet<()>,
}

impl Exporting {
    fn traces(&mut self, service: &str, system: &str) -> Tracer {
        let every = Duration::from_millis(20);
        let config = Config { sample: self.sample, every, ..Config::new(&self.endpoint, service) };
        let exporter = Exporter::new(config).expect("a collector");
        let attributes = vec![("relevo.outbox", "shop".to_owned())];
        let traces = exporter.traces(CommonAttributes { system: system.to_owned(), attributes });
        self.running.spawn(exporter.run(CancellationToken::new()));
        traces
    }
}

/// Fails once, then emits a follow-up message.
struct Bill {
    outbox: Emitter,
    failed: AtomicBool,
}

#[async_trait]
impl Handler<Transaction> for Bill {
    async fn handle(&self, transaction: &mut Transaction, incoming: &Incoming) -> HandlerResult {
        if !self.failed.swap(true, Ordering::Relaxed) {
            return Err(HandlerError::transient("the first one fails").into());
        }
        let draft = incoming.with_causation(Draft::json("orders.billed", incoming.key(), "OrderBilled", "{}"));
        self.outbox.emit(transaction, draft).await?;
        Ok(Verdict::Done)
    }
}

struct Ship;

#[async_trait]
impl Handler<Transaction> for Ship {
    async fn handle(&self, _transaction: &mut Transaction, _incoming: &Incoming) -> HandlerResult {
        Ok(Verdict::Done)
    }
}

impl Harness {
    /// Starts everything with this share of sampled traces.
    pub(crate) async fn sampling(collector: &Collector, sample: Ratio) -> Self {
        let database = Server::shared(PgVersion::V18).database().await;
        let mut connection = database.connect().await;
        migrate::migrate(&mut connection, &Schema::default()).await.expect("an empty database");
        for destination in ["files", "rabbit"] {
            let add = sqlx::query("SELECT relevo.add_destination($1, 1, 'oldest')").bind(destination);
            add.execute(&mut connection).await.expect("a destination");
        }
        let mut exporting = Exporting { endpoint: collector.endpoint(), sample, running: JoinSet::new() };
        let mut running = JoinSet::new();

        let folder = Folder(std::env::temp_dir().join(format!("relevo-traces-{}", Uuid::new_v4())));
        std::fs::create_dir_all(&folder.0).expect("a folder");
        let file = BrokerFile::open(FileConfig::new(folder.0.join("broker.db"))).await.expect("a file");
        file.declare_group(&Group::new("billing", ["orders.**"])).await.expect("a group");
        let vhost = RabbitServer::shared().vhost().await;
        let config = rabbitmq_config(&vhost);
        rabbitmq::Admin::new(config.clone()).expect("a configuration").apply().await.expect("a topology");
        let rabbit = rabbitmq::Publisher::open(config.clone()).await.expect("a broker");

        let traces = exporting.traces("relay", "embedded");
        relay(&mut running, &database, "files", Arc::new(file.clone()), traces).await;
        let traces = exporting.traces("relay", "rabbitmq");
        relay(&mut running, &database, "rabbit", Arc::new(rabbit), traces).await;

        let billing = Arc::new(file.consumer("billing", ConsumerOptions::default()).await.expect("a consumer"));
        let outbox = Emitter::default().with_tracing(exporting.traces("billing", "relevo"));
        let bill = Handlers::new().handler("OrderPlaced", Bill { outbox, failed: AtomicBool::new(false) });
        consumer(&mut running, &database, "billing", billing, bill, exporting.traces("billing", "embedded")).await;
        let queue = rabbitmq::Queue::new("shipping");
        let shipping = rabbitmq::GroupConsumer::open(&config, &queue, rabbitmq::ConsumerOptions::default())
            .await
            .expect("a consumer");
        let ship = Handlers::new().handler("OrderPlaced", Ship);
        consumer(
            &mut running,
            &database,
            "shipping",
            Arc::new(shipping),
            ship,
            exporting.traces("shipping", "rabbitmq"),
        )
        .await;

        let producer = Emitter::default().with_tracing(exporting.traces("producer", "relevo"));
        Self { database, producer, exporting, _vhost: vhost, _folder: folder, _running: running }
    }

    /// Emits like a Rust service.
    pub(crate) async fn emit(&self) -> MessageId {
        let mut connection = self.database.connect().await;
        let mut tx = connection.begin().await.expect("a transaction");
        let draft = Draft::json("orders.placed", "o-1", "OrderPlaced", "{}");
        let id = self.producer.emit(&mut tx, draft).await.expect("a good message");
        tx.commit().await.expect("a commit");
        id
    }

    /// Emits with SQL, like a service in any language, with these headers.
    pub(crate) async fn emit_sql(&self, headers: &str) -> MessageId {
        let mut connection = self.database.connect().await;
        let sql = "SELECT relevo.emit('orders.placed', 'o-1', 'OrderPlaced', '{}'::jsonb, headers => $1::text::jsonb)";
        let id = sqlx::query_scalar(sql).bind(headers).fetch_one(&mut connection).await.expect("a good message");
        MessageId::from_uuid(id)
    }

    /// Waits until both consumers have handled this many messages, traced or not.
    pub(crate) async fn handled(&self, messages: i64) {
        let mut connection = self.database.connect().await;
        let end = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let count: i64 = sqlx::query_scalar("SELECT count(*) FROM relevo.inbox")
                .fetch_one(&mut connection)
                .await
                .expect("the inbox can be read");
            if count >= messages {
                return;
            }
            assert!(std::time::Instant::now() < end, "only {count} of {messages} were handled");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn exporters(&self) -> usize {
        self.exporting.running.len()
    }
}

fn rabbitmq_config(vhost: &Vhost) -> rabbitmq::Config {
    let topology = rabbitmq::Topology {
        exchanges: vec![rabbitmq::Exchange::new(EXCHANGE)],
        bindings: vec![rabbitmq::Binding::to_queue(EXCHANGE, "orders.#", "shipping")],
        queues: vec![rabbitmq::Queue::new("shipping")],
        policies: Vec::new(),
    };
    rabbitmq::Config { exchange: EXCHANGE.to_owned(), topology, ..rabbitmq::Config::new(vhost.amqp_url()) }
}

async fn relay(
    running: &mut JoinSet<()>,
    database: &Database,
    destination: &str,
    broker: Arc<dyn Broker>,
    traces: Tracer,
) {
    let store = Store::open(StoreConfig::new(database.options(), destination)).await.expect("a migrated database");
    let relay = Relay::new(Arc::new(store), broker, RelayConfig { tracer: traces, ..RelayConfig::default() });
    let relay = relay.expect("a valid configuration");
    running.spawn(async move { relay.run(CancellationToken::new()).await.expect("it runs until the end") });
}

async fn consumer(
    running: &mut JoinSet<()>,
    database: &Database,
    name: &str,
    consumer: Arc<dyn BrokerConsumer>,
    handlers: Handlers<Transaction>,
    traces: Tracer,
) {
    let inbox =
        Inbox::open(&InboxConfig::new(database.options()), name, InboxRetention::default()).await.expect("a database");
    let retries = HandlerRetryPolicy { in_memory: vec![Duration::from_millis(10)], ..HandlerRetryPolicy::default() };
    let order = relevo_inbox::MessageOrder::None { concurrency: 4 };
    let config = ConsumerConfig { retry: retries, order, tracer: traces, ..ConsumerConfig::default() };
    let runtime = ConsumerRuntime::new(Arc::new(inbox), consumer, handlers, config);
    running.spawn(async move { runtime.run(CancellationToken::new()).await.expect("it runs until the end") });
}
