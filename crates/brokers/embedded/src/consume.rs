//! A consumer of one group.

pub(crate) mod assignment;
pub(crate) mod lag;
pub(crate) mod lanes;
mod receive;

use std::sync::Arc;

use async_trait::async_trait;
use relevo_core::{
    AckOutcome, BrokerConsumer, ConsumerCapabilities, ConsumerOptions, Delivery, DeliveryTag, Failure, Lane,
};
use sqlx::SqlitePool;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::address::AddressPatterns;
use crate::classify::Error;
use crate::consume::lanes::ConsumerState;
use crate::publish::{BrokerFile, BrokerInner};
use crate::topology::StoredGroup;

/// A consumer of one group. A background task renews its lanes, so handlers can take as long as they need. If it is
/// dropped without [`close`](BrokerConsumer::close), its lanes stay leased until the lease ends.
#[derive(Debug)]
pub struct GroupConsumer {
    inner: Arc<ConsumerInner>,
    /// Aborted when the consumer is dropped.
    _heartbeat: JoinSet<()>,
}

/// State that the consumer and its heartbeat task share.
#[derive(Debug)]
pub(crate) struct ConsumerInner {
    pub(crate) broker: Arc<BrokerInner>,
    pub(crate) group: StoredGroup,
    pub(crate) patterns: AddressPatterns,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) options: ConsumerOptions,
    pub(crate) owner: Uuid,
    /// Locked while memory and the file must agree; never while waiting for messages.
    pub(crate) state: Mutex<ConsumerState>,
    /// Notified when this consumer has new capacity, a changed pause or a changed lane.
    pub(crate) changed: Notify,
    closed: watch::Sender<bool>,
}

impl BrokerFile {
    /// Opens a consumer of this group. It claims its share of the lanes as other consumers release them.
    pub async fn consumer(&self, group: &str, options: ConsumerOptions) -> Result<GroupConsumer, Error> {
        let stored = StoredGroup::find(self.0.connections.readers(), group).await?;
        let group = stored.ok_or_else(|| Error::GroupNotFound(group.to_owned()))?;
        let inner = Arc::new(ConsumerInner {
            broker: Arc::clone(&self.0),
            patterns: group.patterns(),
            lanes: (0..group.lanes).map(|lane| Lane::new(lane.to_string())).collect(),
            group,
            options,
            owner: Uuid::new_v4(),
            state: Mutex::default(),
            changed: Notify::new(),
            closed: watch::Sender::new(false),
        });
        inner.rebalance(&mut *inner.state.lock().await).await?;
        // Wake the other consumers: they now own more than their share.
        self.0.change_notifier.notify();
        let mut heartbeat = JoinSet::new();
        heartbeat.spawn(run_heartbeat(Arc::clone(&inner)));
        Ok(GroupConsumer { inner, _heartbeat: heartbeat })
    }
}

/// Renews the lanes and claims expired ones, until the consumer is closed or dropped.
async fn run_heartbeat(inner: Arc<ConsumerInner>) {
    let mut closed = inner.closed.subscribe();
    loop {
        // Three heartbeats per lease: two may be late.
        if timeout(inner.options.lease / 3, closed.wait_for(|closed| *closed)).await.is_ok() {
            return;
        }
        let mut state = inner.state.lock().await;
        if *inner.closed.borrow() {
            return;
        }
        match inner.rebalance(&mut state).await {
            Ok(()) => inner.changed.notify_waiters(),
            // The next call to receive or acknowledge returns this error; the next heartbeat retries.
            Err(error) => {
                tracing::warn!(group = inner.group.name, %error, "cannot renew lanes, will retry");
            }
        }
    }
}

