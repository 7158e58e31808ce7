//! State and store calls shared by the workers of live messages and of the retry table.

use std::sync::{Arc, Mutex, PoisonError};

use relevo_core::inbox::{Arrival, Entered, Entry, Inbox, Setback, Stop};
use relevo_core::store::StoreError;
use relevo_core::{AfterDead, Jitter};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};
use tracing::field::display;
use tracing::warn;
use uuid::Uuid;

use crate::attempt::DEADLINE;
use crate::breaker::Breakers;
use crate::config::Config;
use crate::copy;
use crate::decode::Decoder;
use crate::handler::Handlers;
use crate::incoming::Incoming;
use crate::item::Item;
use crate::stats::{Stats, add};
use crate::unended::Unended;
use crate::verdict::{Trouble, Verdict};
use relevo_core::random::SplitMix64;

/// State shared by all workers.
pub(crate) struct Work<I: Inbox> {
    pub(crate) inbox: Arc<I>,
    pub(crate) handlers: Handlers<I::Transaction>,
    pub(crate) config: Config,
    pub(crate) stats: Arc<Stats>,
    pub(crate) decoder: Decoder,
    pub(crate) breakers: Breakers,
    pub(crate) unended: Unended,
    random: Mutex<SplitMix64>,
    /// Limits how many handlers run at once, live messages and the retry table together.
    seats: Semaphore,
    /// Isolation lock: every running handler holds it for reading, one that must run alone holds it for writing.
    alone: RwLock<()>,
}

