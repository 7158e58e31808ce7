//! A busy relay from PostgreSQL to RabbitMQ, and a service that consumes its messages.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_admin::Server;
use relevo_broker_rabbitmq as rabbitmq;
use relevo_core::inbox::InboxRetention;
use relevo_inbox::{Config, ConsumerRuntime, Handler, HandlerError, HandlerResult, Handlers, Incoming, Verdict};
use relevo_observe::ProcessMonitor;
use relevo_store_postgres::inbox::{Config as InboxConfig, Inbox, Transaction};
use relevo_testkit::rabbitmq::{Server as RabbitServer, Vhost};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::daemon::Daemon;
use crate::test_outbox::TestOutbox;

const LANES: u16 = 2;

/// Both processes and their load, until it is dropped.
pub(crate) struct Fixture {
    pub(crate) daemon: Daemon,
    pub(crate) consumer: SocketAddr,
    _tasks: JoinSet<()>,
    _vhost: Vhost,
    _shop: Arc<TestOutbox>,
}

impl Fixture {
    pub(crate) async fn start() -> Self {
        let (shop, vhost) = (Arc::new(TestOutbox::new().await), RabbitServer::shared().vhost().await);
        let broker = format!(
            "kind = \"rabbitmq\"\nurls = [\"{}\"]\nmanagement_url = \"{}\"\ntopology_on_start = \"apply\"\nexchange = \"shop\"\nlanes = {LANES}\n\
             [BROKER.exchanges.shop]\n[BROKER.queues.billing]\nlanes = {LANES}\nbind = [\"shop/orders.#\"]\n",
            vhost.amqp_url(),
            vhost.management_url()
        );
        let daemon = Daemon::start(&shop.with_destinations(&[("main", &broker)], ""), &[]);
        shop.emit_numbers("orders", 1..=10).await;
        TestOutbox::taken(&daemon, "main", 10);
        let mut tasks = JoinSet::new();
        let consumer = consume(&shop, &vhost, &mut tasks).await;
        // One message that no handler accepts: it becomes a dead letter and starts an alert.
        shop.run("SELECT relevo.emit('orders', 'poisoned', 'Poison', '{}'::jsonb)").await;
        tasks.spawn(keep_busy(Arc::clone(&shop)));
        Self { daemon, consumer, _tasks: tasks, _vhost: vhost, _shop: shop }
    }

    /// The metrics and the log of the relay, for the message of a failed test.
    pub(crate) fn state(&self) -> String {
        format!("{}\n{}", self.daemon.get("/metrics").1, self.daemon.log())
    }
}

/// Emits a few messages every 100 ms.
async fn keep_busy(shop: Arc<TestOutbox>) {
    loop {
        shop.emit("orders", 20).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

struct Effect;

#[async_trait]
impl Handler<Transaction> for Effect {
    async fn handle(&self, _: &mut Transaction, incoming: &Incoming) -> HandlerResult {
        match incoming.kind() {
            "Poison" => Err(HandlerError::permanent("no handler accepts it").into()),
            _ => Ok(Verdict::Done),
        }
    }
}

/// Starts a service whose consumer has its inbox in the outbox's database, and returns its address.
async fn consume(shop: &TestOutbox, vhost: &Vhost, tasks: &mut JoinSet<()>) -> SocketAddr {
    let queue = rabbitmq::Queue { lanes: Some(LANES), single_active_consumer: true, ..rabbitmq::Queue::new("billing") };
    let config = rabbitmq::Config { lanes: Some(LANES), ..rabbitmq::Config::new(vhost.amqp_url()) };
    let membership = rabbitmq::ConsumerOptions::default();
    let consumer = rabbitmq::GroupConsumer::open(&config, &queue, membership).await.expect("a group");
    let inbox = InboxConfig::new(shop.database.options());
    let inbox = Inbox::open(&inbox, "billing", InboxRetention::default()).await.expect("a database");
    let handlers = Handlers::new().handler("Happened", Effect).handler("Poison", Effect);
    let pace = Config { lag_interval: Some(Duration::from_millis(500)), ..Config::default() };
    let runtime = ConsumerRuntime::new(Arc::new(inbox), Arc::new(consumer), handlers, pace);
    let service = ProcessMonitor::new("shop", "0").consumers([runtime.status()]);
    let server = Server::bind("127.0.0.1:0".parse().expect("an address")).await.expect("a port");
    let address = server.address();
    tasks.spawn(async move {
        server.run(Arc::new(service), None, CancellationToken::new()).await.expect("it serves");
    });
    tasks.spawn(async move { runtime.run(CancellationToken::new()).await.expect("it runs") });
    address
}
