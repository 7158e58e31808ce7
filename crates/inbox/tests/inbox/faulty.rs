//! The memory store's inbox with injected faults.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::Lane;
use relevo_core::inbox::{Arrival, Beat, Begun, Claim, Claimed, Due, Enter, Entry, Held, Inbox, Kept, Orders, Setback};
use relevo_core::store::StoreError;
use relevo_store_memory::{Inbox as Memory, Transaction};
use uuid::Uuid;

/// The faults to inject.
#[derive(Default)]
pub(crate) struct Line {
    /// Every call fails.
    pub(crate) cut: AtomicBool,
    /// The database rejects commits, like a deferred constraint.
    pub(crate) refuses: AtomicBool,
    /// Commits fail and have no effect.
    pub(crate) drops: AtomicBool,
    /// Ending the attempt of this message fails, as if its row were locked.
    pub(crate) stuck: Mutex<Option<Entry>>,
    /// The next commit takes effect, but its reply is lost.
    pub(crate) deaf: AtomicBool,
    /// Number of transactions begun.
    pub(crate) begun: AtomicU64,
    /// Acquiring lanes is slow.
    pub(crate) slow: AtomicBool,
    /// The only connection for calls about lanes.
    pub(crate) lanes: tokio::sync::Mutex<()>,
}

pub(crate) struct Faulty {
    pub(crate) inner: Memory,
    pub(crate) line: Arc<Line>,
}

impl Faulty {
    fn check(&self) -> Result<(), StoreError> {
        if self.line.cut.load(Ordering::Relaxed) {
            return Err(StoreError::Away("the line is cut".into()));
        }
        Ok(())
    }
}

#[async_trait]
impl Inbox for Faulty {
    type Transaction = Transaction;

    async fn begin(&self, enter: Enter<'_>) -> Result<Begun<Transaction>, StoreError> {
        self.check()?;
        self.line.begun.fetch_add(1, Ordering::Relaxed);
        self.inner.begin(enter).await
    }

    async fn skip(&self, transaction: &mut Transaction, entry: Entry) -> Result<(), StoreError> {
        self.check()?;
        self.inner.skip(transaction, entry).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<(), StoreError> {
        self.check()?;
        if self.line.drops.load(Ordering::Relaxed) {
            return Err(StoreError::Away("the connection is lost".into()));
        }
        if self.line.refuses.load(Ordering::Relaxed) {
            return Err(StoreError::Broken("a constraint is broken".into()));
        }
        self.inner.commit(transaction).await?;
        if self.line.deaf.swap(false, Ordering::Relaxed) {
            return Err(StoreError::Away("the answer is lost".into()));
        }
        Ok(())
    }

    async fn roll_back(&self, transaction: Transaction) -> Result<(), StoreError> {
        self.check()?;
        self.inner.roll_back(transaction).await
    }

    async fn start(&self, arrival: &Arrival) -> Result<u32, StoreError> {
        self.check()?;
        self.inner.start(arrival).await
    }

    async fn claim(&self, arrival: &Arrival, held: Option<&Held>, lasts: Duration) -> Result<Claimed, StoreError> {
        self.check()?;
        self.inner.claim(arrival, held, lasts).await
    }

    async fn begin_claimed(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Claim,
    ) -> Result<Begun<Transaction>, StoreError> {
        self.check()?;
        self.inner.begin_claimed(arrival, held, claim).await
    }

    async fn ended(&self, entry: Entry, claim: Option<Claim>) -> Result<(), StoreError> {
        self.check()?;
        if *self.line.stuck.lock().expect("no test panics with it") == Some(entry) {
            return Err(StoreError::Away("somebody has it".into()));
        }
        self.inner.ended(entry, claim).await
    }

    async fn set_back(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Option<Claim>,
        setback: &Setback,
    ) -> Result<Kept, StoreError> {
        self.check()?;
        self.inner.set_back(arrival, held, claim, setback).await
    }

    async fn due(&self, queues: usize, messages: usize, lasts: Duration) -> Result<Vec<Due>, StoreError> {
        self.check()?;
        self.inner.due(queues, messages, lasts).await
    }

    async fn begin_due(&self, due: &Due, number: i64) -> Result<Begun<Transaction>, StoreError> {
        self.check()?;
        self.inner.begin_due(due, number).await
    }

    async fn set_back_due(&self, due: &Due, number: i64, setback: &Setback) -> Result<Kept, StoreError> {
        self.check()?;
        self.inner.set_back_due(due, number, setback).await
    }

    async fn release(&self, due: &Due) -> Result<(), StoreError> {
        self.check()?;
        self.inner.release(due).await
    }

    async fn beat(&self, beat: &Beat) -> Result<Orders, StoreError> {
        self.check()?;
        self.inner.beat(beat).await
    }

    async fn take(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<Held>, StoreError> {
        self.check()?;
        let _connection = self.line.lanes.lock().await;
        if self.line.slow.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        self.inner.take(owner, lanes).await
    }

    async fn give_back(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError> {
        self.check()?;
        self.inner.give_back(owner, lanes).await
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        self.check()?;
        let _connection = self.line.lanes.lock().await;
        self.inner.leave(owner).await
    }

    async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        self.check()?;
        self.inner.prune(limit).await
    }
}
