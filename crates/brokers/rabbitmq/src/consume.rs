//! A consumer of one group.

mod assignment;
mod decode;
mod lag;
mod lanes;
mod reader;
mod receive;
pub(crate) mod retry_queues;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use lapin::{Channel, Connection};
use parking_lot::{Mutex, MutexGuard};
use relevo_core::{
    AckOutcome, BrokerConsumer, Class, ConsumerCapabilities, ConsumerOptions, DelayedRetry, Delivery, DeliveryTag,
    Failure, Lane,
};
use tokio::sync::{Notify, OnceCell, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

pub(crate) use decode::ReceivedMessage;
pub use decode::raw_message;
pub(crate) use lanes::DeliveryStage;

use crate::classify::Error;
use crate::config::Config;
use crate::connection::Reconnect;
use crate::publish::Publisher;
use crate::topology::Queue;
use lag::LagRequest;
use lanes::LaneTable;
use reader::HandOver;

/// How long a new consumer waits for its share of the lanes. Afterwards it is returned without them.
const JOIN_TIMEOUT: Duration = Duration::from_secs(3);

/// A consumer of one group. Background tasks connect and reconnect it; they end when it is dropped.
pub struct GroupConsumer {
    inner: Arc<ConsumerInner>,
    tasks: tokio::sync::Mutex<JoinSet<()>>,
}

impl GroupConsumer {
    /// Opens a consumer of a queue. It subscribes to all lanes and gets its share as other consumers release them. It
    /// is returned when it has its share, or after three seconds.
    ///
    /// An unreachable broker is not an error: the consumer connects when the broker is up.
    /// [`receive`](BrokerConsumer::receive) returns errors that need an operator, such as a wrong password or a missing
    /// queue, each time they occur.
    pub async fn open(config: &Config, queue: &Queue, options: ConsumerOptions) -> Result<Self, Error> {
        config.validate()?;
        queue.validate()?;
        let prefetch = u16::try_from(options.prefetch).unwrap_or_default();
        if prefetch == 0 {
            return Err(Error::Config("`prefetch` must be 1 to 65535".to_owned()));
        }
        let config = Arc::new(config.clone());
        let queues = queue.consumed_queues();
        let (lag_sender, lag_requests) = mpsc::channel(lag::REQUESTS_MAX);
        let lane_name =
            |index: usize| Lane::new(if queue.lanes.is_some() { index.to_string() } else { queue.name.clone() });
        let inner = Arc::new(ConsumerInner {
            config,
            options,
            prefetch,
            lanes: (0..queues.len()).map(lane_name).collect(),
            queue: queue.clone(),
            retry_publisher: OnceCell::new(),
            lag_requests: lag_sender,
            lane_table: Mutex::new(LaneTable::new(queues.len())),
            changed: Notify::new(),
            lane_wakers: queues.iter().map(|_| Notify::new()).collect(),
            queues,
            lanes_moved: Notify::new(),
            lane_connection: watch::Sender::new(LaneConnection::Down),
            joined: watch::Sender::new(false),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(maintain_lanes(Arc::clone(&inner), lag_requests));
        if inner.shares_lanes() {
            tasks.spawn(assignment::run(Arc::clone(&inner)));
        }
        let mut joined = inner.joined.subscribe();
        timeout(JOIN_TIMEOUT, joined.wait_for(|joined| *joined)).await.ok();
        Ok(Self { inner, tasks: tokio::sync::Mutex::new(tasks) })
    }

    /// Whether it is subscribed to all of its lanes now.
    pub fn is_connected(&self) -> bool {
        let table = self.inner.lane_table();
        table.lanes.iter().all(|lane| lane.channel.as_ref().is_some_and(|channel| channel.status().connected()))
    }
}

/// Keeps all lanes connected until the consumer is closed.
async fn maintain_lanes(inner: Arc<ConsumerInner>, mut lag_requests: mpsc::Receiver<LagRequest>) {
    let name = format!("{} ({})", inner.options.name, inner.queue.name);
    let mut connection_number = 0;
    let mut connections = Reconnect::new(&inner.config, &name);
    loop {
        let attempt = tokio::select! {
            biased;
            () = inner.closed() => return,
            attempt = connections.next() => attempt,
        };
        match attempt {
            Ok(connection) => {
                connection_number += 1;
                serve_lanes(&inner, &connection, &mut lag_requests, connection_number).await;
            }
            Err(error) => inner.report_error("", error),
        }
    }
}

/// Serves all lanes until the connection is lost or the consumer is closed.
async fn serve_lanes(
    inner: &Arc<ConsumerInner>,
    connection: &Connection,
    lag_requests: &mut mpsc::Receiver<LagRequest>,
    connection_number: u64,
) {
    inner.lane_table().connection_number = connection_number;
    let mut lanes = pin!(join_all((0..inner.queues.len()).map(|lane| reader::run_lane(inner, connection, lane))));
    tokio::select! {
        _ = &mut lanes => return inner.mark_disconnected(),
        () = lag::serve_requests(inner, connection, lag_requests) => {}
        () = inner.closed() => {}
    }
    // Close the channels while the subscriptions exist: dropping a subscription cancels it.
    let limit = inner.config.connect_timeout;
    timeout(limit, join_all(inner.channels().iter().map(|channel| channel.close(200, "OK".into())))).await.ok();
    timeout(limit, connection.close(200, "OK".into())).await.ok();
}

#[async_trait]
impl BrokerConsumer for GroupConsumer {
    /// As configured. A queue that exists without a single active consumer is refused when it is subscribed.
    fn capabilities(&self) -> ConsumerCapabilities {
        ConsumerCapabilities { ordered_lanes: self.inner.queue.is_ordered(), prefetch: self.inner.prefetch.into() }
    }

    fn delayed_retry(&self) -> Option<&dyn DelayedRetry> {
        if self.inner.queue.retry_delays.is_empty() { None } else { Some(self) }
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        Ok(self.inner.receive(limit).await?)
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        let deliveries: Vec<_> = tags.iter().map(|tag| (*tag, None)).collect();
        self.inner.settle(&deliveries).await
    }

    async fn pause(&self, lane: &Lane) -> Result<(), Failure> {
        self.inner.set_paused(lane, true);
        Ok(())
    }

    async fn resume(&self, lane: &Lane) -> Result<(), Failure> {
        self.inner.set_paused(lane, false);
        Ok(())
    }

    async fn lag(&self) -> Result<Vec<(Lane, u64)>, Failure> {
        Ok(self.inner.lag().await?)
    }

    async fn close(&self) -> Result<(), Failure> {
        self.inner.shut_down();
        let mut tasks = self.tasks.lock().await;
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                assert!(!error.is_panic(), "a task of the consumer panicked: {error}");
            }
        }
        if let Some(publisher) = self.inner.retry_publisher.get() {
            publisher.close().await;
        }
        Ok(())
    }
}

#[async_trait]
impl DelayedRetry for GroupConsumer {
    async fn retry_later(&self, retries: &[(DeliveryTag, Duration)]) -> Vec<AckOutcome> {
        let deliveries: Vec<_> = retries.iter().map(|(tag, delay)| (*tag, Some(*delay))).collect();
        self.inner.settle(&deliveries).await
    }
}

impl Drop for GroupConsumer {
    fn drop(&mut self) {
        self.inner.shut_down();
        for channel in self.inner.channels() {
            // The first poll queues the frame. It must be queued before the tasks end, because they drop the
            // subscriptions and so cancel them: see `reader::run_lane`.
            channel.close(200, "OK".into()).now_or_never();
        }
    }
}

impl fmt::Debug for GroupConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConsumerInner { queue, options, .. } = &*self.inner;
        f.debug_struct("GroupConsumer").field("queue", queue).field("options", options).finish_non_exhaustive()
    }
}