impl ConsumerInner {
    pub(crate) fn lease_ms(&self) -> i64 {
        i64::try_from(self.options.lease.as_millis()).unwrap_or(i64::MAX / 2)
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Error> {
        assert!(limit > 0, "the limit must not be zero");
        let mut closed = self.closed.subscribe();
        loop {
            // Register for all events before the check, so that no change in between is missed.
            let notified = self.broker.change_notifier.notified();
            let changed = self.changed.notified();
            let version = self.broker.change_notifier.data_version().await?;
            let mut state = self.state.lock().await;
            if *closed.borrow_and_update() {
                return Ok(Vec::new());
            }
            if state.uncertain {
                self.reload_if_uncertain(&mut state).await?;
            }
            if self.needs_rebalance(&state).await? {
                self.rebalance(&mut state).await?;
            }
            let fetched = self.fetch(&mut state, limit).await?;
            if !fetched.deliveries.is_empty() {
                return Ok(fetched.deliveries);
            }
            drop(state);
            if fetched.more {
                continue;
            }
            tokio::select! {
                () = notified => {}
                () = changed => {}
                // The sender lives as long as `self`.
                _ = closed.changed() => {}
                version = self.wait_for_change(version) => version?,
            }
        }
    }

    /// Returns once another connection has committed.
    async fn wait_for_change(&self, version: i64) -> Result<(), Error> {
        loop {
            sleep(self.broker.config.poll_interval).await;
            if self.broker.change_notifier.data_version().await? != version {
                return Ok(());
            }
        }
    }

    async fn set_paused(&self, lane: &Lane, paused: bool) {
        let mut state = self.state.lock().await;
        let number = self.lanes.iter().position(|known| known == lane).and_then(|index| u16::try_from(index).ok());
        if let Some(held) = number.and_then(|number| state.lanes.get_mut(&number)) {
            held.paused = paused;
        }
        drop(state);
        self.changed.notify_waiters();
    }
}

#[async_trait]
impl BrokerConsumer for GroupConsumer {
    fn capabilities(&self) -> ConsumerCapabilities {
        ConsumerCapabilities { ordered_lanes: true, prefetch: self.inner.options.prefetch }
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        Ok(self.inner.receive(limit).await?)
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        // One transaction records all of them, or none.
        match self.inner.acknowledge(tags).await {
            Ok(stale) => {
                let outcome = |tag| if stale.contains(tag) { AckOutcome::Stale } else { AckOutcome::Acknowledged };
                tags.iter().map(outcome).collect()
            }
            Err(error) => AckOutcome::failed(error, tags.len()),
        }
    }

    async fn pause(&self, lane: &Lane) -> Result<(), Failure> {
        self.inner.set_paused(lane, true).await;
        Ok(())
    }

    async fn resume(&self, lane: &Lane) -> Result<(), Failure> {
        self.inner.set_paused(lane, false).await;
        Ok(())
    }

    async fn lag(&self) -> Result<Vec<(Lane, u64)>, Failure> {
        Ok(self.inner.lag().await?)
    }

    async fn close(&self) -> Result<(), Failure> {
        let mut state = self.inner.state.lock().await;
        // Set this first: nothing may be delivered after it, even if the file cannot be written.
        if self.inner.closed.send_replace(true) {
            return Ok(());
        }
        Ok(self.inner.leave_group(&mut state).await?)
    }
}

/// Notifies consumers of the same process at once. Consumers of other processes detect that the file changed.
#[derive(Debug)]
pub(crate) struct ChangeNotifier {
    notify: Arc<Notify>,
    watch_pool: SqlitePool,
}

impl ChangeNotifier {
    /// `watch_pool` has one connection, which never writes.
    pub(crate) fn new(watch_pool: SqlitePool) -> Self {
        Self { notify: Arc::default(), watch_pool }
    }

    /// Notifies consumers that a message was published or returned, or that a lane was released.
    pub(crate) fn notify(&self) {
        self.notify.notify_waiters();
    }

    /// Completes at the next [`notify`](Self::notify) after this call.
    pub(crate) fn notified(&self) -> OwnedNotified {
        Arc::clone(&self.notify).notified_owned()
    }

    /// A number that changes whenever another connection commits.
    pub(crate) async fn data_version(&self) -> Result<i64, Error> {
        Ok(sqlx::query_scalar("PRAGMA data_version").fetch_one(&self.watch_pool).await?)
    }
}
