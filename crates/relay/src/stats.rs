//! What a relay has done, for whoever watches it.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of one relay; each only grows.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub(crate) $name: AtomicU64,)+
        }

        impl Stats {
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
    /// Times that the database was found away.
    database_away,
    /// Pages that were read with messages in them.
    pages,
    /// Settlements that were recorded.
    settlements,
}

pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}
