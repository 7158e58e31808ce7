//! Counters of a relay, for monitoring.

use std::sync::atomic::{AtomicU64, Ordering};

use relevo_core::Class;

use crate::latency::Latencies;

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of one relay. They only increase.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub(crate) $name: AtomicU64,)+
            pub(crate) latencies: Latencies,
        }

        impl Stats {
            /// The latencies of messages.
            pub fn latencies(&self) -> &Latencies {
                &self.latencies
            }

            $($(#[doc = $doc])+ pub fn $name(&self) -> u64 {
                self.$name.load(Ordering::Relaxed)
            })+
        }
    };
}

stats! {
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
    /// Lost confirmations.
    unknown,
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
    /// Outcomes of class `unknown`.
    unknown_outcomes,
    /// Outcomes of class `throttled`.
    throttled_outcomes,
    /// Outcomes of class `transient`.
    transient_outcomes,
    /// Outcomes of class `poison`.
    poison_outcomes,
    /// Outcomes of class `blocked`.
    blocked_outcomes,
    /// Non-empty pages read.
    pages,
    /// Recorded settlements.
    settlements,
}

impl Stats {
    /// Counts a failure of this class.
    pub(crate) fn failed(&self, class: Class) {
        let counter = match class {
            Class::Outage => &self.outage_outcomes,
            Class::Unknown => &self.unknown_outcomes,
            Class::Throttled(_) => &self.throttled_outcomes,
            Class::Transient => &self.transient_outcomes,
            Class::Poison => &self.poison_outcomes,
            Class::Blocked => &self.blocked_outcomes,
        };
        add(counter, 1);
    }
}

pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}
