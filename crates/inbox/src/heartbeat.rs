//! Heartbeats, sent independently of the handlers.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use relevo_core::inbox::Inbox;
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply};
use relevo_core::store::StoreError;
use relevo_core::{Jitter, Lane};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::lane_leases::UncertainLease;
use crate::lane_queues::LaneQueue;
use crate::runtime::{ConsumerError, ConsumerRuntime};
use crate::status::{add, set};
use crate::worker::Worker;

/// What the loop reports with the next heartbeat.
#[derive(Debug, Default)]
pub(crate) struct MemberReport {
    settled_offsets: Vec<(Lane, Option<u64>)>,
    pub(crate) last_message_at: Option<Timestamp>,
}

/// State after the last successful heartbeat.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeartbeatState {
    /// Number of successful heartbeats; before the first, no work may begin.
    pub(crate) heartbeats: u64,
    /// How often the database reported that this member had expired.
    expirations: u64,
    pub(crate) reply: HeartbeatReply,
}

impl HeartbeatState {
    /// Whether operators allow messages of this lane to be handled.
    pub(crate) fn allows(&self, lane: &Lane) -> bool {
        self.heartbeats > 0 && !self.reply.paused && !self.reply.paused_lanes.contains(lane)
    }
}

/// Connects the loop with the heartbeat task.
pub(crate) struct HeartbeatLink {
    /// Written by the loop, read by the task.
    pub(crate) report: Arc<Mutex<MemberReport>>,
    /// When the report is updated next.
    pub(crate) report_at: Instant,
    pub(crate) state: watch::Receiver<HeartbeatState>,
    /// Expirations that the loop has reacted to.
    expirations: u64,
}

impl HeartbeatLink {
    pub(crate) fn new(now: Instant) -> Self {
        let state = watch::Sender::new(HeartbeatState::default()).subscribe();
        Self { report: Arc::default(), report_at: now, state, expirations: 0 }
    }
}

impl<I: Inbox> ConsumerRuntime<I> {
    /// Updates the contents of the next heartbeat.
    pub(crate) fn update_report(&mut self, now: Instant) {
        set(&self.worker.status.buffered_messages, self.lanes.len());
        if now < self.heartbeat.report_at {
            return;
        }
        self.heartbeat.report_at = now + self.worker.config.heartbeat_interval / 4;
        // Without order several members work on a lane, and none of them knows the settled offset of all.
        let by_key = self.worker.config.order.is_by_key();
        let settled = |queue: &LaneQueue| queue.settled_offset.low_water().filter(|_| by_key);
        let leased = self.lanes.map.iter().filter(|(_, queue)| queue.lease.is_some());
        self.heartbeat.report.lock().settled_offsets =
            leased.map(|(lane, queue)| (lane.clone(), settled(queue))).collect();
    }

    /// Applies the operator controls from the last heartbeat reply.
    pub(crate) fn apply_controls(&mut self) {
        let state = self.heartbeat.state.borrow_and_update().clone();
        self.store_health.succeeded();
        self.worker.breakers.set_overrides(&state.reply.breaker_overrides);
        if state.expirations == self.heartbeat.expirations {
            return;
        }
        self.heartbeat.expirations = state.expirations;
        // Deliveries in memory are kept: the inbox records what another member did with them. The store may still
        // assign a lane to this member. It releases such a lane later; releasing another member's lane has no effect.
        let uncertain = UncertainLease::new(Instant::now(), self.worker.config.heartbeat_ttl);
        for (lane, queue) in self.lanes.map.iter_mut().filter(|(_, queue)| !queue.is_empty()) {
            if queue.lease.take().is_some() {
                self.leases.uncertain.insert(lane.clone(), uncertain);
            }
        }
    }
}

/// Sends heartbeats until `stop` is cancelled.
pub(crate) async fn run<I: Inbox>(
    worker: Arc<Worker<I>>,
    owner: Uuid,
    report: Arc<Mutex<MemberReport>>,
    state: watch::Sender<HeartbeatState>,
    stop: CancellationToken,
) -> Result<(), ConsumerError> {
    let mut backoff = worker.config.outage_backoff();
    loop {
        let heartbeat = build_heartbeat(&worker, owner, &report);
        let pause = match worker.store_call(worker.inbox.heartbeat(&heartbeat)).await {
            Ok(reply) => {
                backoff.reset();
                worker.status.record_heartbeat();
                apply_reply(&state, reply);
                worker.config.heartbeat_interval
            }
            Err(error) if error.is_retryable() => {
                add(&worker.status.heartbeats_failed, 1);
                if !matches!(error, StoreError::Busy { .. }) {
                    // An idle consumer makes few other database calls, so the heartbeat has to count the outage.
                    add(&worker.status.database_outages, 1);
                }
                let pause = backoff.next(Jitter::NONE).min(worker.config.heartbeat_interval);
                warn!(error = &error as &dyn std::error::Error, ?pause, "heartbeat failed, will retry");
                pause
            }
            Err(error) => return Err(ConsumerError::Store(error)),
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            () = sleep(pause) => {}
        }
    }
}

fn build_heartbeat<I: Inbox>(worker: &Worker<I>, owner: Uuid, report: &Mutex<MemberReport>) -> Heartbeat {
    let breakers = worker.breakers.open_lanes();
    let report = report.lock();
    Heartbeat {
        owner,
        name: worker.config.member_name.clone(),
        ttl: worker.config.heartbeat_ttl,
        settled_offsets: report.settled_offsets.clone(),
        last_message_at: report.last_message_at,
        breakers,
    }
}

fn apply_reply(state: &watch::Sender<HeartbeatState>, reply: HeartbeatReply) {
    state.send_modify(|state| {
        if state.reply.paused != reply.paused {
            info!(paused = reply.paused, "an operator paused or resumed the consumer");
        }
        if reply.expired {
            state.expirations += 1;
            warn!("this member had expired, acquiring its lanes again");
        }
        state.heartbeats += 1;
        state.reply = reply;
    });
}
