//! A consumer of one group.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::stream;
use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::{
    AckOutcome, BrokerConsumer, ConsumerCapabilities, ConsumerOptions, Delivery, DeliveryTag, Failure, Lane,
};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::classify::{Error, api_error};
use crate::config::Config;
use crate::connection::{self, jetstream};
use crate::topology::Group;
use crate::topology::apply::verify_group;

mod assignment;
mod lag;
pub(crate) mod lane_messages;
pub(crate) mod lane_store;
pub(crate) mod lanes;
mod reader;
mod receive;

use self::lane_store::LaneStore;
use self::lanes::LaneSlot;

/// A consumer of one group. Background tasks renew its lanes, so handlers can take as long as they need. If it is
/// dropped without [`close`](BrokerConsumer::close), its lanes stay leased until the lease ends.
pub struct GroupConsumer {
    inner: Arc<ConsumerInner>,
}

/// State that the consumer and its tasks share.
pub(crate) struct ConsumerInner {
    client: Client,
    /// Changes when the connection was restored. Deliveries to the lost connection may be missing.
    connected: watch::Receiver<()>,
    stream: stream::Stream<()>,
    lane_store: LaneStore,
    group: Group,
    pub(crate) options: ConsumerOptions,
    /// Unique to this consumer.
    id: String,
    timeout: Duration,
    pub(crate) lane_slots: Vec<LaneSlot>,
    /// Notified when messages may be available, or when a lane was claimed or lost.
    pub(crate) changed: Arc<Notify>,
    /// Requests a rebalance before the next heartbeat.
    pub(crate) rebalance_now: Notify,
    /// Allows one rebalance at a time.
    rebalance_lock: tokio::sync::Mutex<assignment::Participation>,
    /// Allows one poll for deliveries at a time.
    receive_lock: tokio::sync::Mutex<()>,
    closed: watch::Sender<bool>,
    /// The next call to receive returns it.
    fatal_error: SharedError,
    next_tag: AtomicU64,
    /// The lane to poll first, a different one each time.
    next_lane: AtomicUsize,
    /// Aborted when the consumer is dropped.
    tasks: Mutex<JoinSet<()>>,
}

/// Opens a consumer of this group, which must be [declared](crate::declare_group). It claims its share of the lanes as others
/// release them.
pub async fn consumer(config: &Config, group: &Group, options: ConsumerOptions) -> Result<GroupConsumer, Error> {
    group.validate()?;
    if options.prefetch == 0 || options.prefetch > group.max_ack_pending {
        return Err(Error::Config(format!("`prefetch` must be 1 to the group's {}", group.max_ack_pending)));
    }
    let fatal_error = SharedError::default();
    let changed = Arc::new(Notify::new());
    let (sender, connected) = watch::channel(());
    let client =
        connection::connect_reporting_denials(config, record_fatal_error(&fatal_error, &changed), sender).await?;
    let opened = open(client, connected, config, group, options, &fatal_error, changed).await;
    // Without a permission the server does not respond to the request; it reports the violation separately.
    opened.map_err(|error| fatal_error.lock().take().unwrap_or(error))
}

/// An error from a reader or the server that only an operator can fix.
type SharedError = Arc<Mutex<Option<Error>>>;

/// Stores errors that the server reports asynchronously.
fn record_fatal_error(fatal_error: &SharedError, changed: &Arc<Notify>) -> impl Fn(Error) + Send + Sync + 'static {
    let (fatal_error, changed) = (Arc::clone(fatal_error), Arc::clone(changed));
    move |error| {
        *fatal_error.lock() = Some(error);
        changed.notify_waiters();
    }
}

async fn open(
    client: Client,
    connected: watch::Receiver<()>,
    config: &Config,
    group: &Group,
    options: ConsumerOptions,
    fatal_error: &SharedError,
    changed: Arc<Notify>,
) -> Result<GroupConsumer, Error> {
    group.validate_record_size(client.max_payload())?;
    let context = jetstream(&client, config);
    verify_group(&context, group).await?;
    let stream = context.get_stream_no_info(&group.stream).await;
    let stream = stream.map_err(|error| api_error("get the stream", error))?;
    let lane_store = LaneStore::open(&context, group, config.confirm_timeout).await?;
    let inner = Arc::new(ConsumerInner {
        client,
        connected,
        stream,
        lane_store,
        lane_slots: (0..group.lane_count()).map(|number| LaneSlot::new(group, number)).collect(),
        group: group.clone(),
        options,
        id: uuid::Uuid::new_v4().simple().to_string(),
        timeout: config.confirm_timeout,
        changed,
        rebalance_now: Notify::new(),
        rebalance_lock: tokio::sync::Mutex::default(),
        receive_lock: tokio::sync::Mutex::default(),
        closed: watch::Sender::new(false),
        fatal_error: Arc::clone(fatal_error),
        next_tag: AtomicU64::new(1),
        next_lane: AtomicUsize::default(),
        tasks: Mutex::default(),
    });
    let consumer = GroupConsumer { inner };
    assignment::join_group(&consumer.inner).await?;
    Ok(consumer)
}

impl ConsumerInner {
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> tokio::task::AbortHandle {
        let mut tasks = self.tasks.lock();
        // Remove finished tasks.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task)
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    fn lease_ms(&self) -> u64 {
        u64::try_from(self.options.lease.as_millis()).unwrap_or(u64::MAX / 2)
    }

    async fn set_paused(&self, lane: &Lane, paused: bool) {
        if let Some(slot) = self.lane_slots.iter().find(|slot| slot.lane == *lane)
            && let Some(owned) = &mut *slot.owned.lock().await
        {
            owned.paused = paused;
        }
        self.changed.notify_waiters();
    }
}

impl GroupConsumer {
    /// The name of the group.
    pub fn group(&self) -> &str {
        &self.inner.group.name
    }
}

impl fmt::Debug for GroupConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupConsumer").field("group", &self.inner.group.name).finish_non_exhaustive()
    }
}

impl Drop for GroupConsumer {
    fn drop(&mut self) {
        // The tasks hold references to the shared state and would keep it alive.
        self.inner.tasks.lock().abort_all();
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
        self.inner.acknowledge(tags).await
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
        // Set this first: nothing may be delivered after it, even if the server is unreachable.
        self.inner.closed.send_replace(true);
        let timeout = self.inner.timeout;
        let closed = tokio::time::timeout(timeout, self.inner.leave_group()).await;
        // Lanes that could not be released stay leased until the lease ends, so no task may renew them.
        self.inner.tasks.lock().abort_all();
        // Pending acknowledgements are not written any more. Dropping them informs their callers.
        for slot in &self.inner.lane_slots {
            slot.settle_calls.lock().clear();
        }
        Ok(closed.unwrap_or(Err(Error::Unconfirmed(timeout)))?)
    }
}
