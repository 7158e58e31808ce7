//! A consumer of one group.

mod arrived;
mod lag;
mod lane;
mod settle;
mod share;
mod shared;
mod side;
mod state;

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use lapin::Connection;
use relevo_core::{
    AckOutcome, BrokerConsumer, ConsumerCapabilities, DelayedRetry, Delivery, DeliveryTag, Failure, Lane,
};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub use arrived::raw;

use crate::backoff::Backoff;
use crate::classify::Error;
use crate::config::Config;
use crate::group::Group;
use crate::link;
use shared::{Session, Shared};
use side::Side;
use state::State;

/// How long a new consumer waits for its share of the lanes. Afterwards it is returned without them.
const JOIN_DEADLINE: Duration = Duration::from_secs(3);

/// The options of a consumer in its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The display name of the consumer. The broker's tools show it with its connections.
    pub name: String,
    /// The maximum number of deliveries per lane that are outstanding or buffered. It must be the same for all
    /// consumers of an ordered group.
    pub prefetch: u16,
    /// How long a lane that moves to another consumer waits for its outstanding deliveries to be acknowledged.
    pub hand_over: Duration,
}

impl Default for Membership {
    fn default() -> Self {
        Self { name: "relevo".to_owned(), prefetch: 256, hand_over: Duration::from_secs(10) }
    }
}

/// A consumer of one group. Background tasks connect and reconnect it; they end when it is dropped.
pub struct RabbitConsumer {
    shared: Arc<Shared>,
    tasks: tokio::sync::Mutex<JoinSet<()>>,
}

