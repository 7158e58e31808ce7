//! The relay of the demo, and its supervisor: a relay that crashes is started again, as systemd or Kubernetes would.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use relevo_broker_embedded::BrokerFile;
use relevo_core::{RetryPolicy, Route, Routes};
use relevo_relay::{Advanced, Config, Relay, RelayError, RelayStatus};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::data_dir::DataDir;
use super::faulty_broker::FaultyBroker;
use super::{LEASE, OUTAGE_BACKOFF_MAX};

/// The first delay before a rejected message is retried. It doubles each time.
const RETRY_MIN: Duration = Duration::from_millis(600);
/// The longest delay. Attempts are counted across restarts of the demo, but its rejections begin again with each start.
const RETRY_MAX: Duration = Duration::from_secs(4);

/// Runs one relay at a time.
pub(crate) struct RelaySupervisor {
    broker: Arc<FaultyBroker<BrokerFile>>,
    /// Holds one task.
    task: JoinSet<Result<(), RelayError>>,
    stop: CancellationToken,
    status: Arc<RelayStatus>,
    /// The number of relays so far.
    number: u32,
    /// The counts of the relays that crashed.
    sent_before: u64,
    published_before: u64,
}

impl RelaySupervisor {
    /// Starts the first relay.
    pub(crate) async fn start(data: &DataDir, broker: FaultyBroker<BrokerFile>) -> Result<Self> {
        let mut supervisor = Self {
            broker: Arc::new(broker),
            task: JoinSet::new(),
            stop: CancellationToken::new(),
            status: Arc::default(),
            number: 0,
            sent_before: 0,
            published_before: 0,
        };
        supervisor.start_relay(data).await?;
        Ok(supervisor)
    }

    async fn start_relay(&mut self, data: &DataDir) -> Result<()> {
        self.number += 1;
        let store = Arc::new(data.store().await?);
        let broker = Arc::clone(&self.broker);
        let relay = Relay::new(store, broker, config(self.name()))?;
        self.status = relay.status();
        self.task.spawn(relay.run(self.stop.clone()));
        Ok(())
    }

    /// Drops the relay as a crash would: it settles nothing, and its leases stay until they expire. Then starts a new one.
    /// Returns the number of shards that the crashed relay had leased.
    pub(crate) async fn crash(&mut self, data: &DataDir) -> Result<u64> {
        self.task.shutdown().await;
        let shards = self.status.leases();
        (self.sent_before, self.published_before) = (self.sent(), self.published());
        self.start_relay(data).await?;
        Ok(shards)
    }

    /// Waits until the relay ends by itself. It should not.
    pub(crate) async fn ended(&mut self) -> Result<()> {
        let Some(ended) = self.task.join_next().await else { return std::future::pending().await };
        ended?.context("the relay failed")
    }

    /// Stops the relay. It settles confirmed messages and releases its leases.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.stop.cancel();
        while let Some(ended) = self.task.join_next().await {
            ended?.context("the relay failed")?;
        }
        Ok(())
    }

    /// The name of the current relay.
    pub(crate) fn name(&self) -> String {
        format!("relay-{}", self.number)
    }

    /// The number of shards that the current relay has leased.
    pub(crate) fn shards(&self) -> u64 {
        self.status.leases()
    }

    /// Messages that all relays passed to the broker.
    pub(crate) fn sent(&self) -> u64 {
        self.sent_before + self.status.attempts()
    }

    /// Messages that the broker confirmed to all relays.
    pub(crate) fn published(&self) -> u64 {
        self.published_before + self.status.published()
    }
}

fn config(name: String) -> Config {
    let route = Route {
        name: "orders".to_owned(),
        topic: "orders".to_owned(),
        policy: RetryPolicy { base: RETRY_MIN, max: RETRY_MAX, ..RetryPolicy::default() },
        ..Route::catch_all()
    };
    Config {
        name,
        routes: Routes::new(vec![route]),
        lease_duration: LEASE,
        publish_timeout: LEASE / 2,
        outage_backoff_max: OUTAGE_BACKOFF_MAX,
        advanced: Advanced { lease_margin: LEASE / 6, ..Advanced::default() },
        ..Config::default()
    }
}
