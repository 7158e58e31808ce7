//! Heartbeats, sent independently of the handlers.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use relevo_core::Lane;
use relevo_core::inbox::Inbox;
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::runtime::ConsumerError;
use crate::stats::add;
use crate::work::Worker;

/// What the loop reports with the next heartbeat.
#[derive(Debug, Default)]
pub(crate) struct MemberReport {
    pub(crate) settled_offsets: Vec<(Lane, Option<u64>)>,
    pub(crate) last_message_at: Option<Timestamp>,
}

/// Written by the loop, read by the heartbeat task.
pub(crate) type SharedMemberReport = Mutex<MemberReport>;

/// State after the last successful heartbeat.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeartbeatState {
    /// Number of successful heartbeats; before the first, no work may begin.
    pub(crate) heartbeats: u64,
    /// How often the database reported that this member had expired.
    pub(crate) expirations: u64,
    pub(crate) reply: HeartbeatReply,
}

impl HeartbeatState {
    /// Whether operators allow messages of this lane to be handled.
    pub(crate) fn allows(&self, lane: &Lane) -> bool {
        self.heartbeats > 0 && !self.reply.paused && !self.reply.paused_lanes.contains(lane)
    }
}

/// Sends heartbeats until `stop` is cancelled.
pub(crate) async fn run<I: Inbox + 'static>(
    work: Arc<Worker<I>>,
    owner: Uuid,
    vitals: Arc<SharedMemberReport>,
    pulse: watch::Sender<HeartbeatState>,
    stop: CancellationToken,
) -> Result<(), ConsumerError>
where
    I::Transaction: 'static,
{
    let mut failures = 0;
    loop {
        let beat = build_heartbeat(&work, owner, &vitals);
        let pause = match work.store_call(work.inbox.heartbeat(&beat)).await {
            Ok(orders) => {
                failures = 0;
                work.status.record_heartbeat();
                apply_reply(&pulse, orders);
                work.config.heartbeat_interval
            }
            Err(error) if error.is_retryable() => {
                add(&work.status.heartbeats_failed, 1);
                // An idle consumer makes few other database calls, so the heartbeat has to count the outage.
                add(&work.status.database_outages, 1);
                let pause = work.config.outage(failures).min(work.config.heartbeat_interval);
                warn!(error = &error as &dyn std::error::Error, ?pause, "a sign of life was not taken, will try again");
                failures += 1;
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

fn build_heartbeat<I: Inbox + 'static>(work: &Worker<I>, owner: Uuid, vitals: &SharedMemberReport) -> Heartbeat
where
    I::Transaction: 'static,
{
    let breakers = work.breakers.open_lanes();
    let vitals = vitals.lock();
    Heartbeat {
        owner,
        name: work.config.member_name.clone(),
        ttl: work.config.heartbeat_ttl,
        settled_offsets: vitals.settled_offsets.clone(),
        last_message_at: vitals.last_message_at,
        breakers,
    }
}

fn apply_reply(pulse: &watch::Sender<HeartbeatState>, orders: HeartbeatReply) {
    pulse.send_modify(|pulse| {
        if pulse.reply.paused != orders.paused {
            info!(paused = orders.paused, "a person changed whether messages are taken");
        }
        if orders.expired {
            pulse.expirations += 1;
            warn!("this member was counted as dead, its lanes are taken anew");
        }
        pulse.heartbeats += 1;
        pulse.reply = orders;
    });
}
