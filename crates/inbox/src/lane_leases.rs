//! Acquires and releases lane leases, and pauses and resumes lanes at the broker. One call at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use relevo_core::inbox::{Inbox, LaneLease};
use relevo_core::retry::ExponentialBackoff;
use relevo_core::store::StoreError;
use relevo_core::{Class, Failure, Lane};
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use crate::breaker::BreakerState;
use crate::config::Config;
use crate::lane_queues::{LaneQueue, LaneQueues};
use crate::runtime::{BoxedCall, ConsumerError, ConsumerRuntime};

/// Lane calls, one at a time, and what earlier ones left uncertain.
pub(crate) struct LaneLeases {
    pub(crate) call: Option<BoxedCall<LaneCallResult>>,
    /// When the next call may begin.
    at: Instant,
    backoff: ExponentialBackoff,
    /// Lanes whose lease this member may hold without knowing it, because a reply was lost.
    pub(crate) uncertain: BTreeMap<Lane, UncertainLease>,
    /// Lanes for which the broker may or may not have applied the last pause or resume.
    unconfirmed_pauses: BTreeSet<Lane>,
}

impl LaneLeases {
    pub(crate) fn new(config: &Config, now: Instant) -> Self {
        let (uncertain, unconfirmed_pauses) = (BTreeMap::new(), BTreeSet::new());
        Self { call: None, at: now, backoff: config.outage_backoff(), uncertain, unconfirmed_pauses }
    }
}

/// The result of a lane call.
pub(crate) enum LaneCallResult {
    /// Leases were requested.
    Acquired(Vec<Lane>, Result<Vec<LaneLease>, StoreError>),
    /// Leases were released, each with the lease that this member knew of, if any.
    Released(Vec<(Lane, Option<LaneLease>)>, Result<(), StoreError>),
    /// The broker paused or resumed a lane.
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
    pub(crate) fn new(now: Instant, heartbeat_ttl: Duration) -> Self {
        Self { release_at: now + heartbeat_ttl, expires_at: now + UNCERTAIN_FOR }
    }
}

impl<I: Inbox> ConsumerRuntime<I> {
    pub(crate) fn start_lane_call(&mut self, now: Instant) {
        if self.leases.call.is_some() || now < self.leases.at {
            return;
        }
        let is_alive = self.heartbeat.state.borrow().heartbeats > 0 && now >= self.store_health.available_at;
        if is_alive {
            self.leases.call = self.acquire_lanes(now);
        }
        if is_alive && self.leases.call.is_none() && self.worker.config.order.is_by_key() {
            self.leases.call = self.release_lanes(now);
        }
        if self.leases.call.is_none() {
            self.leases.call = self.pause_or_resume(now);
        }
    }

    /// Requests the leases of lanes that have messages here. Without order no handler depends on them; a lane must be
    /// acquired once before operators can see and pause it.
    fn acquire_lanes(&self, now: Instant) -> Option<BoxedCall<LaneCallResult>> {
        let wanted = self.lanes.map.iter().filter(|(_, queue)| needs_lease(queue) && queue.acquire_at <= now);
        let lanes: Vec<Lane> = wanted.map(|(lane, _)| lane.clone()).collect();
        if lanes.is_empty() {
            return None;
        }
        let (worker, owner) = (Arc::clone(&self.worker), self.owner);
        Some(Box::pin(async move {
            let leases = worker.store_call(worker.inbox.acquire_lanes(owner, &lanes)).await;
            LaneCallResult::Acquired(lanes, leases)
        }))
    }