/// Opens a consumer of this group. It subscribes to all lanes and gets its share as other consumers release them. It is
/// returned when it has its share, or after three seconds.
///
/// An unreachable broker is not an error: the consumer connects when the broker is up.
/// [`receive`](BrokerConsumer::receive) returns errors that need an operator, such as a wrong password or a missing
/// queue, each time they occur.
pub async fn consumer(config: &Config, group: &Group, membership: Membership) -> Result<RabbitConsumer, Error> {
    config.check()?;
    group.check()?;
    if membership.prefetch == 0 {
        return Err(Error::Config("a prefetch of nothing would never receive".to_owned()));
    }
    let config = Arc::new(config.clone());
    let queues = group.queues();
    let name = format!("{} (retries of {})", membership.name, group.name);
    let (side, publishing) = Side::new(Arc::clone(&config), name);
    let (counting, asked) = mpsc::channel(lag::ASKED_MAX);
    let lane_name =
        |index: usize| Lane::new(if group.lanes.is_some() { index.to_string() } else { group.name.clone() });
    let shared = Arc::new(Shared {
        config,
        membership,
        lanes: (0..queues.len()).map(lane_name).collect(),
        group: group.clone(),
        side,
        counting,
        state: Mutex::new(State::new(queues.len())),
        changed: Notify::new(),
        wakers: queues.iter().map(|_| Notify::new()).collect(),
        queues,
        moved: Notify::new(),
        sessions: watch::Sender::new(Session::Down),
        joined: watch::Sender::new(false),
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(publishing);
    tasks.spawn(keep(Arc::clone(&shared), asked));
    if shared.is_shared() {
        tasks.spawn(share::attend(Arc::clone(&shared)));
    }
    let mut joined = shared.joined.subscribe();
    timeout(JOIN_DEADLINE, joined.wait_for(|joined| *joined)).await.ok();
    Ok(RabbitConsumer { shared, tasks: tokio::sync::Mutex::new(tasks) })
}

/// Maintains a connection with all lanes until the consumer is closed.
async fn keep(shared: Arc<Shared>, mut asked: mpsc::Receiver<lag::Ask>) {
    let name = format!("{} ({})", shared.membership.name, shared.group.name);
    let mut backoff = Backoff::default();
    for session in 0.. {
        let mut over = shared.sessions.subscribe();
        let connection = tokio::select! {
            connected = link::connect(&shared.config, &name) => connected,
            _ = over.wait_for(|session| *session == Session::Over) => return,
        };
        match connection {
            Ok(connection) => {
                backoff = Backoff::default();
                if serve(&shared, &connection, &mut asked, session).await {
                    return;
                }
            }
            Err(error) => shared.trouble("", error),
        }
        sleep(backoff.next()).await;
    }
}

/// Serves all lanes on one connection. Returns whether the consumer was closed.
async fn serve(
    shared: &Arc<Shared>,
    connection: &Connection,
    asked: &mut mpsc::Receiver<lag::Ask>,
    session: u64,
) -> bool {
    let mut over = shared.sessions.subscribe();
    shared.state().session = session;
    let mut lanes = pin!(join_all((0..shared.queues.len()).map(|lane| lane::serve(shared, connection, lane))));
    tokio::select! {
        _ = &mut lanes => {
            shared.disconnected();
            return false;
        }
        () = lag::answer(shared, connection, asked) => {}
        _ = over.wait_for(|session| *session == Session::Over) => {}
    }
    // Close the channels while the subscriptions exist: dropping a subscription cancels it.
    let deadline = shared.config.connect_deadline;
    timeout(deadline, join_all(shared.channels().iter().map(|channel| channel.close(200, "OK".into())))).await.ok();
    timeout(deadline, connection.close(200, "OK".into())).await.ok();
    true
}

impl RabbitConsumer {
    /// Whether it is subscribed to all of its lanes now.
    pub fn is_connected(&self) -> bool {
        let state = self.shared.state();
        state.lanes.iter().all(|lane| lane.channel.as_ref().is_some_and(|channel| channel.status().connected()))
    }
}

#[async_trait]
impl BrokerConsumer for RabbitConsumer {
    fn capabilities(&self) -> ConsumerCapabilities {
        ConsumerCapabilities { ordered_lanes: self.shared.group.is_ordered() }
    }

    fn delayed_retry(&self) -> Option<&dyn DelayedRetry> {
        Some(self)
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        Ok(self.shared.receive(limit).await?)
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        let deliveries: Vec<_> = tags.iter().map(|tag| (*tag, None)).collect();
        self.shared.settle(&deliveries).await
    }

    async fn pause(&self, lane: &Lane) -> Result<(), Failure> {
        self.shared.set_paused(lane, true);
        Ok(())
    }

    async fn resume(&self, lane: &Lane) -> Result<(), Failure> {
        self.shared.set_paused(lane, false);
        Ok(())
    }

    async fn lag(&self) -> Result<Vec<(Lane, u64)>, Failure> {
        Ok(self.shared.lag().await?)
    }

    async fn close(&self) -> Result<(), Failure> {
        self.shared.end();
        let mut tasks = self.tasks.lock().await;
        // The publishing task gets no more requests.
        while tasks.len() > 1 {
            if let Some(Err(error)) = tasks.join_next().await {
                assert!(!error.is_panic(), "a task of the consumer panicked: {error}");
            }
        }
        tasks.shutdown().await;
        Ok(())
    }
}

#[async_trait]
impl DelayedRetry for RabbitConsumer {
    async fn retry_later(&self, retries: &[(DeliveryTag, Duration)]) -> Vec<AckOutcome> {
        let deliveries: Vec<_> = retries.iter().map(|(tag, delay)| (*tag, Some(*delay))).collect();
        self.shared.settle(&deliveries).await
    }
}

impl Drop for RabbitConsumer {
    fn drop(&mut self) {
        self.shared.end();
        for channel in self.shared.channels() {
            // The first poll queues the frame. It must be queued before the tasks end, because they drop the
            // subscriptions and so cancel them: see `lane::serve`.
            channel.close(200, "OK".into()).now_or_never();
        }
    }
}

impl fmt::Debug for RabbitConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { group, membership, .. } = &*self.shared;
        f.debug_struct("RabbitConsumer").field("group", group).field("membership", membership).finish_non_exhaustive()
    }
}
