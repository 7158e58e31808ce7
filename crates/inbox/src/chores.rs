//! Acquires and releases lane leases, and pauses and resumes lanes at the broker. One call at a time.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::inbox::{Held, Inbox};
use relevo_core::store::StoreError;
use relevo_core::{Class, Failure, Lane};
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use crate::breaker::Gate;
use crate::lanes::{LaneState, Lanes};
use crate::runtime::{Pending, Runtime, RuntimeError};

/// The result of a lane call.
pub(crate) enum Chored {
    /// Leases were requested.
    Took(Vec<Lane>, Result<Vec<Held>, StoreError>),
    /// Leases were released, each with the lease that this member knew of, if any.
    Gave(Vec<(Lane, Option<Held>)>, Result<(), StoreError>),
    /// The broker was asked to pause or resume a lane.
    Paused(Lane, bool, Result<(), Failure>),
}

/// How long a call whose reply was lost may still take effect.
const DOUBTED_FOR: Duration = Duration::from_secs(30);

/// A lane whose lease this member may or may not hold, because a reply was lost.
#[derive(Clone, Copy)]
pub(crate) struct Doubt {
    /// When it is released next, unless it has messages here.
    next: Instant,
    until: Instant,
}

impl Doubt {
    pub(crate) fn new(now: Instant, beat_lasts: Duration) -> Self {
        Self { next: now + beat_lasts, until: now + DOUBTED_FOR }
    }
}