/// State that the consumer and its tasks share.
pub(crate) struct ConsumerInner {
    pub(crate) config: Arc<Config>,
    pub(crate) queue: Queue,
    pub(crate) options: ConsumerOptions,
    /// The prefetch of the options, as AMQP encodes it.
    pub(crate) prefetch: u16,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) queues: Vec<String>,
    /// Publishes copies to retry queues on its own connection, opened at the first retry. A server with a resource alarm
    /// blocks publishing connections, and acknowledgements must not be blocked.
    pub(crate) retry_publisher: OnceCell<Publisher>,
    /// Sends requests for the number of waiting messages.
    pub(crate) lag_requests: mpsc::Sender<LagRequest>,
    pub(crate) lane_table: Mutex<LaneTable>,
    /// Notified when there may be deliveries or an error.
    pub(crate) changed: Notify,
    /// Notified when a lane may have no outstanding deliveries, or must be released.
    pub(crate) lane_wakers: Vec<Notify>,
    /// Notified when a lane was released or claimed.
    pub(crate) lanes_moved: Notify,
    pub(crate) lane_connection: watch::Sender<LaneConnection>,
    /// Set when the consumer has its share of the lanes, or can have none.
    pub(crate) joined: watch::Sender<bool>,
}

/// The state of the lanes' connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneConnection {
    Down,
    /// All lanes are subscribed. The number identifies the connection.
    Up(u64),
    /// The consumer is closed.
    Closed,
}

