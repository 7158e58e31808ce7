//! The in-memory inbox, with the same tables, locks and results as a database.

pub(crate) mod dead;
pub(crate) mod desk;
mod enter;
mod members;
pub(crate) mod operate;
mod patience;
pub(crate) mod pending;
mod prune;
mod queues;
mod replays;
mod setback;
pub(crate) mod source;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::consume::Lane;
use relevo_core::inbox::{
    self, Arrival, Beat, Begun, Claim, Claimed, Due, Enter, Entered, Entry, Held, Keeping, Kept, Orders, Setback,
};
use relevo_core::store::StoreError;
use uuid::Uuid;

use self::desk::Desk;
use self::patience::{PATIENCE, or_fail, patiently};
use crate::outbox::lock;
use crate::state::State;
use crate::transaction::{Transaction, TransactionError};

/// One consumer's inbox. Cheap to clone. Only an open transaction holds locks between calls.
#[derive(Clone, Debug)]
pub struct Inbox {
    state: Arc<Mutex<State>>,
    asking: Asking,
}

/// The calling consumer and its retention settings.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    pub(crate) consumer: Arc<str>,
    pub(crate) keeping: Keeping,
}

impl Asking {
    const fn traced(&self) -> bool {
        self.keeping.trace.is_some()
    }
}

/// An open transaction by its token, or why none was opened.
pub(crate) enum Opened {
    Open(u64, Vec<Entered>),
    Lost,
}

impl State {
    /// The tables of the calling consumer.
    pub(crate) fn desk(&mut self, asking: &Asking) -> &mut Desk {
        self.desks.entry(asking.consumer.to_string()).or_default()
    }
}

impl Inbox {
    pub(crate) fn new(state: &Arc<Mutex<State>>, consumer: &str, keeping: Keeping) -> Self {
        let asking = Asking { consumer: consumer.into(), keeping };
        lock(state).desk(&asking);
        Self { state: Arc::clone(state), asking }
    }

    /// Opens a transaction as soon as no other transaction blocks it.
    async fn open(&self, attempt: impl FnMut(&mut State) -> Option<Opened>) -> Begun<Transaction> {
        match patiently(&self.state, attempt).await {
            Some(Opened::Open(token, entered)) => Begun::Open(Transaction::of(&self.state, token), entered),
            Some(Opened::Lost) => Begun::Lost,
            None => Begun::Busy,
        }
    }
}

#[async_trait]
impl inbox::Inbox for Inbox {
    type Transaction = Transaction;

    async fn begin(&self, enter: Enter<'_>) -> Result<Begun<Transaction>, StoreError> {
        Ok(self.open(|state| state.enter(&self.asking, enter)).await)
    }

    async fn skip(&self, transaction: &mut Transaction, entry: Entry) -> Result<(), StoreError> {
        transaction.mark(entry, inbox::State::Skipped).map_err(away)
    }

    async fn commit(&self, transaction: Transaction) -> Result<(), StoreError> {
        transaction.commit().map_err(away)
    }

    async fn roll_back(&self, transaction: Transaction) -> Result<(), StoreError> {
        transaction.rollback();
        Ok(())
    }

    async fn start(&self, arrival: &Arrival) -> Result<u32, StoreError> {
        Ok(lock(&self.state).start(&self.asking, arrival))
    }

    async fn claim(&self, arrival: &Arrival, held: Option<&Held>, lasts: Duration) -> Result<Claimed, StoreError> {
        let claimed = patiently(&self.state, |state| state.claim(&self.asking, arrival, held, lasts)).await;
        Ok(claimed.unwrap_or(Claimed::Busy(PATIENCE)))
    }

    async fn begin_claimed(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Claim,
    ) -> Result<Begun<Transaction>, StoreError> {
        Ok(self.open(|state| state.enter_claimed(&self.asking, arrival, held, claim)).await)
    }

    async fn ended(&self, entry: Entry, claim: Option<Claim>) -> Result<(), StoreError> {
        lock(&self.state).end_handling(&self.asking, entry, claim);
        Ok(())
    }

    async fn set_back(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Option<Claim>,
        setback: &Setback,
    ) -> Result<Kept, StoreError> {
        let kept = patiently(&self.state, |state| state.set_back(&self.asking, arrival, held, claim, setback)).await;
        Ok(kept.unwrap_or(Kept::Busy))
    }

    async fn due(&self, queues: usize, messages: usize, lasts: Duration) -> Result<Vec<Due>, StoreError> {
        Ok(lock(&self.state).due(&self.asking, queues, messages, lasts))
    }

    async fn begin_due(&self, due: &Due, number: i64) -> Result<Begun<Transaction>, StoreError> {
        Ok(self.open(|state| state.enter_first(&self.asking, due, number)).await)
    }

    async fn set_back_due(&self, due: &Due, number: i64, setback: &Setback) -> Result<Kept, StoreError> {
        let kept = patiently(&self.state, |state| state.set_back_due(&self.asking, due, number, setback)).await;
        Ok(kept.unwrap_or(Kept::Busy))
    }

    async fn release(&self, due: &Due) -> Result<(), StoreError> {
        or_fail(&self.state, |state| state.release(&self.asking, due)).await
    }

    async fn beat(&self, beat: &Beat) -> Result<Orders, StoreError> {
        let mut state = lock(&self.state);
        let now = state.now();
        Ok(state.desk(&self.asking).beat(beat, now))
    }

    async fn take(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<Held>, StoreError> {
        Ok(lock(&self.state).take(&self.asking, owner, lanes))
    }

    async fn give_back(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError> {
        // An open transaction in one of these lanes prevents other members from taking it until the transaction ends.
        lock(&self.state).desk(&self.asking).give_back(owner, lanes);
        Ok(())
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        // A lane whose owner does not exist is free for any member.
        lock(&self.state).desk(&self.asking).members.remove(&owner);
        Ok(())
    }

    async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        let mut state = lock(&self.state);
        let now = state.now();
        Ok(state.desk(&self.asking).prune(&self.asking.keeping, limit, now))
    }
}

fn away(error: TransactionError) -> StoreError {
    StoreError::Away(Box::new(error))
}
