//! Acquires and releases lane leases, and pauses and resumes lanes at the broker. One call at a time.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::inbox::{Inbox, LaneLease};
use relevo_core::store::StoreError;
use relevo_core::{Class, Failure, Lane};
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use crate::breaker::BreakerState;
use crate::lane_queues::{LaneQueue, LaneQueues};
use crate::runtime::{BoxedCall, ConsumerError, ConsumerRuntime};

/// The result of a lane call.
pub(crate) enum LaneCallResult {
    /// Leases were requested.
    Acquired(Vec<Lane>, Result<Vec<LaneLease>, StoreError>),
    /// Leases were released, each with the lease that this member knew of, if any.
    Released(Vec<(Lane, Option<LaneLease>)>, Result<(), StoreError>),
    /// The broker was asked to pause or resume a lane.
    PauseSet(Lane, bool, Result<(), Failure>),
}

/// How long a call whose reply was lost may still take effect.
const UNCERTAIN_FOR: Duration = Duration::from_secs(30);

/// A lane whose lease this member may or may not hold, because a reply was lost.
#[derive(Clone, Copy)]
pub(crate) struct UncertainLease {
    /// When it is released next, unless it has messages here.
    release_at: Instant,
    expires_at: Instant,
}

impl UncertainLease {
    pub(crate) fn new(now: Instant, beat_lasts: Duration) -> Self {
        Self { release_at: now + beat_lasts, expires_at: now + UNCERTAIN_FOR }
    }
}

