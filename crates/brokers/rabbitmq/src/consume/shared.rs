//! State that a consumer and its tasks share.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lapin::Channel;
use parking_lot::{Mutex, MutexGuard};
use relevo_core::{Class, Delivery, Lane};
use tokio::sync::{Notify, mpsc, watch};

use super::Membership;
use super::assignment::LaneDecision;
use super::decode::ReceivedMessage;
use super::lag::LagRequest;
use super::lanes::LaneTable;
use super::reader::HandOver;
use super::side::Side;
use crate::classify::Error;
use crate::config::Config;
use crate::group::Group;

/// State that the consumer and its tasks share.
pub(crate) struct ConsumerInner {
    pub(crate) config: Arc<Config>,
    pub(crate) group: Group,
    pub(crate) membership: Membership,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) queues: Vec<String>,
    pub(crate) side: Side,
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

    pub(crate) fn channels(&self) -> Vec<Channel> {
        self.lane_table().lanes.iter().filter_map(|lane| lane.channel.clone()).collect()
    }

    /// Whether members share the lanes. For a single queue, the broker assigns the consumers.
    pub(crate) fn shares_lanes(&self) -> bool {
        self.queues.len() > 1
    }

    /// Records that a lane is subscribed.
    pub(crate) fn lane_subscribed(&self, lane: usize, channel: Channel) {
        let mut state = self.lane_table();
        state.lanes[lane].channel = Some(channel);
        if state.lanes.iter().all(|lane| lane.channel.is_some()) {
            let session = LaneConnection::Up(state.connection_number);
            drop(state);
            self.lane_connection.send_if_modified(|current| {
                let news = *current != session && *current != LaneConnection::Closed;
                if news {
                    *current = session;
                }
                news
            });
            if !self.shares_lanes() {
                self.joined.send_replace(true);
            }
        }
        self.lanes_moved.notify_one();
    }

    /// Records that a lane is no longer subscribed.
    pub(crate) fn lane_unsubscribed(&self, lane: usize, handed_over: bool) {
        let mut state = self.lane_table();
        state.reset_lane(lane);
        if handed_over {
            state.lanes[lane].paused = false;
            state.released_at[lane] = state.members_hash;
        }
        drop(state);
        self.lanes_moved.notify_one();
    }

    pub(crate) fn mark_disconnected(&self) {
        self.lane_connection.send_if_modified(|current| {
            let news = matches!(current, LaneConnection::Up(_));
            if news {
                *current = LaneConnection::Down;
            }
            news
        });
    }

    /// Stores a delivery of a lane. Returns its tag if its delay has not ended.
    pub(crate) fn buffer_delivery(&self, lane: usize, mut arrived: ReceivedMessage) -> Option<u64> {
        if self.group.retry.is_empty() {
            // There is no retry queue for the remaining delay, so the message would never be delivered.
            arrived.delay_left = Duration::ZERO;
        }
        let climbs = !arrived.delay_left.is_zero();
        let tag = self.lane_table().insert(lane, arrived);
        self.changed.notify_waiters();
        climbs.then_some(tag)
    }

    /// Records an error. Receivers get it if it needs an operator.
    pub(crate) fn report_error(&self, queue: &str, error: Error) {
        let group = &self.group.name;
        match error.class() {
            Class::Outage | Class::Unknown | Class::Throttled(_) | Class::Transient => {
                tracing::warn!(group, queue, %error, "the broker is away, will try again");
            }
            Class::Blocked | Class::Poison => {
                tracing::error!(group, queue, %error, "nothing can be received until a person mends it");
                self.lane_table().fatal_error = Some(error);
                self.joined.send_replace(true);
                self.changed.notify_waiters();
            }
        }
    }

    /// Whether a lane must be released.
    pub(crate) fn hand_over(&self, lane: usize) -> HandOver {
        let state = self.lane_table();
        match &state.lanes[lane] {
            lane if !lane.handing_over => HandOver::None,
            lane if lane.is_busy() => HandOver::Draining,
            _ => HandOver::Ready,
        }
    }

    /// Applies the assignment. Returns whether this member has released every lane of others.
    pub(crate) fn apply_assignment(&self, view: u64, wish: impl Fn(usize) -> LaneDecision) -> bool {
        let mut state = self.lane_table();
        state.members_hash = view;
        let mut settled = true;
        for lane in 0..self.queues.len() {
            let given = state.released_at[lane] == view;
            let leaves = match wish(lane) {
                LaneDecision::Keep => false,
                LaneDecision::Wait => {
                    settled &= given;
                    false
                }
                LaneDecision::Release => {
                    // Until it is subscribed again, the release may not be complete.
                    settled &= given && state.lanes[lane].channel.is_some();
                    !given
                }
            };
            if std::mem::replace(&mut state.lanes[lane].handing_over, leaves) != leaves {
                self.lane_wakers[lane].notify_one();
            }
        }
        drop(state);
        self.changed.notify_waiters();
        settled
    }

    pub(crate) async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Error> {
        assert!(limit > 0, "a limit of nothing would wait for ever");
        loop {
            let mut changed = pin!(self.changed.notified());
            // Register before the check, so that no change in between is missed.
            changed.as_mut().enable();
            {
                let mut state = self.lane_table();
                if state.closed {
                    return Ok(Vec::new());
                }
                if let Some(error) = state.fatal_error.take() {
                    return Err(error);
                }
                let deliveries = state.take_ready(limit, &self.lanes);
                if !deliveries.is_empty() {
                    return Ok(deliveries);
                }
            }
            changed.await;
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
        let mut state = self.lane_table();
        state.closed = true;
        for lane in &mut state.lanes {
            lane.outstanding.clear();
            lane.handing_over = true;
        }
        drop(state);
        self.changed.notify_waiters();
        self.lane_connection.send_replace(LaneConnection::Closed);
    }
}
