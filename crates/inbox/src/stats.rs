//! What a consumer has done, for whoever watches it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use relevo_core::Lane;
use tokio::time::Instant;

use crate::config::Config;
use crate::durations::{Durations, Histogram};
use crate::phase::{Phase, SharedPhase};

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Numbers of one consumer in one process.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub(crate) $name: AtomicU64,)+
            pub(crate) phase: SharedPhase,
            consumer: String,
            beat_lasts: Duration,
            durations: Durations,
            lanes: Mutex<Lanes>,
            /// When the last sign of life was taken.
            beaten: Mutex<Option<Instant>>,
            born: Born,
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
    /// Times that the database was found away, each sign of life that failed included.
    database_away,
    /// Times that the database refused a call about one message.
    database_refused,
    /// Times that the broker was found away.
    broker_away,
    /// Calls in a row that should have brought messages and failed; 0 while the broker is there.
    receive_failures,
    /// Times in a row that the broker did not say how much waits; 0 while it does.
    lag_failures,
    /// Signs of life that the database took.
    beats,
    /// Signs of life that failed.
    beats_failed,
    /// Messages in memory now.
    in_memory,
    /// Handlers that run now, those of the retry table included.
    running,
}

/// What is known by lane.
#[derive(Debug, Default)]
struct Lanes {
    lag: Vec<(Lane, u64)>,
    open: Vec<(Lane, String)>,
}

#[derive(Debug)]
struct Born(Instant);

impl Default for Born {
    fn default() -> Self {
        Self(Instant::now())
    }
}

pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

pub(crate) fn set(gauge: &AtomicU64, value: usize) {
    gauge.store(value as u64, Ordering::Relaxed);
}

impl Stats {
    /// Numbers of a consumer that has done nothing yet.
    pub(crate) fn new(config: &Config) -> Self {
        Self { consumer: config.consumer.clone(), beat_lasts: config.beat_lasts, ..Self::default() }
    }

    /// The consumer's name.
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Whether the member runs.
    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// How long tries of handlers took that have ended, whatever they said. A call and what commits its result are one.
    pub fn durations(&self) -> Histogram {
        self.durations.histogram()
    }

    /// Since the last sign of life that the database took, or since the consumer was made if it took none.
    pub fn beat_age(&self) -> Duration {
        let beaten = *lock(&self.beaten);
        beaten.unwrap_or(self.born.0).elapsed()
    }

    /// Whether the database counts this member as alive.
    pub fn is_alive(&self) -> bool {
        self.beats() > 0 && self.beat_age() < self.beat_lasts
    }

    /// How many messages wait at the broker, by lane, as it said last; empty while that is not known.
    pub fn lag(&self) -> Vec<(Lane, u64)> {
        lock(&self.lanes).lag.clone()
    }

    /// Lanes whose breaker is open, each with why.
    pub fn open_breakers(&self) -> Vec<(Lane, String)> {
        lock(&self.lanes).open.clone()
    }

    /// A try of a handler ended.
    pub(crate) fn tried(&self, took: Duration) {
        self.durations.observe(took);
    }

    /// The database took a sign of life.
    pub(crate) fn beaten(&self) {
        add(&self.beats, 1);
        *lock(&self.beaten) = Some(Instant::now());
    }

    pub(crate) fn lag_is(&self, lag: Vec<(Lane, u64)>) {
        lock(&self.lanes).lag = lag;
    }

    pub(crate) fn breakers_are(&self, open: Vec<(Lane, String)>) {
        set(&self.breakers_open, open.len());
        lock(&self.lanes).open = open;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