impl<I: Inbox + 'static> ConsumerRuntime<I>
where
    I::Transaction: 'static,
{
    pub(crate) fn start_lane_call(&mut self, now: Instant) {
        if self.lane_call.is_some() || now < self.lane_call_at {
            return;
        }
        let is_alive = self.heartbeat_state.borrow().heartbeats > 0 && now >= self.store_available_at;
        if is_alive {
            self.lane_call = self.acquire_lanes(now);
        }
        if is_alive && self.lane_call.is_none() && self.worker.config.order.is_by_key() {
            self.lane_call = self.release_lanes(now);
        }
        if self.lane_call.is_none() {
            self.lane_call = self.pause_or_resume(now);
        }
    }

    /// Requests the leases of lanes that have messages here. Without order no handler depends on them; a lane must be
    /// acquired once before operators can see and pause it.
    fn acquire_lanes(&self, now: Instant) -> Option<BoxedCall<LaneCallResult>> {
        let wanted = self.lanes.map.iter().filter(|(_, state)| needs_lease(state) && state.acquire_at <= now);
        let lanes: Vec<Lane> = wanted.map(|(lane, _)| lane.clone()).collect();
        if lanes.is_empty() {
            return None;
        }
        let (work, owner) = (Arc::clone(&self.worker), self.owner);
        Some(Box::pin(async move {
            let taken = work.store_call(work.inbox.acquire_lanes(owner, &lanes)).await;
            LaneCallResult::Acquired(lanes, taken)
        }))
    }

    /// Releases the leases of idle lanes: the broker may have assigned them to another member.
    fn release_lanes(&mut self, now: Instant) -> Option<BoxedCall<LaneCallResult>> {
        let idle = self.worker.config.lane_idle_timeout;
        let mut leaving = Vec::new();
        for (lane, state) in &mut self.lanes.map {
            if release_at(state, idle).is_some_and(|at| at <= now) {
                leaving.push((lane.clone(), state.lease.take()));
            }
        }
        // A lease that was granted without our knowledge would block all other members while this one lives.
        let doubted = self
            .uncertain_leases
            .iter_mut()
            .filter(|(lane, doubt)| doubt.release_at <= now && is_unused(&self.lanes, lane));
        for (lane, doubt) in doubted {
            leaving.push((lane.clone(), None));
            doubt.release_at = now + self.worker.config.heartbeat_ttl;
        }
        self.uncertain_leases.retain(|_, doubt| doubt.release_at <= doubt.expires_at);
        if leaving.is_empty() {
            return None;
        }
        let (work, owner) = (Arc::clone(&self.worker), self.owner);
        Some(Box::pin(async move {
            let lanes: Vec<Lane> = leaving.iter().map(|(lane, _)| lane.clone()).collect();
            let given = work.store_call(work.inbox.release_lanes(owner, &lanes)).await;
            LaneCallResult::Released(leaving, given)
        }))
    }

    fn pause_or_resume(&self, now: Instant) -> Option<BoxedCall<LaneCallResult>> {
        let (lane, pause) = self.lanes.map.iter().find_map(|(lane, state)| {
            let pause = self.wants_pause(lane, state, now);
            (pause != state.paused || self.unconfirmed_pauses.contains(lane)).then(|| (lane.clone(), pause))
        })?;
        let (consumer, deadline) = (Arc::clone(&self.consumer), self.worker.config.broker_timeout);
        Some(Box::pin(async move {
            let call = async { if pause { consumer.pause(&lane).await } else { consumer.resume(&lane).await } };
            let silent = |_| Err(Failure::new(Class::Unknown, "the broker did not answer in time"));
            let told = timeout(deadline, call).await.unwrap_or_else(silent);
            LaneCallResult::PauseSet(lane, pause, told)
        }))
    }

    /// The broker delivers no more messages of a blocked lane, so that other lanes can use the memory.
    fn wants_pause(&self, lane: &Lane, state: &LaneQueue, now: Instant) -> bool {
        if self.heartbeat_state.borrow().reply.paused_lanes.contains(lane) {
            return true;
        }
        match self.worker.breakers.state(lane, now) {
            BreakerState::Closed => false,
            BreakerState::OpenUntil(_) => true,
            // A message in memory can probe; without one, the broker must deliver one.
            BreakerState::HalfOpen => !state.is_empty(),
        }
    }

    pub(crate) fn apply_lane_call(&mut self, chored: LaneCallResult) -> Result<(), ConsumerError> {
        let now = Instant::now();
        match chored {
            LaneCallResult::Acquired(asked, Ok(taken)) => {
                self.lane_call_errors = 0;
                self.apply_acquired(&asked, taken, now);
            }
            LaneCallResult::Acquired(asked, Err(error)) => {
                let doubt = UncertainLease::new(now, self.worker.config.heartbeat_ttl);
                self.uncertain_leases.extend(asked.into_iter().map(|lane| (lane, doubt)));
                self.lane_call_failed(error, now)?;
            }
            LaneCallResult::Released(leaving, Ok(())) => {
                for (lane, _) in leaving {
                    debug!(%lane, "a lane was given back");
                    let is_told = !self.unconfirmed_pauses.contains(&lane);
                    if self.lanes.map.get(&lane).is_some_and(|state| state.is_empty() && !state.paused && is_told) {
                        self.lanes.map.remove(&lane);
                    }
                }
            }
            LaneCallResult::Released(leaving, Err(error)) => {
                // The lease counts as held and is released again later. If another member holds it, writes are fenced.
                for (lane, held) in leaving {
                    if let Some(state) = self.lanes.map.get_mut(&lane) {
                        state.lease = state.lease.take().or(held);
                    }
                }
                self.lane_call_failed(error, now)?;
            }
            LaneCallResult::PauseSet(lane, pause, Ok(())) => {
                info!(%lane, pause, "a lane was paused or resumed at the broker");
                self.unconfirmed_pauses.remove(&lane);
                if let Some(state) = self.lanes.map.get_mut(&lane) {
                    state.paused = pause;
                }
            }
            LaneCallResult::PauseSet(lane, pause, Err(failure)) => {
                warn!(%lane, pause, error = %failure.error_chain(), "a lane was not paused or resumed, will try again");
                self.lane_call_at = now + self.worker.config.outage_backoff_max;
                // The call may have taken effect, so the wanted state is sent again.
                self.unconfirmed_pauses.insert(lane);
            }
        }
        Ok(())
    }

    fn apply_acquired(&mut self, asked: &[Lane], taken: Vec<LaneLease>, now: Instant) {
        let config = &self.worker.config;
        let again = if config.order.is_by_key() { config.lane_acquire_interval } else { config.heartbeat_ttl };
        for lane in asked {
            if let Some(state) = self.lanes.map.get_mut(lane) {
                state.acquire_at = now + again;
                let since = *state.wanted_since.get_or_insert(now);
                if config.order.is_by_key() && now.duration_since(since) > config.heartbeat_ttl * 3 {
                    warn!(%lane, "a lane with messages here stays another member's: the broker must give each lane to one");
                    state.wanted_since = Some(now);
                }
            }
        }
        for held in taken {
            if let Some(state) = self.lanes.map.get_mut(&held.lane) {
                debug!(lane = %held.lane, epoch = held.epoch, "a lane was taken");
                state.lease = Some(held);
                state.wanted_since = None;
            }
        }
    }

    fn lane_call_failed(&mut self, error: StoreError, now: Instant) -> Result<(), ConsumerError> {
        let mut refused = self.lane_call_errors;
        if let Some(at) = self.store_failed(error, &mut refused, now)? {
            self.lane_call_at = at;
        }
        self.lane_call_errors = refused;
        Ok(())
    }

    /// When the next lane call is due, as far as it depends on time alone.
    pub(crate) fn lane_call_wakes_at(&self, now: Instant) -> Option<Instant> {
        if self.lane_call.is_some() {
            return None;
        }
        let config = &self.worker.config;
        let by_key = config.order.is_by_key();
        let of_lane = |state: &LaneQueue| {
            let take = needs_lease(state).then_some(state.acquire_at);
            let give_back = release_at(state, config.lane_idle_timeout).filter(|_| by_key);
            take.or(give_back).map(|at| at.max(self.store_available_at))
        };
        let lanes = self.lanes.map.values().filter_map(of_lane).min();
        let doubted = self.uncertain_leases.iter().filter(|(lane, _)| by_key && is_unused(&self.lanes, lane));
        let doubted = doubted.map(|(_, doubt)| doubt.release_at.max(self.store_available_at)).min();
        let tells = |(lane, state): (&Lane, &LaneQueue)| {
            self.wants_pause(lane, state, now) != state.paused || self.unconfirmed_pauses.contains(lane)
        };
        let pauses = self.lanes.map.iter().any(tells);
        let next = lanes.into_iter().chain(doubted).chain(pauses.then_some(now)).min()?;
        Some(next.max(self.lane_call_at))
    }
}

const fn needs_lease(state: &LaneQueue) -> bool {
    state.lease.is_none() && !state.is_empty()
}

/// Whether a lane has no message here and no known lease.
fn is_unused(lanes: &LaneQueues, lane: &Lane) -> bool {
    lanes.map.get(lane).is_none_or(|state| state.lease.is_none() && state.is_empty())
}

fn release_at(state: &LaneQueue, idle: Duration) -> Option<Instant> {
    let leaves = state.lease.is_some() && state.is_empty();
    leaves.then(|| if state.revoked { state.idle_since } else { state.idle_since + idle })
}
