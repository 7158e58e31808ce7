//! What all workers share, those of live messages and those of the retry table.

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

/// What all workers share.
pub(crate) struct Work<I: Inbox> {
    pub(crate) inbox: Arc<I>,
    pub(crate) handlers: Handlers<I::Transaction>,
    pub(crate) config: Config,
    pub(crate) stats: Arc<Stats>,
    pub(crate) decoder: Decoder,
    pub(crate) breakers: Breakers,
    pub(crate) unended: Unended,
    random: Mutex<SplitMix64>,
    /// As many as handlers may run at once, for live messages and for the retry table together.
    seats: Semaphore,
    /// Read by every handler that runs, written by one that must be the only one.
    alone: RwLock<()>,
}

/// Lets others run beside a handler, or nobody.
#[expect(dead_code, reason = "it is held, not read")]
pub(crate) enum Company<'a> {
    Others(RwLockReadGuard<'a, ()>),
    Nobody(RwLockWriteGuard<'a, ()>),
}

/// The word for what the handler did and the database refused at the end.
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

    /// A call to the database, within its deadline.
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

    /// The right to run a handler; whoever waited longest has it next, and nobody when the consumer ends. It is asked for before
    /// [`company`](Self::company), never after: whoever is to be alone waits for those that have a seat.
    pub(crate) async fn seat(&self) -> Option<SemaphorePermit<'_>> {
        self.seats.acquire().await.ok()
    }

    /// Those that wait for a seat get none.
    pub(crate) fn close_seats(&self) {
        self.seats.close();
    }

    /// One that may have taken the process down before runs while nothing else does.
    pub(crate) async fn company(&self, started: u32) -> Company<'_> {
        if started >= 2 { Company::Nobody(self.alone.write().await) } else { Company::Others(self.alone.read().await) }
    }

    /// Commits with this verdict. The inner error is what the database refused of the handler's work; should it have
    /// happened all the same, the next try finds a repeat.
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

    /// What the database refused of a handler's work, if it was that.
    pub(crate) fn refused(error: StoreError) -> Result<Trouble, StoreError> {
        match error {
            StoreError::Broken(error) => Ok(Trouble::retry(error).with_class(COMMIT)),
            error => Err(error),
        }
    }

    /// Ends the transaction of a try that failed.
    pub(crate) async fn give_up(&self, transaction: I::Transaction, trouble: &Trouble) {
        if trouble.class == DEADLINE {
            // Its connection may be in the middle of something: dropping it rolls back without waiting for that.
            drop(transaction);
        } else if let Err(error) = self.ask(self.inbox.roll_back(transaction)).await {
            // What is not committed does not happen, whether or not the database could be told.
            warn!(error = &error as &dyn std::error::Error, "a transaction was dropped, not rolled back");
        }
    }

    /// How a message is given up. Without order nothing waits behind it, and its queue holds nothing.
    pub(crate) const fn dead_stop(&self, after_dead: AfterDead) -> Stop {
        match after_dead {
            AfterDead::Hold if self.config.order.is_by_key() => Stop::DeadHold,
            AfterDead::Hold | AfterDead::Continue => Stop::DeadContinue,
        }
    }

    /// What is said of one that took the process down so often.
    pub(crate) fn crashed(started: u32) -> Trouble {
        let error = format!("its handling was begun {} times and never ended", started - 1);
        Trouble::poison(error).with_class(Trouble::CRASH)
    }

    /// A setback is in the store: counts it, and copies a dead letter to where copies are wanted.
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

    /// What a handler needs is away: says how long to wait.
    pub(crate) fn is_away(&self, arrival: &Arrival, trouble: &Trouble) -> std::time::Duration {
        add(&self.stats.away, 1);
        let jitter = self.jitter();
        let pause = self.breakers.failed(&arrival.lane, &trouble.error, Instant::now(), jitter);
        warn!(lane = %arrival.lane, error = trouble.error, ?pause, "what a handler needs is away, its lane pauses");
        pause
    }

    /// A try failed and is counted; so what the handler needs is there.
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

    /// A message that was entered but not as a new one.
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
        // Nothing panics while it is held.
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
