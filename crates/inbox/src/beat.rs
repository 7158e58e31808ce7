//! Heartbeats, sent independently of the handlers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use relevo_core::Lane;
use relevo_core::inbox::{Beat, Inbox, Orders};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::runtime::RuntimeError;
use crate::stats::add;
use crate::work::Work;

/// What the loop reports with the next heartbeat.
#[derive(Debug, Default)]
pub(crate) struct Vitals {
    pub(crate) marks: Vec<(Lane, Option<u64>)>,
    pub(crate) last_message_at: Option<Timestamp>,
}

/// Written by the loop, read by the heartbeat task.
#[derive(Debug, Default)]
pub(crate) struct SharedVitals(Mutex<Vitals>);

impl SharedVitals {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vitals> {
        // No code panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State after the last successful heartbeat.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse {
    /// Number of successful heartbeats; before the first, no work may begin.
    pub(crate) beats: u64,
    /// How often the database reported that this member had expired.
    pub(crate) deaths: u64,
    pub(crate) orders: Orders,
}

impl Pulse {
    /// Whether operators allow messages of this lane to be handled.
    pub(crate) fn allows(&self, lane: &Lane) -> bool {
        self.beats > 0 && !self.orders.paused && !self.orders.paused_lanes.contains(lane)
    }
}

/// Sends heartbeats until `stop` is cancelled.
pub(crate) async fn run<I: Inbox + 'static>(
    work: Arc<Work<I>>,
    owner: Uuid,
    vitals: Arc<SharedVitals>,
    pulse: watch::Sender<Pulse>,
    stop: CancellationToken,
) -> Result<(), RuntimeError>
where
    I::Transaction: 'static,
{
    let mut failures = 0;
    loop {
        let beat = beat(&work, owner, &vitals);
        let pause = match work.ask(work.inbox.beat(&beat)).await {
            Ok(orders) => {
                failures = 0;
                work.stats.beaten();
                taken(&pulse, orders);
                work.config.beat_every
            }
            Err(error) if error.is_passing() => {
                add(&work.stats.beats_failed, 1);
                // An idle consumer makes few other database calls, so the heartbeat has to count the outage.
                add(&work.stats.database_away, 1);
                let pause = work.config.outage(failures).min(work.config.beat_every);
                warn!(error = &error as &dyn std::error::Error, ?pause, "a sign of life was not taken, will try again");
                failures += 1;
                pause
            }
            Err(error) => return Err(RuntimeError::Store(error)),
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            () = sleep(pause) => {}
        }
    }
}

fn beat<I: Inbox + 'static>(work: &Work<I>, owner: Uuid, vitals: &SharedVitals) -> Beat
where
    I::Transaction: 'static,
{
    let breakers = work.breakers.open();
    let vitals = vitals.lock();
    Beat {
        owner,
        name: work.config.name.clone(),
        lasts: work.config.beat_lasts,
        marks: vitals.marks.clone(),
        last_message_at: vitals.last_message_at,
        breakers,
    }
}

fn taken(pulse: &watch::Sender<Pulse>, orders: Orders) {
    pulse.send_modify(|pulse| {
        if pulse.orders.paused != orders.paused {
            info!(paused = orders.paused, "a person changed whether messages are taken");
        }
        if orders.was_dead {
            pulse.deaths += 1;
            warn!("this member was counted as dead, its lanes are taken anew");
        }
        pulse.beats += 1;
        pulse.orders = orders;
    });
}
