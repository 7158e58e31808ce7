//! One member of the consumer.

use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use relevo_core::inbox::Inbox;
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_core::retry::{Backoff, RetryPolicy};
use relevo_core::{BrokerConsumer, store::StoreError};
use relevo_inbox::{Config, ConsumerError, ConsumerRuntime, ConsumerStatus, Handlers, MessageOrder};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::conduct::{Conduct, Steady};
use super::early::Early;
use super::feed::Feed;
use super::handler::{Book, Page};
use super::moods::Moods;
use super::store::Store;
use super::watched::Watched;

/// The configuration of one member.
#[derive(Clone)]
pub struct Member {
    /// The database of inbox and ledger.
    pub store: Store,
    /// The source of messages.
    pub feed: Feed,
    /// Settings and names of the consumer runtime.
    pub config: Config,
    /// Whether it calls an external service for every message.
    pub calls: bool,
    /// Whether it is broken on purpose: it acknowledges messages before it has handled them.
    pub acknowledges_early: bool,
    /// PostgreSQL ends a handler's transaction that is idle for this long.
    pub stall_deadline: Duration,
    /// Which messages fail, and how.
    pub moods: Moods,
    /// The behaviour at each point.
    pub conduct: Arc<dyn Conduct>,
}

/// A member that runs in this process until it is stopped or dropped.
pub struct Running {
    stats: Arc<ConsumerStatus>,
    stop: CancellationToken,
    task: JoinSet<Result<(), ConsumerError>>,
}

impl Member {
    /// A member with this name and short time limits. It counts as alive for `beat_lasts` after each heartbeat, also at
    /// the broker.
    pub fn new(store: Store, mut feed: Feed, consumer: &str, name: &str, beat_lasts: Duration) -> Self {
        feed.lease = beat_lasts;
        let concurrency = 4;
        let config = Config {
            member_name: name.to_owned(),
            order: if feed.ordered { MessageOrder::ByKey { concurrency } } else { MessageOrder::None { concurrency } },
            retry: retries(),
            handler_timeout: Duration::from_secs(2),
            heartbeat_interval: beat_lasts / 4,
            heartbeat_ttl: beat_lasts,
            lane_acquire_interval: beat_lasts / 10,
            lane_idle_timeout: beat_lasts / 2,
            retry_poll_interval: Duration::from_millis(50),
            busy_delay: Duration::from_millis(50),
            claim_margin: Duration::from_millis(200),
            outage_backoff_min: Duration::from_millis(50),
            outage_backoff_max: Duration::from_secs(1),
            ..Config::new(consumer)
        };
        let stall_deadline = config.handler_timeout * 2;
        let (moods, conduct) = (Moods::default(), Arc::new(Steady));
        Self { store, feed, config, calls: false, acknowledges_early: false, stall_deadline, moods, conduct }
    }

    /// Opens its connections and starts to consume messages.
    pub async fn start(self) -> Result<Running> {
        let consumer = self.feed.consumer(&self.config.member_name).await.context("the broker's consumer")?;
        let consumer: Arc<dyn BrokerConsumer> =
            if self.acknowledges_early { Arc::new(Early(consumer)) } else { consumer };
        let consumer: Arc<dyn BrokerConsumer> = Arc::new(Watched::new(consumer, Arc::clone(&self.conduct)));
        let (name, keeping) = (self.config.consumer.clone(), self.config.keeping);
        match self.store.clone() {
            Store::Postgres(options) => {
                let config = relevo_store_postgres::inbox::Config {
                    handler_connections_max: 16,
                    stall_timeout: self.stall_deadline,
                    ..relevo_store_postgres::inbox::Config::new(*options)
                };
                let inbox = relevo_store_postgres::inbox::Inbox::open(&config, &name, keeping).await;
                Ok(self.run(inbox, consumer)?)
            }
            Store::Sqlite(path) => {
                let config = relevo_store_sqlite::inbox::Config::new(path);
                let inbox = relevo_store_sqlite::inbox::Inbox::open(&config, &name, keeping).await;
                Ok(self.run(inbox, consumer)?)
            }
        }
    }

    fn run<I>(self, inbox: Result<I, StoreError>, consumer: Arc<dyn BrokerConsumer>) -> Result<Running, StoreError>
    where
        I: Inbox + 'static,
        I::Transaction: DerefMut<Target: Page> + 'static,
    {
        let book = Book {
            consumer: self.config.consumer.clone(),
            member: self.config.member_name.clone(),
            far_side: self.store,
            moods: self.moods,
            conduct: self.conduct,
        };
        let handlers = Handlers::new();
        let handlers = if self.calls { handlers.call_handler("*", book) } else { handlers.handler("*", book) };
        let runtime = ConsumerRuntime::new(Arc::new(inbox?), consumer, handlers, self.config);
        let (stats, stop, mut task) = (runtime.status(), CancellationToken::new(), JoinSet::new());
        task.spawn(runtime.run(stop.clone()));
        Ok(Running { stats, stop, task })
    }
}

/// One retry in memory, then durable retries, all with short delays.
fn retries() -> HandlerRetryPolicy {
    let durable = RetryPolicy {
        base: Duration::from_millis(100),
        backoff: Backoff::Exponential { factor: 2 },
        max: Duration::from_secs(2),
        jitter_percent: 20,
        attempts_max: 10,
    };
    HandlerRetryPolicy { in_memory: vec![Duration::from_millis(50)], durable }
}

impl Running {
    /// Its statistics so far.
    pub fn stats(&self) -> &Arc<ConsumerStatus> {
        &self.stats
    }

    /// Waits until it is stopped. Returns an error if it ends by itself.
    pub async fn ended(&mut self) -> Result<()> {
        self.task.join_next().await.context("it ended before")??.context("the consumer ended by itself")
    }

    /// Stops it, and waits until it has ended.
    pub async fn stop(mut self) -> Result<()> {
        self.stop.cancel();
        self.ended().await
    }
}
