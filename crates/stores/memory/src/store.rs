//! One destination of an outbox, as relays and operators use it.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use relevo_core::store::Ceiling;
use relevo_core::store::{
    Advance, Advanced, Ask, DeadFilter, DeadLetter, DeadLetters, Lease, Leased, Leases, Maintained, Mark, OutboxReader,
    Page, ParkedKeys, Read, Run, Settled, Settlement, Standing, StoreError, Upkeep,
};
use uuid::Uuid;

use crate::dead::DeadState;
use crate::outbox::lock;
use crate::state::State;

/// One destination of an outbox. Cheap to clone. It holds no locks between calls.
#[derive(Clone, Debug)]
pub struct Destination {
    state: Arc<Mutex<State>>,
    name: Arc<str>,
}

impl Destination {
    pub(crate) fn new(state: &Arc<Mutex<State>>, name: &str) -> Self {
        Self { state: Arc::clone(state), name: name.into() }
    }
}

#[async_trait]
impl Leases for Destination {
    async fn lease(&self, ask: Ask) -> Result<Leased, StoreError> {
        let mut state = lock(&self.state);
        let now = state.now();
        let destination = state.destination(&self.name)?;
        if !destination.on {
            return Err(StoreError::Refused { what: format!("destination `{}` is switched off", self.name) });
        }
        Ok(destination.lease(&ask, now))
    }

    async fn standing(&self, leases: &[Lease]) -> Result<Vec<Standing>, StoreError> {
        Ok(lock(&self.state).destination(&self.name)?.standing(leases))
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        lock(&self.state).destination(&self.name)?.leave(owner);
        Ok(())
    }
}

#[async_trait]
impl OutboxReader for Destination {
    async fn read(&self, read: Read<'_>) -> Result<Page, StoreError> {
        let mut state = lock(&self.state);
        state.destination(&self.name)?;
        if read.after.is_exhausted() && read.ceiling == Ceiling::Open {
            state.enter_due();
        }
        let now = state.now();
        state.log.read(&read, now)
    }

    async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        let mut state = lock(&self.state);
        let now = state.now();
        let (log, destination) = state.split(&self.name)?;
        destination.settle(&settlement, log, now)
    }
}

#[async_trait]
impl ParkedKeys for Destination {
    async fn due(&self, leases: &[Lease], keys: usize, messages: usize) -> Result<Vec<Run>, StoreError> {
        let mut state = lock(&self.state);
        let now = state.now();
        Ok(state.destination(&self.name)?.due(leases, keys, messages, now))
    }

    async fn advance(&self, advances: Vec<Advance>) -> Result<Vec<Advanced>, StoreError> {
        let mut state = lock(&self.state);
        let now = state.now();
        let destination = state.destination(&self.name)?;
        Ok(advances.iter().map(|advance| destination.advance(advance, now)).collect())
    }
}

#[async_trait]
impl Upkeep for Destination {
    async fn maintain(&self) -> Result<Maintained, StoreError> {
        Ok(lock(&self.state).maintain())
    }
}

#[async_trait]
impl DeadLetters for Destination {
    async fn dead(&self, filter: &DeadFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let mut state = lock(&self.state);
        let started_at = state.settings.started_at;
        Ok(state.destination(&self.name)?.dead_letters(filter, limit, started_at))
    }

    async fn redrive(&self, mark: &Mark) -> Result<u64, StoreError> {
        let mut state = lock(&self.state);
        let now = state.now();
        Ok(state.destination(&self.name)?.mark(mark, DeadState::Redrive, now))
    }

    async fn discard(&self, mark: &Mark) -> Result<u64, StoreError> {
        let mut state = lock(&self.state);
        let now = state.now();
        Ok(state.destination(&self.name)?.mark(mark, DeadState::Discard, now))
    }
}
