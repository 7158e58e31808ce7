//! What a relay has done, for whoever watches it.

use std::sync::atomic::{AtomicU64, Ordering};

use relevo_core::Class;

use crate::latency::Latencies;

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of one relay; each only grows.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub(crate) $name: AtomicU64,)+
            pub(crate) latencies: Latencies,
        }

        impl Stats {
            /// How long messages took.
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
    /// Messages that were confirmed.
    published,
    /// Messages that were handed to the broker, repeats included.
    attempts,
    /// Messages that no route of this destination wants.
    skipped,
    /// Messages that were parked, at the head of a key or behind one.
    parked,
    /// Times that a message was refused and put off, to be tried again.
    retried,
    /// Messages that went to the dead letters.
    buried,
    /// Answers that were lost.
    unknown,
    /// Times that the destination was found away.
    outages,
    /// Leases that were lost before they were given back.
    leases_lost,
    /// Leases that were taken, given back or lost.
    lease_changes,
    /// Times that the database was found away.
    database_away,
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
    /// Pages that were read with messages in them.
    pages,
    /// Settlements that were recorded.
    settlements,
}

impl Stats {
    /// A message came back with a failure of this class.
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
