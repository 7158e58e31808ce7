//! One consumer of a group.

use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::stream;
use async_trait::async_trait;
use relevo_core::{AckOutcome, BrokerConsumer, ConsumerCapabilities, Delivery, DeliveryTag, Failure, Lane};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::classify::{Error, api};
use crate::config::Config;
use crate::group::Group;
use crate::lanes::Bucket;
use crate::link;

mod attend;
mod count;
mod declare;
mod hand_out;
mod lag;
mod lane;
mod read;
mod settle;
mod window;

pub use declare::declare;
pub(crate) use declare::{bucket, context, is_no_stream};
use lane::Cell;

/// How a consumer takes part in its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Its name, for people.
    pub name: String,
    /// At most so many deliveries of one lane are out; not more than the group's `max_ack_pending`.
    pub prefetch: usize,
    /// After so long without a sign of life its lanes go to others.
    pub lease: Duration,
}

impl Default for Membership {
    fn default() -> Self {
        Self { name: "consumer".to_owned(), prefetch: 256, lease: Duration::from_secs(10) }
    }
}

/// A consumer of one group. It keeps its lanes by tasks of its own, however long a message is worked on; dropping it
/// without [`close`](BrokerConsumer::close) leaves them until the lease ends.
pub struct NatsConsumer {
    shared: Arc<Shared>,
}

/// What the consumer and its tasks share.
pub(crate) struct Shared {
    client: Client,
    stream: stream::Stream<()>,
    bucket: Bucket,
    group: Group,
    membership: Membership,
    /// Nobody else's, ever.
    id: String,
    deadline: Duration,
    cells: Vec<Cell>,
    /// Something that can be received may be there, or a lane came or went.
    changed: Arc<Notify>,
    /// The lanes are to be looked at before the next beat.
    attend_now: Notify,
    /// One look at a time.
    attending: tokio::sync::Mutex<attend::Presence>,
    /// One look for what can be received at a time.
    looking: tokio::sync::Mutex<()>,
    closed: watch::Sender<bool>,
    /// The next who receives is told.
    fault: Fault,
    tags: AtomicU64,
    /// The lane that is asked first; another one each time.
    turn: AtomicUsize,
    /// Aborted when the consumer is dropped.
    tasks: Mutex<JoinSet<()>>,
}

/// A new consumer of this group, which must be [declared](declare). It takes its share of the lanes as others give it up.
pub async fn consumer(config: &Config, group: &Group, membership: Membership) -> Result<NatsConsumer, Error> {
    group.check()?;
    if membership.prefetch == 0 || membership.prefetch > group.max_ack_pending {
        return Err(Error::Config(format!("`prefetch` must be 1 to the group's {}", group.max_ack_pending)));
    }
    let fault = Fault::default();
    let changed = Arc::new(Notify::new());
    let client = link::connect_telling(config, told(&fault, &changed)).await?;
    let opened = open(client, config, group, membership, &fault, changed).await;
    // Where a right is missing nobody answers: the server told it beside.
    opened.map_err(|error| lock(&fault).take().unwrap_or(error))
}

/// What a reader met, or the server told, and only a person can mend.
type Fault = Arc<Mutex<Option<Error>>>;

/// Keeps what the server tells without being asked.
fn told(fault: &Fault, changed: &Arc<Notify>) -> impl Fn(Error) + Send + Sync + 'static {
    let (fault, changed) = (Arc::clone(fault), Arc::clone(changed));
    move |error| {
        *lock(&fault) = Some(error);
        changed.notify_waiters();
    }
}

async fn open(
    client: Client,
    config: &Config,
    group: &Group,
    membership: Membership,
    fault: &Fault,
    changed: Arc<Notify>,
) -> Result<NatsConsumer, Error> {
    group.check_record(client.max_payload())?;
    let context = declare::context(&client, config);
    declare::check(&context, group).await?;
    let stream = context.get_stream_no_info(&group.stream).await;
    let stream = stream.map_err(|error| api("looking for the stream", error))?;
    let bucket = Bucket::open(&context, group, config.ack_deadline).await?;
    let shared = Arc::new(Shared {
        client,
        stream,
        bucket,
        cells: (0..group.lane_count()).map(|number| Cell::new(group, number)).collect(),
        group: group.clone(),
        membership,
        id: identifier(),
        deadline: config.ack_deadline,
        changed,
        attend_now: Notify::new(),
        attending: tokio::sync::Mutex::default(),
        looking: tokio::sync::Mutex::default(),
        closed: watch::Sender::new(false),
        fault: Arc::clone(fault),
        tags: AtomicU64::new(1),
        turn: AtomicUsize::default(),
        tasks: Mutex::default(),
    });
    let consumer = NatsConsumer { shared };
    attend::begin(&consumer.shared).await?;
    Ok(consumer)
}

/// Random enough that no two consumers ever have the same.
fn identifier() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

impl Shared {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> tokio::task::AbortHandle {
        let mut tasks = lock(&self.tasks);
        // Those that ended are of no more interest.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task)
    }

    fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    fn lease_ms(&self) -> u64 {
        u64::try_from(self.membership.lease.as_millis()).unwrap_or(u64::MAX / 2)
    }

    async fn set_paused(&self, lane: &Lane, paused: bool) {
        if let Some(cell) = self.cells.iter().find(|cell| cell.lane == *lane)
            && let Some(held) = &mut *cell.held.lock().await
        {
            held.paused = paused;
        }
        self.changed.notify_waiters();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while one is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NatsConsumer {
    /// The name of its group.
    pub fn group(&self) -> &str {
        &self.shared.group.name
    }
}

impl fmt::Debug for NatsConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsConsumer").field("group", &self.shared.group.name).finish_non_exhaustive()
    }
}

impl Drop for NatsConsumer {
    fn drop(&mut self) {
        // The tasks hold what they share, so that it would otherwise live on with them.
        lock(&self.shared.tasks).abort_all();
    }
}

#[async_trait]
impl BrokerConsumer for NatsConsumer {
    fn capabilities(&self) -> ConsumerCapabilities {
        ConsumerCapabilities { ordered_lanes: true }
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        Ok(self.shared.receive(limit).await?)
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        self.shared.acknowledge(tags).await
    }

    async fn pause(&self, lane: &Lane) -> Result<(), Failure> {
        self.shared.set_paused(lane, true).await;
        Ok(())
    }

    async fn resume(&self, lane: &Lane) -> Result<(), Failure> {
        self.shared.set_paused(lane, false).await;
        Ok(())
    }

    async fn lag(&self) -> Result<Vec<(Lane, u64)>, Failure> {
        Ok(self.shared.lag().await?)
    }

    async fn close(&self) -> Result<(), Failure> {
        // First, so that nothing is handed out any more even if the server cannot be told.
        self.shared.closed.send_replace(true);
        let deadline = self.shared.deadline;
        let left = tokio::time::timeout(deadline, self.shared.leave()).await;
        // Whatever could not be given back is left to its lease, so nobody may renew it or keep its messages.
        lock(&self.shared.tasks).abort_all();
        // Nor are acknowledgements written any more that still wait: their callers learn it.
        for cell in &self.shared.cells {
            lock(&cell.calls).clear();
        }
        Ok(left.unwrap_or(Err(Error::Unconfirmed(deadline)))?)
    }
}
