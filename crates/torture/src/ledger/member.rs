//! One member of the consumer.

use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_core::inbox::{Inbox, InboxRetention};
use relevo_core::retry::{Backoff, RetryPolicy};
use relevo_core::{BrokerConsumer, store::StoreError};
use relevo_inbox::{Config, ConsumerError, ConsumerRuntime, ConsumerStatus, Handlers, MessageOrder};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::behaviour::{Behaviour, NoFault};
use super::broken_ack::{AckMistake, BrokenAck};
use super::failure_rates::FailureRates;
use super::feed::Feed;
use super::handler::{LedgerConnection, LedgerHandler};
use super::observed_consumer::ObservedConsumer;
use super::store::Store;

/// The configuration of one member.
#[derive(Clone)]
pub struct Member {
    /// The database of inbox and ledger.
    pub store: Store,
    /// The source of messages.
    pub feed: Feed,
    /// Name of the consumer.
    pub consumer: String,
    /// The retention of its inbox.
    pub retention: InboxRetention,
    /// Settings of the consumer runtime.
    pub config: Config,
    /// Whether it calls an external service for every message.
    pub calls: bool,
    /// How it is broken on purpose.
    pub ack_mistake: Option<AckMistake>,
    /// PostgreSQL ends a handler's transaction that is idle for this long.
    pub stall_timeout: Duration,
    /// Which messages fail, and how.
    pub failure_rates: FailureRates,
    /// The behaviour at each point.
    pub behaviour: Arc<dyn Behaviour>,
}

/// A member that runs in this process until it is stopped or dropped.
pub struct RunningMember {
    status: Arc<ConsumerStatus>,
    stop: CancellationToken,
    task: JoinSet<Result<(), ConsumerError>>,
}

impl Member {
    /// A member with this name and short time limits. It counts as alive for `heartbeat_ttl` after each heartbeat, also
    /// at the broker.
    pub fn new(store: Store, mut feed: Feed, consumer: &str, name: &str, heartbeat_ttl: Duration) -> Self {
        feed.lease = heartbeat_ttl;
        let concurrency = 4;
        let config = Config {
            member_name: name.to_owned(),
            order: if feed.ordered { MessageOrder::ByKey { concurrency } } else { MessageOrder::None { concurrency } },
            retry: retries(),
            handler_timeout: Duration::from_secs(2),
            heartbeat_interval: heartbeat_ttl / 4,
            heartbeat_ttl,
            lane_acquire_interval: heartbeat_ttl / 10,
            lane_idle_timeout: heartbeat_ttl / 2,
            retry_poll_interval: Duration::from_millis(50),
            busy_delay: Duration::from_millis(50),
            claim_margin: Duration::from_millis(200),
            outage_backoff_min: Duration::from_millis(50),
            outage_backoff_max: Duration::from_secs(1),
            ..Config::default()
        };
        let stall_timeout = config.handler_timeout * 2;
        let (failure_rates, behaviour) = (FailureRates::default(), Arc::new(NoFault));
        let (consumer, retention) = (consumer.to_owned(), InboxRetention::default());
        Self {
            store,
            feed,
            consumer,
            retention,
            config,
            calls: false,
            ack_mistake: None,
            stall_timeout,
            failure_rates,
            behaviour,
        }
    }

    /// Opens its connections and starts to consume messages.
    pub async fn start(self) -> Result<RunningMember> {
        let consumer = self.feed.consumer(&self.config.member_name).await.context("the broker's consumer")?;
        let consumer: Arc<dyn BrokerConsumer> = match self.ack_mistake {
            Some(mistake) => Arc::new(BrokenAck { inner: consumer, mistake }),
            None => consumer,
        };
        let consumer: Arc<dyn BrokerConsumer> = Arc::new(ObservedConsumer::new(consumer, Arc::clone(&self.behaviour)));
        let (name, retention) = (self.consumer.clone(), self.retention);
        match self.store.clone() {
            Store::Postgres(options) => {
                let config = relevo_store_postgres::inbox::Config {
                    handler_connections_max: 16,
                    stall_timeout: self.stall_timeout,
                    ..relevo_store_postgres::inbox::Config::new(*options)
                };
                let inbox = relevo_store_postgres::inbox::Inbox::open(&config, &name, retention).await;
                Ok(self.run(inbox, consumer)?)
            }
            Store::Sqlite(path) => {
                let config = relevo_store_sqlite::inbox::Config::new(path);
                let inbox = relevo_store_sqlite::inbox::Inbox::open(&config, &name, retention).await;
                Ok(self.run(inbox, consumer)?)
            }
        }
    }

    fn run<I>(
        self,
        inbox: Result<I, StoreError>,
        consumer: Arc<dyn BrokerConsumer>,
    ) -> Result<RunningMember, StoreError>
    where
        I: Inbox,
        I::Transaction: DerefMut<Target: LedgerConnection>,
    {
        let handler = LedgerHandler {
            consumer: self.consumer.clone(),
            member: self.config.member_name.clone(),
            external_service: self.store,
            failure_rates: self.failure_rates,
            behaviour: self.behaviour,
        };
        let handlers = Handlers::new();
        let handlers = if self.calls { handlers.call_handler("*", handler) } else { handlers.handler("*", handler) };
        let runtime = ConsumerRuntime::new(Arc::new(inbox?), consumer, handlers, self.config);
        let (status, stop, mut task) = (runtime.status(), CancellationToken::new(), JoinSet::new());
        task.spawn(runtime.run(stop.clone()));
        Ok(RunningMember { status, stop, task })
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

impl RunningMember {
    /// Its current status.
    pub fn status(&self) -> &Arc<ConsumerStatus> {
        &self.status
    }

    /// Waits until it is stopped. Returns an error if it ends by itself.
    pub async fn ended(&mut self) -> Result<()> {
        self.task.join_next().await.context("it has ended already")??.context("the consumer ended by itself")
    }

    /// Stops it, and waits until it has ended.
    pub async fn stop(mut self) -> Result<()> {
        self.stop.cancel();
        self.ended().await
    }
}
