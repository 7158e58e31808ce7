//! Samples how much waits, so that no scrape has to ask the database.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::operate::Backlog;
use relevo_core::store::StoreError;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::seen::{Phase, Seen};
use super::store::{self, AnyStore};
use crate::config::Outbox;

/// A database that is slower than this has no number to give.
const DEADLINE: Duration = Duration::from_secs(4);

/// Samples until it is told to stop, over connections of its own: counting must not delay a lease.
pub(crate) async fn sample(outbox: Arc<Outbox>, seen: Arc<Seen>, every: Duration, stop: CancellationToken) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut opened: Option<Arc<dyn AnyStore>> = None;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        if seen.phase() != Phase::Running {
            continue;
        }
        let answer = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            answer = timeout(DEADLINE, ask(&outbox, &seen.destination, &mut opened)) => answer,
        };
        match answer {
            Ok(Ok(backlog)) => seen.sampled(Some(backlog)),
            Ok(Err(error)) => {
                debug!(outbox = %seen.outbox, destination = %seen.destination, %error, "the backlog is not known");
                opened = None;
                seen.sampled(None);
            }
            Err(_) => {
                opened = None;
                seen.sampled(None);
            }
        }
    }
}

async fn ask(
    outbox: &Outbox,
    destination: &str,
    opened: &mut Option<Arc<dyn AnyStore>>,
) -> Result<Backlog, StoreError> {
    let store = match opened {
        Some(store) => store,
        None => opened.insert(store::open(outbox, destination).await?),
    };
    store.backlog().await
}