/// Isolation of a handler: others may run beside it, or it runs alone.
#[expect(dead_code, reason = "it is held, not read")]
pub(crate) enum Company<'a> {
    Others(RwLockReadGuard<'a, ()>),
    Nobody(RwLockWriteGuard<'a, ()>),
}

/// Error class of handler work that the database rejected at commit.
const COMMIT: &str = "commit";

impl<I: Inbox + 'static> Work<I>
where
    I::Transaction: 'static,
{
    pub(crate) fn new(inbox: Arc<I>, handlers: Handlers<I::Transaction>, config: Config, random: SplitMix64) -> Self {
        let stats = Arc::new(Stats::new(&config));
        Self {
            inbox,
            handlers,
            decoder: Decoder::new(&config),
            breakers: Breakers::new(config.breaker.clone(), Arc::clone(&stats)),
            stats,
            unended: Unended::default(),
            seats: Semaphore::new(config.order.concurrency()),
            config,
            random: Mutex::new(random),
            alone: RwLock::new(()),
        }
    }

    /// Makes a store call within the configured timeout.
    pub(crate) async fn ask<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.ask_until(Instant::now() + self.config.store_deadline, call).await
    }

    pub(crate) async fn ask_until<T>(
        &self,
        end: Instant,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let late = |_| Err(StoreError::Away("it did not answer in time".into()));
        timeout_at(end, call).await.unwrap_or_else(late)
    }

    /// Waits for a permit to run a handler, first come, first served. Returns `None` when the consumer shuts down.
    /// Acquire the permit before [`company`](Self::company), never after it: a handler that must run alone waits for
    /// every handler that already has a permit.
    pub(crate) async fn seat(&self) -> Option<SemaphorePermit<'_>> {
        self.seats.acquire().await.ok()
    }

    /// Cancels all waits for a permit.
    pub(crate) fn close_seats(&self) {
        self.seats.close();
    }

    /// A message whose earlier starts did not end may have crashed the process; its handler runs alone.
    pub(crate) async fn company(&self, started: u32) -> Company<'_> {
        if started >= 2 { Company::Nobody(self.alone.write().await) } else { Company::Others(self.alone.read().await) }
    }

    /// Commits with this verdict. The inner error means that the database rejected the handler's work. If the commit
    /// succeeded despite the error, the next attempt finds a duplicate.
    pub(crate) async fn commit(
        &self,
        mut transaction: I::Transaction,
        entry: Entry,
        verdict: Verdict,
    ) -> Result<Result<(), Trouble>, StoreError> {
        let committed = async {
            if verdict == Verdict::Skip {
                self.ask(self.inbox.skip(&mut transaction, entry)).await?;
            }
            self.ask(self.inbox.commit(transaction)).await
        };
        match committed.await {
            Ok(()) => {
                self.counted(verdict);
                Ok(Ok(()))
            }
            Err(error) => Self::refused(error).map(Err),
        }
    }

    /// Separates a rejected commit, which concerns the handler's work, from other store errors.
    pub(crate) fn refused(error: StoreError) -> Result<Trouble, StoreError> {
        match error {
            StoreError::Broken(error) => Ok(Trouble::retry(error).with_class(COMMIT)),
            error => Err(error),
        }
    }

    /// Ends the transaction of a failed attempt.
    pub(crate) async fn give_up(&self, transaction: I::Transaction, trouble: &Trouble) {
        if trouble.class == DEADLINE {
            // The connection may still execute a statement. Dropping the transaction rolls it back without waiting.
            drop(transaction);
        } else if let Err(error) = self.ask(self.inbox.roll_back(transaction)).await {
            // Uncommitted work has no effect, even if the rollback did not reach the database.
            warn!(error = &error as &dyn std::error::Error, "a transaction was dropped, not rolled back");
        }
    }

    /// How a message is dead-lettered. Without order no message waits behind it, so its queue is not held.
    pub(crate) const fn dead_stop(&self, after_dead: AfterDead) -> Stop {
        match after_dead {
            AfterDead::Hold if self.config.order.is_by_key() => Stop::DeadHold,
            AfterDead::Hold | AfterDead::Continue => Stop::DeadContinue,
        }
    }

    /// The error of a message whose handling crashed the process too often.
    pub(crate) fn crashed(started: u32) -> Trouble {
        let error = format!("its handling was begun {} times and never ended", started - 1);
        Trouble::poison(error).with_class(Trouble::CRASH)
    }

    /// After the store recorded a failure: counts it, logs it and publishes a copy of a dead letter if configured.
    pub(crate) async fn kept(&self, arrival: &Arrival, incoming: Option<&Incoming>, setback: &Setback) {
        let (message_id, trace_id) = (arrival.entry.id, self.trace_of(incoming).map(display));
        if let Stop::Retry { after } | Stop::Wait { after } = setback.stop {
            warn!(%message_id, trace_id, attempts = setback.attempts, error = setback.error, ?after, "a message waits to be tried again");
            return;
        }
        tracing::error!(%message_id, trace_id, attempts = setback.attempts, class = setback.class, error = setback.error, "a message is a dead letter");
        add(&self.stats.dead, 1);
        match setback.class {
            Trouble::UNDECODABLE => add(&self.stats.undecodable, 1),
            Trouble::CRASH => add(&self.stats.crashed, 1),
            Trouble::EXPIRED => add(&self.stats.expired, 1),
            _ => {}
        }
        let id = self.random_id();
        copy::publish(&self.config, &self.stats, id, arrival, incoming, setback).await;
    }

    /// A handler reported an outage: opens the lane's breaker and returns the pause.
    pub(crate) fn is_away(&self, arrival: &Arrival, trouble: &Trouble) -> std::time::Duration {
        add(&self.stats.away, 1);
        let jitter = self.jitter();
        let pause = self.breakers.failed(&arrival.lane, &trouble.error, Instant::now(), jitter);
        warn!(lane = %arrival.lane, error = trouble.error, ?pause, "what a handler needs is away, its lane pauses");
        pause
    }

    /// Counts and logs a failed attempt. The failure is not an outage, so the breaker closes.
    pub(crate) fn failed(&self, item: &Item, trouble: &Trouble) {
        let (message_id, attempt) = (item.arrival.entry.id, item.attempts);
        let trace_id = self.trace_of(item.incoming.as_ref().ok()).map(display);
        warn!(%message_id, trace_id, attempt, error = %trouble, "a handler failed");
        self.counted_failure(&item.arrival);
    }

    pub(crate) fn counted_failure(&self, arrival: &Arrival) {
        add(&self.stats.failed, 1);
        self.breakers.passed(&arrival.lane);
    }

    pub(crate) fn counted(&self, verdict: Verdict) {
        match verdict {
            Verdict::Done => add(&self.stats.done, 1),
            Verdict::Skip => add(&self.stats.skipped, 1),
        }
    }

    /// Counts a message that was entered, but not as a new one.
    pub(crate) fn not_new(&self, item: &mut Item, entered: Entered) {
        match entered {
            Entered::New => {}
            Entered::Repeat(_) => {
                add(&self.stats.duplicates, 1);
                if std::mem::take(&mut item.inverted) {
                    add(&self.stats.repeats, 1);
                }
            }
            Entered::Behind => add(&self.stats.behind, 1),
        }
    }

    pub(crate) fn jitter(&self) -> Jitter {
        self.lock_random().jitter()
    }

    pub(crate) fn random_id(&self) -> Uuid {
        self.lock_random().uuid()
    }

    fn lock_random(&self) -> std::sync::MutexGuard<'_, SplitMix64> {
        // No code panics while it holds this lock.
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
