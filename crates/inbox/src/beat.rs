//! Signs of life, whatever handlers do.

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

/// What the loop tells of itself between two beats.
#[derive(Debug, Default)]
pub(crate) struct Vitals {
    pub(crate) marks: Vec<(Lane, Option<u64>)>,
    pub(crate) last_message_at: Option<Timestamp>,
}

/// Vitals that the loop writes and the heart reads.
#[derive(Debug, Default)]
pub(crate) struct SharedVitals(Mutex<Vitals>);

impl SharedVitals {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vitals> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the last beat was answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse {
    /// How many beats were taken; none yet means that nothing may be begun.
    pub(crate) beats: u64,
    /// How often this member was counted as dead by then.
    pub(crate) deaths: u64,
    pub(crate) orders: Orders,
}

impl Pulse {
    /// Whether messages of this lane may be handled, as far as people are concerned.
    pub(crate) fn allows(&self, lane: &Lane) -> bool {
        self.beats > 0 && !self.orders.paused && !self.orders.paused_lanes.contains(lane)
    }
}

/// Beats until it is told to stop.
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
                // Whoever has nothing to handle asks the database for little else, and would never say that it is away.
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