    /// Releases the leases of idle lanes: the broker may have assigned them to another member.
    fn release_lanes(&mut self, now: Instant) -> Option<BoxedCall<LaneCallResult>> {
        let idle = self.worker.config.lane_idle_timeout;
        let mut leaving = Vec::new();
        for (lane, queue) in &mut self.lanes.map {
            if release_at(queue, idle).is_some_and(|at| at <= now) {
                leaving.push((lane.clone(), queue.lease.take()));
            }
        }
        // A lease that was granted without our knowledge would block all other members while this one lives.
        for (lane, uncertain) in &mut self.leases.uncertain {
            if uncertain.release_at <= now && is_unused(&self.lanes, lane) {
                leaving.push((lane.clone(), None));
                uncertain.release_at = now + self.worker.config.heartbeat_ttl;
            }
        }
        self.leases.uncertain.retain(|_, uncertain| uncertain.release_at <= uncertain.expires_at);
        if leaving.is_empty() {
            return None;
        }
        let (worker, owner) = (Arc::clone(&self.worker), self.owner);
        Some(Box::pin(async move {
            let lanes: Vec<Lane> = leaving.iter().map(|(lane, _)| lane.clone()).collect();
            let result = worker.store_call(worker.inbox.release_lanes(owner, &lanes)).await;
            LaneCallResult::Released(leaving, result)
        }))
    }

    fn pause_or_resume(&self, now: Instant) -> Option<BoxedCall<LaneCallResult>> {
        let (lane, pause) = self.lanes.map.iter().find_map(|(lane, queue)| {
            let pause = self.wants_pause(lane, queue, now);
            (pause != queue.paused || self.leases.unconfirmed_pauses.contains(lane)).then(|| (lane.clone(), pause))
        })?;
        let (consumer, broker_timeout) = (Arc::clone(&self.consumer), self.worker.config.broker_timeout);
        Some(Box::pin(async move {
            let call = async { if pause { consumer.pause(&lane).await } else { consumer.resume(&lane).await } };
            let timed_out = |_| Err(Failure::new(Class::Unknown, "the broker did not respond in time"));
            let result = timeout(broker_timeout, call).await.unwrap_or_else(timed_out);
            LaneCallResult::PauseSet(lane, pause, result)
        }))
    }

    /// The broker delivers no more messages of a blocked lane, so that other lanes can use the memory.
    fn wants_pause(&self, lane: &Lane, queue: &LaneQueue, now: Instant) -> bool {
        if self.heartbeat.state.borrow().reply.paused_lanes.contains(lane) {
            return true;
        }
        match self.worker.breakers.state(lane, now) {
            BreakerState::Closed => false,
            BreakerState::OpenUntil(_) => true,
            // A message in memory can probe; without one, the broker must deliver one.
            BreakerState::HalfOpen => !queue.is_empty(),
        }
    }

    pub(crate) fn apply_lane_call(&mut self, result: LaneCallResult) -> Result<(), ConsumerError> {
        let now = Instant::now();
        match result {
            LaneCallResult::Acquired(requested, Ok(leases)) => {
                self.leases.backoff.reset();
                self.apply_acquired(&requested, leases, now);
            }
            LaneCallResult::Acquired(requested, Err(error)) => {
                let uncertain = UncertainLease::new(now, self.worker.config.heartbeat_ttl);
                self.leases.uncertain.extend(requested.into_iter().map(|lane| (lane, uncertain)));
                self.lane_call_failed(error, now)?;
            }
            LaneCallResult::Released(leaving, Ok(())) => {
                for (lane, _) in leaving {
                    debug!(%lane, "lane released");
                    let is_confirmed = !self.leases.unconfirmed_pauses.contains(&lane);
                    if self.lanes.map.get(&lane).is_some_and(|queue| queue.is_empty() && !queue.paused && is_confirmed)
                    {
                        self.lanes.map.remove(&lane);
                    }
                }
            }
            LaneCallResult::Released(leaving, Err(error)) => {
                // The lease counts as held and is released again later. If another member holds it, writes are fenced.
                for (lane, lease) in leaving {
                    if let Some(queue) = self.lanes.map.get_mut(&lane) {
                        queue.lease = queue.lease.take().or(lease);
                    }
                }
                self.lane_call_failed(error, now)?;
            }
            LaneCallResult::PauseSet(lane, pause, Ok(())) => {
                info!(%lane, pause, "lane paused or resumed at the broker");
                self.leases.unconfirmed_pauses.remove(&lane);
                if let Some(queue) = self.lanes.map.get_mut(&lane) {
                    queue.paused = pause;
                }
            }
            LaneCallResult::PauseSet(lane, pause, Err(failure)) => {
                warn!(%lane, pause, error = %failure.error_chain(), "pausing or resuming a lane failed, will retry");
                self.leases.at = now + self.worker.config.outage_backoff_max;
                // The call may have taken effect, so the wanted state is sent again.
                self.leases.unconfirmed_pauses.insert(lane);
            }
        }
        Ok(())
    }