impl<I: Inbox + 'static> Runtime<I>
where
    I::Transaction: 'static,
{
    pub(crate) fn start_chore(&mut self, now: Instant) {
        if self.chore.is_some() || now < self.chore_at {
            return;
        }
        let is_alive = self.pulse.borrow().beats > 0 && now >= self.store_at;
        if is_alive {
            self.chore = self.take_lanes(now);
        }
        if is_alive && self.chore.is_none() && self.work.config.order.is_by_key() {
            self.chore = self.give_back(now);
        }
        if self.chore.is_none() {
            self.chore = self.pause_or_resume(now);
        }
    }

    /// Requests the leases of lanes that have messages here. Without order no handler depends on them; a lane must be
    /// acquired once before operators can see and pause it.
    fn take_lanes(&self, now: Instant) -> Option<Pending<Chored>> {
        let wanted = self.lanes.map.iter().filter(|(_, state)| is_wanted(state) && state.take_at <= now);
        let lanes: Vec<Lane> = wanted.map(|(lane, _)| lane.clone()).collect();
        if lanes.is_empty() {
            return None;
        }
        let (work, owner) = (Arc::clone(&self.work), self.owner);
        Some(Box::pin(async move {
            let taken = work.ask(work.inbox.take(owner, &lanes)).await;
            Chored::Took(lanes, taken)
        }))
    }

    /// Releases the leases of idle lanes: the broker may have assigned them to another member.
    fn give_back(&mut self, now: Instant) -> Option<Pending<Chored>> {
        let idle = self.work.config.lane_idle;
        let mut leaving = Vec::new();
        for (lane, state) in &mut self.lanes.map {
            if gives_back_at(state, idle).is_some_and(|at| at <= now) {
                leaving.push((lane.clone(), state.held.take()));
            }
        }
        // A lease that was granted without our knowledge would block all other members while this one lives.
        let doubted = self.doubted.iter_mut().filter(|(lane, doubt)| doubt.next <= now && is_unused(&self.lanes, lane));
        for (lane, doubt) in doubted {
            leaving.push((lane.clone(), None));
            doubt.next = now + self.work.config.beat_lasts;
        }
        self.doubted.retain(|_, doubt| doubt.next <= doubt.until);
        if leaving.is_empty() {
            return None;
        }
        let (work, owner) = (Arc::clone(&self.work), self.owner);
        Some(Box::pin(async move {
            let lanes: Vec<Lane> = leaving.iter().map(|(lane, _)| lane.clone()).collect();
            let given = work.ask(work.inbox.give_back(owner, &lanes)).await;
            Chored::Gave(leaving, given)
        }))
    }

    fn pause_or_resume(&self, now: Instant) -> Option<Pending<Chored>> {
        let (lane, pause) = self.lanes.map.iter().find_map(|(lane, state)| {
            let pause = self.wants_pause(lane, state, now);
            (pause != state.paused || self.untold.contains(lane)).then(|| (lane.clone(), pause))
        })?;
        let (consumer, deadline) = (Arc::clone(&self.consumer), self.work.config.broker_deadline);
        Some(Box::pin(async move {
            let call = async { if pause { consumer.pause(&lane).await } else { consumer.resume(&lane).await } };
            let silent = |_| Err(Failure::new(Class::Unknown, "the broker did not answer in time"));
            let told = timeout(deadline, call).await.unwrap_or_else(silent);
            Chored::Paused(lane, pause, told)
        }))
    }

    /// The broker delivers no more messages of a blocked lane, so that other lanes can use the memory.
    fn wants_pause(&self, lane: &Lane, state: &LaneState, now: Instant) -> bool {
        if self.pulse.borrow().orders.paused_lanes.contains(lane) {
            return true;
        }
        match self.work.breakers.gate(lane, now) {
            Gate::Flow => false,
            Gate::Shut(_) => true,
            // A message in memory can probe; without one, the broker must deliver one.
            Gate::Probe => !state.is_empty(),
        }
    }

    pub(crate) fn chored(&mut self, chored: Chored) -> Result<(), RuntimeError> {
        let now = Instant::now();
        match chored {
            Chored::Took(asked, Ok(taken)) => {
                self.chores_refused = 0;
                self.took(&asked, taken, now);
            }
            Chored::Took(asked, Err(error)) => {
                let doubt = Doubt::new(now, self.work.config.beat_lasts);
                self.doubted.extend(asked.into_iter().map(|lane| (lane, doubt)));
                self.chore_failed(error, now)?;
            }
            Chored::Gave(leaving, Ok(())) => {
                for (lane, _) in leaving {
                    debug!(%lane, "a lane was given back");
                    let is_told = !self.untold.contains(&lane);
                    if self.lanes.map.get(&lane).is_some_and(|state| state.is_empty() && !state.paused && is_told) {
                        self.lanes.map.remove(&lane);
                    }
                }
            }
            Chored::Gave(leaving, Err(error)) => {
                // The lease counts as held and is released again later. If another member holds it, writes are fenced.
                for (lane, held) in leaving {
                    if let Some(state) = self.lanes.map.get_mut(&lane) {
                        state.held = state.held.take().or(held);
                    }
                }
                self.chore_failed(error, now)?;
            }
            Chored::Paused(lane, pause, Ok(())) => {
                info!(%lane, pause, "a lane was paused or resumed at the broker");
                self.untold.remove(&lane);
                if let Some(state) = self.lanes.map.get_mut(&lane) {
                    state.paused = pause;
                }
            }
            Chored::Paused(lane, pause, Err(failure)) => {
                warn!(%lane, pause, error = %failure.describe(), "a lane was not paused or resumed, will try again");
                self.chore_at = now + self.work.config.outage_max;
                // The call may have taken effect, so the wanted state is sent again.
                self.untold.insert(lane);
            }
        }
        Ok(())
    }

    fn took(&mut self, asked: &[Lane], taken: Vec<Held>, now: Instant) {
        let config = &self.work.config;
        let again = if config.order.is_by_key() { config.lane_every } else { config.beat_lasts };
        for lane in asked {
            if let Some(state) = self.lanes.map.get_mut(lane) {
                state.take_at = now + again;
                let since = *state.wanted_since.get_or_insert(now);
                if config.order.is_by_key() && now.duration_since(since) > config.beat_lasts * 3 {
                    warn!(%lane, "a lane with messages here stays another member's: the broker must give each lane to one");
                    state.wanted_since = Some(now);
                }
            }
        }
        for held in taken {
            if let Some(state) = self.lanes.map.get_mut(&held.lane) {
                debug!(lane = %held.lane, epoch = held.epoch, "a lane was taken");
                state.held = Some(held);
                state.wanted_since = None;
            }
        }
    }

    fn chore_failed(&mut self, error: StoreError, now: Instant) -> Result<(), RuntimeError> {
        let mut refused = self.chores_refused;
        if let Some(at) = self.store_failed(error, &mut refused, now)? {
            self.chore_at = at;
        }
        self.chores_refused = refused;
        Ok(())
    }

    /// When the next lane call is due, as far as it depends on time alone.
    pub(crate) fn chore_wakes_at(&self, now: Instant) -> Option<Instant> {
        if self.chore.is_some() {
            return None;
        }
        let config = &self.work.config;
        let by_key = config.order.is_by_key();
        let of_lane = |state: &LaneState| {
            let take = is_wanted(state).then_some(state.take_at);
            let give_back = gives_back_at(state, config.lane_idle).filter(|_| by_key);
            take.or(give_back).map(|at| at.max(self.store_at))
        };
        let lanes = self.lanes.map.values().filter_map(of_lane).min();
        let doubted = self.doubted.iter().filter(|(lane, _)| by_key && is_unused(&self.lanes, lane));
        let doubted = doubted.map(|(_, doubt)| doubt.next.max(self.store_at)).min();
        let tells = |(lane, state): (&Lane, &LaneState)| {
            self.wants_pause(lane, state, now) != state.paused || self.untold.contains(lane)
        };
        let pauses = self.lanes.map.iter().any(tells);
        let next = lanes.into_iter().chain(doubted).chain(pauses.then_some(now)).min()?;
        Some(next.max(self.chore_at))
    }
}

const fn is_wanted(state: &LaneState) -> bool {
    state.held.is_none() && !state.is_empty()
}

/// Whether a lane has no message here and no known lease.
fn is_unused(lanes: &Lanes, lane: &Lane) -> bool {
    lanes.map.get(lane).is_none_or(|state| state.held.is_none() && state.is_empty())
}

fn gives_back_at(state: &LaneState, idle: Duration) -> Option<Instant> {
    let leaves = state.held.is_some() && state.is_empty();
    leaves.then(|| if state.gone { state.idle_since } else { state.idle_since + idle })
}
