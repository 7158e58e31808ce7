//! What a consumer has done, for whoever watches it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Numbers of one consumer in one process.
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
    /// Messages that the broker delivered, repeats included.
    received,
    /// Messages that were handled: verdict `done`.
    done,
    /// Messages whose handler wanted nothing of them, or that have no handler: verdict `skip`.
    skipped,
    /// Messages that came again after they had ended, and were not handled.
    duplicates,
    /// Messages that were put behind others of their key in the retry table.
    behind,
    /// Tries that failed and were counted.
    failed,
    /// Of those, tries that panicked.
    panics,
    /// Of those, tries that passed their deadline.
    deadlines,
    /// Messages that are tried again in memory.
    retried_in_memory,
    /// Messages that are tried again from the retry table, or by the broker.
    retried_later,
    /// Messages that went to the dead letters.
    dead,
    /// Of those, messages that could not be decoded or broke their schema.
    undecodable,
    /// Of those, messages that took the process down too often.
    crashed,
    /// Of those, messages that were older than the inbox remembers.
    expired,
    /// Copies of dead letters that could not be published.
    copies_failed,
    /// First deliveries whose sequence number was below one of the same key that came before.
    inversions,
    /// Deliveries whose sequence number had come before.
    repeats,
    /// Transactions that handled several messages.
    batches,
    /// Of those, how many were rolled back, their messages handled alone.
    batches_undone,
    /// Times that another worker had a message in hand.
    busy,
    /// Times that a lane, or a claim, turned out to be another's.
    lost,
    /// Answers that the broker did not want any more.
    answers_lost,
    /// Times that what a handler needs was found away.
    away,
    /// Lanes whose breaker is open now.
    breakers_open,
    /// Times that the database was found away.
    database_away,
    /// Times that the database refused a call about one message.
    database_refused,
    /// Times that the broker was found away.
    broker_away,
    /// Signs of life that the database took.
    beats,
    /// Signs of life that failed.
    beats_failed,
    /// Messages in memory now.
    in_memory,
    /// Handlers that run now, those of the retry table included.
    running,
    /// Tries of handlers that have ended, whatever they said.
    tries,
    /// What all of them took together, in microseconds.
    tries_us,
}

pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

pub(crate) fn set(gauge: &AtomicU64, value: usize) {
    gauge.store(value as u64, Ordering::Relaxed);
}

impl Stats {
    /// A try of a handler ended.
    pub(crate) fn tried(&self, took: Duration) {
        add(&self.tries, 1);
        self.tries_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Counts something while it lives.
pub(crate) struct While<'a>(&'a AtomicU64);

impl<'a> While<'a> {
    pub(crate) fn new(gauge: &'a AtomicU64) -> Self {
        add(gauge, 1);
        Self(gauge)
    }
}

impl Drop for While<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