impl ConsumerInner {
    pub(crate) fn lane_table(&self) -> MutexGuard<'_, LaneTable> {
        // No code panics in the middle of a change.
        self.lane_table.lock()
    }

    /// Returns when the consumer is closed.
    async fn closed(&self) {
        let mut connection = self.lane_connection.subscribe();
        connection.wait_for(|connection| *connection == LaneConnection::Closed).await.ok();
    }

    /// The publisher of retries, which starts to connect at its first use.
    pub(crate) async fn retry_publisher(&self) -> &Publisher {
        let name = || format!("{} (retries of {})", self.options.name, self.queue.name);
        self.retry_publisher.get_or_init(async || Publisher::start(Arc::clone(&self.config), name())).await
    }

    pub(crate) fn channels(&self) -> Vec<Channel> {
        self.lane_table().lanes.iter().filter_map(|lane| lane.channel.clone()).collect()
    }

    /// Whether members share the lanes. For a single queue, the broker assigns the consumers.
    pub(crate) fn shares_lanes(&self) -> bool {
        self.queues.len() > 1
    }

    /// Records that a lane is subscribed.
    pub(crate) fn lane_subscribed(&self, lane: usize, channel: Channel) {
        let mut table = self.lane_table();
        table.lanes[lane].channel = Some(channel);
        if table.lanes.iter().all(|lane| lane.channel.is_some()) {
            let up = LaneConnection::Up(table.connection_number);
            drop(table);
            self.lane_connection.send_if_modified(|current| {
                let is_new = *current != up && *current != LaneConnection::Closed;
                if is_new {
                    *current = up;
                }
                is_new
            });
            if !self.shares_lanes() {
                self.joined.send_replace(true);
            }
        }
        self.lanes_moved.notify_one();
    }

    /// Records that a lane is no longer subscribed.
    pub(crate) fn lane_unsubscribed(&self, lane: usize, handed_over: bool) {
        let mut table = self.lane_table();
        table.reset_lane(lane);
        if handed_over {
            table.lanes[lane].paused = false;
            table.released_at[lane] = table.members_hash;
        }
        drop(table);
        self.lanes_moved.notify_one();
    }

    pub(crate) fn mark_disconnected(&self) {
        self.lane_connection.send_if_modified(|current| {
            let was_up = matches!(current, LaneConnection::Up(_));
            if was_up {
                *current = LaneConnection::Down;
            }
            was_up
        });
    }

    /// Stores a delivery of a lane. Returns its tag if its delay has not ended.
    pub(crate) fn buffer_delivery(&self, lane: usize, mut message: ReceivedMessage) -> Option<u64> {
        if self.queue.retry_delays.is_empty() {
            // There is no retry queue for the remaining delay, so the message would never be delivered.
            message.delay_left = Duration::ZERO;
        }
        let is_delayed = !message.delay_left.is_zero();
        let tag = self.lane_table().insert(lane, message);
        self.changed.notify_waiters();
        is_delayed.then_some(tag)
    }

    /// Records an error. Receivers get it if it needs an operator.
    pub(crate) fn report_error(&self, queue: &str, error: Error) {
        let group = &self.queue.name;
        match error.class() {
            Class::Outage | Class::Unknown | Class::Throttled(_) | Class::Transient => {
                tracing::warn!(group, queue, %error, "the broker is unavailable, will retry");
            }
            Class::Blocked | Class::Poison => {
                tracing::error!(group, queue, %error, "cannot consume from the queue until an operator fixes it");
                self.lane_table().fatal_error = Some(error);
                self.joined.send_replace(true);
                self.changed.notify_waiters();
            }
        }
    }

    /// Whether a lane must be released.
    pub(crate) fn hand_over(&self, lane: usize) -> HandOver {
        let table = self.lane_table();
        match &table.lanes[lane] {
            lane if !lane.handing_over => HandOver::None,
            lane if lane.is_busy() => HandOver::Draining,
            _ => HandOver::Ready,
        }
    }

    pub(crate) fn set_paused(&self, lane: &Lane, paused: bool) {
        if let Some(index) = self.lanes.iter().position(|known| known == lane) {
            self.lane_table().lanes[index].paused = paused;
        }
        self.changed.notify_waiters();
    }

    /// Stops deliveries and acknowledgements.
    pub(crate) fn shut_down(&self) {
        let mut table = self.lane_table();
        table.closed = true;
        for lane in &mut table.lanes {
            lane.outstanding.clear();
            lane.handing_over = true;
        }
        drop(table);
        self.changed.notify_waiters();
        self.lane_connection.send_replace(LaneConnection::Closed);
    }
}
