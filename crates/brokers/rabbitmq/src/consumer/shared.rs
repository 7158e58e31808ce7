//! State that a consumer and its tasks share.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapin::Channel;
use relevo_core::{Class, Delivery, Lane};
use tokio::sync::{Notify, mpsc, watch};

use super::Membership;
use super::arrived::Arrived;
use super::lag::Ask;
use super::lane::Leaving;
use super::share::Wish;
use super::side::Side;
use super::state::State;
use crate::classify::Error;
use crate::config::Config;
use crate::group::Group;

/// State that the consumer and its tasks share.
pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) group: Group,
    pub(crate) membership: Membership,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) queues: Vec<String>,
    pub(crate) side: Side,
    /// Sends requests for the number of waiting messages.
    pub(crate) counting: mpsc::Sender<Ask>,
    pub(crate) state: Mutex<State>,
    /// Notified when there may be deliveries or an error.
    pub(crate) changed: Notify,
    /// Notified when a lane may have no outstanding deliveries, or must be released.
    pub(crate) wakers: Vec<Notify>,
    /// Notified when a lane was released or claimed.
    pub(crate) moved: Notify,
    pub(crate) sessions: watch::Sender<Session>,
    /// Set when the consumer has its share of the lanes, or can have none.
    pub(crate) joined: watch::Sender<bool>,
}

/// The state of the lanes' connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    Down,
    /// All lanes are subscribed. The number identifies the connection.
    Up(u64),
    /// The consumer is closed.
    Over,
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // No code panics in the middle of a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn channels(&self) -> Vec<Channel> {
        self.state().lanes.iter().filter_map(|lane| lane.channel.clone()).collect()
    }

    /// Whether members share the lanes. For a single queue, the broker assigns the consumers.
    pub(crate) fn is_shared(&self) -> bool {
        self.queues.len() > 1
    }

    /// Records that a lane is subscribed.
    pub(crate) fn opened(&self, lane: usize, channel: Channel) {
        let mut state = self.state();
        state.lanes[lane].channel = Some(channel);
        if state.lanes.iter().all(|lane| lane.channel.is_some()) {
            let session = Session::Up(state.session);
            drop(state);
            self.sessions.send_if_modified(|current| {
                let news = *current != session && *current != Session::Over;
                if news {
                    *current = session;
                }
                news
            });
            if !self.is_shared() {
                self.joined.send_replace(true);
            }
        }
        self.moved.notify_one();
    }

    /// Records that a lane is no longer subscribed.
    pub(crate) fn lost(&self, lane: usize, handed_over: bool) {
        let mut state = self.state();
        state.forget(lane);
        if handed_over {
            state.lanes[lane].paused = false;
            state.given[lane] = state.view;
        }
        drop(state);
        self.moved.notify_one();
    }

    pub(crate) fn disconnected(&self) {
        self.sessions.send_if_modified(|current| {
            let news = matches!(current, Session::Up(_));
            if news {
                *current = Session::Down;
            }
            news
        });
    }

    /// Stores a delivery of a lane. Returns its tag if its delay has not ended.
    pub(crate) fn arrived(&self, lane: usize, mut arrived: Arrived) -> Option<u64> {
        if self.group.retry.is_empty() {
            // There is no retry queue for the remaining delay, so the message would never be delivered.
            arrived.pause_left = Duration::ZERO;
        }
        let climbs = !arrived.pause_left.is_zero();
        let tag = self.state().keep(lane, arrived);
        self.changed.notify_waiters();
        climbs.then_some(tag)
    }

    /// Records an error. Receivers get it if it needs an operator.
    pub(crate) fn trouble(&self, queue: &str, error: Error) {
        let group = &self.group.name;
        match error.class() {
            Class::Outage | Class::Unknown | Class::Throttled(_) | Class::Transient => {
                tracing::warn!(group, queue, %error, "the broker is away, will try again");
            }
            Class::Blocked | Class::Poison => {
                tracing::error!(group, queue, %error, "nothing can be received until a person mends it");
                self.state().trouble = Some(error);
                self.joined.send_replace(true);
                self.changed.notify_waiters();
            }
        }
    }

    /// Whether a lane must be released.
    pub(crate) fn leaving(&self, lane: usize) -> Leaving {
        let state = self.state();
        match &state.lanes[lane] {
            lane if !lane.leaving => Leaving::Stays,
            lane if lane.is_busy() => Leaving::Busy,
            _ => Leaving::Idle,
        }
    }

    /// Applies the assignment. Returns whether this member has released every lane of others.
    pub(crate) fn share_out(&self, view: u64, wish: impl Fn(usize) -> Wish) -> bool {
        let mut state = self.state();
        state.view = view;
        let mut settled = true;
        for lane in 0..self.queues.len() {
            let given = state.given[lane] == view;
            let leaves = match wish(lane) {
                Wish::Keep => false,
                Wish::Wait => {
                    settled &= given;
                    false
                }
                Wish::GiveUp => {
                    // Until it is subscribed again, the release may not be complete.
                    settled &= given && state.lanes[lane].channel.is_some();
                    !given
                }
            };
            if std::mem::replace(&mut state.lanes[lane].leaving, leaves) != leaves {
                self.wakers[lane].notify_one();
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
                let mut state = self.state();
                if state.closed {
                    return Ok(Vec::new());
                }
                if let Some(error) = state.trouble.take() {
                    return Err(error);
                }
                let deliveries = state.hand_out(limit, &self.lanes);
                if !deliveries.is_empty() {
                    return Ok(deliveries);
                }
            }
            changed.await;
        }
    }

    pub(crate) fn set_paused(&self, lane: &Lane, paused: bool) {
        if let Some(index) = self.lanes.iter().position(|known| known == lane) {
            self.state().lanes[index].paused = paused;
        }
        self.changed.notify_waiters();
    }

    /// Stops deliveries and acknowledgements.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.closed = true;
        for lane in &mut state.lanes {
            lane.held.clear();
            lane.leaving = true;
        }
        drop(state);
        self.changed.notify_waiters();
        self.sessions.send_replace(Session::Over);
    }
}