    fn apply_acquired(&mut self, requested: &[Lane], leases: Vec<LaneLease>, now: Instant) {
        let config = &self.worker.config;
        let interval = if config.order.is_by_key() { config.lane_acquire_interval } else { config.heartbeat_ttl };
        for lane in requested {
            if let Some(queue) = self.lanes.map.get_mut(lane) {
                queue.acquire_at = now + interval;
                let since = *queue.wanted_since.get_or_insert(now);
                if config.order.is_by_key() && now.duration_since(since) > config.heartbeat_ttl * 3 {
                    warn!(
                        %lane,
                        "another member holds this lane but its messages arrive here; the broker must assign each lane to \
                         one consumer"
                    );
                    queue.wanted_since = Some(now);
                }
            }
        }
        for lease in leases {
            if let Some(queue) = self.lanes.map.get_mut(&lease.lane) {
                debug!(lane = %lease.lane, epoch = lease.epoch, "lane acquired");
                queue.lease = Some(lease);
                queue.wanted_since = None;
            }
        }
    }

    fn lane_call_failed(&mut self, error: StoreError, now: Instant) -> Result<(), ConsumerError> {
        let retry_at = self.store_health.failed(error, &mut self.leases.backoff, &self.worker.status, now)?;
        self.leases.at = retry_at.unwrap_or(self.leases.at);
        Ok(())
    }

    /// When the next lane call is due, as far as it depends on time alone.
    pub(crate) fn lane_call_wakes_at(&self, now: Instant) -> Option<Instant> {
        if self.leases.call.is_some() {
            return None;
        }
        let config = &self.worker.config;
        let by_key = config.order.is_by_key();
        let of_lane = |queue: &LaneQueue| {
            let acquire = needs_lease(queue).then_some(queue.acquire_at);
            let release = release_at(queue, config.lane_idle_timeout).filter(|_| by_key);
            acquire.or(release).map(|at| at.max(self.store_health.available_at))
        };
        let lanes = self.lanes.map.values().filter_map(of_lane).min();
        let uncertain = self.leases.uncertain.iter().filter(|(lane, _)| by_key && is_unused(&self.lanes, lane));
        let uncertain = uncertain.map(|(_, lease)| lease.release_at.max(self.store_health.available_at)).min();
        let needs_pause_call = |(lane, queue): (&Lane, &LaneQueue)| {
            self.wants_pause(lane, queue, now) != queue.paused || self.leases.unconfirmed_pauses.contains(lane)
        };
        let pauses = self.lanes.map.iter().any(needs_pause_call);
        let next = lanes.into_iter().chain(uncertain).chain(pauses.then_some(now)).min()?;
        Some(next.max(self.leases.at))
    }
}

const fn needs_lease(queue: &LaneQueue) -> bool {
    queue.lease.is_none() && !queue.is_empty()
}

/// Whether a lane has no message here and no known lease.
fn is_unused(lanes: &LaneQueues, lane: &Lane) -> bool {
    lanes.map.get(lane).is_none_or(|queue| queue.lease.is_none() && queue.is_empty())
}

fn release_at(queue: &LaneQueue, idle: Duration) -> Option<Instant> {
    let is_idle = queue.lease.is_some() && queue.is_empty();
    is_idle.then(|| if queue.revoked { queue.idle_since } else { queue.idle_since + idle })
}
