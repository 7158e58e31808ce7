//! The current state of a relay. Monitoring uses it to tell a stuck relay from a waiting one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// The current state of one relay. Its [`Stats`](crate::Stats) count past events.
#[derive(Debug, Default)]
pub struct RelayStatus {
    steps: AtomicU64,
    leases: AtomicU64,
    in_flight: AtomicU64,
    broker_down_since: Mutex<Option<Instant>>,
    has_leased: AtomicBool,
    database_down: AtomicBool,
}

impl RelayStatus {
    /// The number of started steps. It increases while the relay's loop runs, at least once per lease duration, even if
    /// the broker or the database is down.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Leased shards.
    pub fn leases(&self) -> u64 {
        self.leases.load(Ordering::Relaxed)
    }

    /// Messages that wait for a confirmation.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether the broker was unreachable at the last attempt.
    pub fn is_broker_down(&self) -> bool {
        self.lock_broker_down_since().is_some()
    }

    /// How long the broker has been unreachable. `None` while it is reachable.
    pub fn broker_down_for(&self) -> Option<Duration> {
        self.lock_broker_down_since().map(|since| since.elapsed())
    }

    /// Whether the database was unreachable at the last attempt.
    pub fn is_database_down(&self) -> bool {
        self.database_down.load(Ordering::Relaxed)
    }

    /// Whether the database has ever answered a lease request of this relay.
    pub fn is_started(&self) -> bool {
        self.has_leased.load(Ordering::Relaxed)
    }

    pub(crate) fn step(&self, leases: usize, in_flight: usize, destination_up: bool) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.leases.store(leases as u64, Ordering::Relaxed);
        self.in_flight.store(in_flight as u64, Ordering::Relaxed);
        let mut since = self.lock_broker_down_since();
        *since = if destination_up { None } else { since.or_else(|| Some(Instant::now())) };
    }

    fn lock_broker_down_since(&self) -> MutexGuard<'_, Option<Instant>> {
        // Poisoning is ignored: no code panics while it holds the lock, and each change leaves the value consistent.
        self.broker_down_since.lock()
    }

    pub(crate) fn set_database_up(&self, there: bool) {
        self.database_down.store(!there, Ordering::Relaxed);
    }

    pub(crate) fn set_leased(&self) {
        self.has_leased.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_lasts_until_the_first_step_with_the_broker_up() {
        let watched = RelayStatus::default();
        watched.step(1, 0, true);
        assert_eq!(watched.broker_down_for(), None);
        watched.step(1, 0, false);
        tokio::time::advance(Duration::from_secs(3)).await;
        watched.step(1, 0, false);
        assert_eq!((watched.broker_down_for(), watched.is_broker_down()), (Some(Duration::from_secs(3)), true));
        watched.step(1, 0, true);
        assert_eq!((watched.broker_down_for(), watched.is_broker_down()), (None, false));
    }
}
