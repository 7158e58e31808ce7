//! The status of a relay for monitoring: counters, latencies and the current state.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use relevo_core::Class;
use relevo_core::histogram::Histogram;
use tokio::time::Instant;

/// Bucket bounds in seconds.
const PUBLISH_SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Bucket bounds in milliseconds.
const DISPATCH_MILLIS: &[f64] =
    &[5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0, 30_000.0, 60_000.0];

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of one relay. They only increase.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)+
        }

        impl RelayStatus {
            $($(#[doc = $doc])+ pub fn $name(&self) -> u64 {
                self.counters.$name.load(Ordering::Relaxed)
            })+
        }
    };
}

counters! {
    /// Confirmed messages.
    published,
    /// Messages passed to the broker, including repeats.
    attempts,
    /// Messages that no route of this destination matches.
    unrouted,
    /// Parked messages, at the head of a key or behind one.
    parked,
    /// Rejected messages that were scheduled for a retry.
    retried,
    /// Dead-lettered messages.
    dead_lettered,
    /// Outages of the broker.
    broker_outages,
    /// Leases lost before they were released.
    leases_lost,
    /// Leases acquired, released or lost.
    lease_changes,
    /// Outages of the database.
    database_outages,
    /// Outcomes of class `outage`.
    outage_outcomes,
    /// Outcomes of class `unknown`: lost confirmations.
    unknown_outcomes,
    /// Outcomes of class `throttled`.
    throttled_outcomes,
    /// Outcomes of class `transient`.
    transient_outcomes,
    /// Outcomes of class `poison`.
    poison_outcomes,
    /// Outcomes of class `blocked`.
    blocked_outcomes,
    /// Recorded settlements.
    settlements,
}

/// The status of one relay: what it has done, and its current state. Monitoring uses the state to tell a stuck relay
/// from a waiting one.
///
/// Latencies start at the database's emit time and end at this process's time, so they include the difference of the
/// two clocks. Negative values count as zero. The relay makes no decision based on them.
#[derive(Debug)]
pub struct RelayStatus {
    pub(crate) counters: Counters,
    publish_latency: Histogram,
    dispatch_latency: Histogram,
    steps: AtomicU64,
    leases: AtomicU64,
    in_flight: AtomicU64,
    broker_down_since: Mutex<Option<Instant>>,
    has_leased: AtomicBool,
    database_down: AtomicBool,
}

impl Default for RelayStatus {
    fn default() -> Self {
        Self {
            counters: Counters::default(),
            publish_latency: Histogram::new(PUBLISH_SECONDS),
            dispatch_latency: Histogram::new(DISPATCH_MILLIS),
            steps: AtomicU64::default(),
            leases: AtomicU64::default(),
            in_flight: AtomicU64::default(),
            broker_down_since: Mutex::default(),
            has_leased: AtomicBool::default(),
            database_down: AtomicBool::default(),
        }
    }
}

impl RelayStatus {
    /// Seconds from `emit` to the broker's confirmation.
    pub fn publish_latency(&self) -> &Histogram {
        &self.publish_latency
    }

    /// Milliseconds from `emit` until the message was first passed to the broker.
    pub fn dispatch_latency(&self) -> &Histogram {
        &self.dispatch_latency
    }

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
        self.broker_down_since.lock().is_some()
    }

    /// How long the broker has been unreachable. `None` while it is reachable.
    pub fn broker_down_for(&self) -> Option<Duration> {
        self.broker_down_since.lock().map(|since| since.elapsed())
    }

    /// Whether the database was unreachable at the last attempt.
    pub fn is_database_down(&self) -> bool {
        self.database_down.load(Ordering::Relaxed)
    }

    /// Whether the database has ever answered a lease request of this relay.
    pub fn is_started(&self) -> bool {
        self.has_leased.load(Ordering::Relaxed)
    }

    pub(crate) fn step(&self, leases: usize, in_flight: usize, broker_up: bool) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.leases.store(leases as u64, Ordering::Relaxed);
        self.in_flight.store(in_flight as u64, Ordering::Relaxed);
        let mut since = self.broker_down_since.lock();
        *since = if broker_up { None } else { since.or_else(|| Some(Instant::now())) };
    }

    pub(crate) fn set_database_up(&self, up: bool) {
        self.database_down.store(!up, Ordering::Relaxed);
    }

    pub(crate) fn set_leased(&self) {
        self.has_leased.store(true, Ordering::Relaxed);
    }

    pub(crate) fn count_failure(&self, class: Class) {
        let counter = match class {
            Class::Outage => &self.counters.outage_outcomes,
            Class::Unknown => &self.counters.unknown_outcomes,
            Class::Throttled(_) => &self.counters.throttled_outcomes,
            Class::Transient => &self.counters.transient_outcomes,
            Class::Poison => &self.counters.poison_outcomes,
            Class::Blocked => &self.counters.blocked_outcomes,
        };
        add(counter, 1);
    }

    pub(crate) fn count_lost_leases(&self, leases: usize) {
        add(&self.counters.leases_lost, leases);
        add(&self.counters.lease_changes, leases);
    }

    pub(crate) fn observe_published(&self, created_at: Timestamp) {
        self.publish_latency.observe(seconds(created_at, Timestamp::now()));
    }

    /// Records the first time that a message is passed to the broker.
    pub(crate) fn observe_dispatched(&self, created_at: Timestamp, now: Timestamp) {
        self.dispatch_latency.observe(seconds(created_at, now) * 1_000.0);
    }
}

pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_lasts_until_the_first_step_with_the_broker_up() {
        let status = RelayStatus::default();
        status.step(1, 0, true);
        assert_eq!(status.broker_down_for(), None);
        status.step(1, 0, false);
        tokio::time::advance(Duration::from_secs(3)).await;
        status.step(1, 0, false);
        assert_eq!((status.broker_down_for(), status.is_broker_down()), (Some(Duration::from_secs(3)), true));
        status.step(1, 0, true);
        assert_eq!((status.broker_down_for(), status.is_broker_down()), (None, false));
    }
}
