//! The outbox: administration and the start of transactions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use relevo_core::inbox::Keeping;
use relevo_core::inbox::source::Sending;
use relevo_core::slot::SLOTS;
use relevo_core::store::{Position, StoreError};

use crate::config::{MAIN, Settings, Start};
use crate::inbox::Inbox;
use crate::inbox::operate::Operator;
use crate::inbox::source::OutboxLog;
use crate::leases;
use crate::state::{State, micros};
use crate::store::Destination;
use crate::transaction::Transaction;

/// An in-memory outbox. Cheap to clone: all clones are the same outbox.
#[derive(Clone, Debug)]
pub struct Outbox(Arc<Mutex<State>>);

impl Outbox {
    /// Creates an empty outbox with the destination [`MAIN`].
    pub fn new(settings: Settings) -> Self {
        let shards = settings.shards.clamp(1, SLOTS);
        let mut state = State::new(settings);
        state.destinations.insert(MAIN.to_owned(), leases::Destination::new(shards, Position::at(0), 0));
        Self(Arc::new(Mutex::new(state)))
    }

    pub(crate) fn state(&self) -> &Mutex<State> {
        &self.0
    }

    /// Begins a transaction. Several transactions may be open at once.
    pub fn begin(&self) -> Transaction {
        Transaction::begin(&self.0)
    }

    /// A handle to a consumer's inbox. Each member has its own.
    pub fn inbox(&self, consumer: &str, keeping: Keeping) -> Inbox {
        Inbox::new(&self.0, consumer, keeping)
    }

    /// A handle to all inboxes, for operators.
    pub fn operator(&self) -> Operator {
        Operator::new(&self.0)
    }

    /// The log as a source of replays, for messages that are sent with these routes and this source.
    pub fn log(&self, sending: Sending) -> OutboxLog {
        OutboxLog::new(&self.0, sending)
    }

    /// The lines that applications committed to the ledger, in commit order.
    pub fn ledger(&self) -> Vec<String> {
        lock(&self.0).ledger.clone()
    }

    /// A handle for a relay or an operator. If the destination does not exist, every call returns an error.
    pub fn destination(&self, name: &str) -> Destination {
        Destination::new(&self.0, name)
    }

    /// Adds a destination with its own progress. Fails if it exists, has no shards, or has more shards than slots.
    pub fn add_destination(&self, name: &str, shards: u16, start: Start) -> Result<(), StoreError> {
        check_shards(shards)?;
        let mut state = lock(&self.0);
        if state.destinations.contains_key(name) {
            return Err(refused(format!("destination `{name}` exists")));
        }
        let now = state.now();
        let tick = match start {
            Start::Now => state.log.tick(now),
            Start::Oldest => 0,
        };
        state.destinations.insert(name.to_owned(), leases::Destination::new(shards, Position::at(tick), now));
        Ok(())
    }

    /// Removes a destination and all its data. Retention no longer waits for it.
    pub fn remove_destination(&self, name: &str) -> Result<(), StoreError> {
        let mut state = lock(&self.0);
        state.destination(name)?;
        state.destinations.remove(name);
        Ok(())
    }

    /// Requests another number of shards. Lease requests perform the resharding once all shards are at the same tick.
    pub fn regroup(&self, name: &str, shards: u16) -> Result<(), StoreError> {
        check_shards(shards)?;
        lock(&self.0).destination(name)?.ask_regroup(shards);
        Ok(())
    }

    /// Enables or disables a destination. Shards of a disabled destination are not leased.
    pub fn switch(&self, name: &str, on: bool) -> Result<(), StoreError> {
        lock(&self.0).destination(name)?.on = on;
        Ok(())
    }

    /// Simulates a server crash and restart: open transactions are lost, committed data stays.
    pub fn restart(&self) {
        let mut state = lock(&self.0);
        let tokens: Vec<u64> = state.open.keys().copied().collect();
        for token in tokens {
            state.rollback(token);
        }
    }

    /// Makes all data older for retention and pruning. Leases, claims and retries do not change.
    pub fn age(&self, time: Duration) {
        let by = micros(time);
        let mut state = lock(&self.0);
        for row in state.log.rows.values_mut() {
            row.entered = row.entered.saturating_sub(by);
        }
        for tick in state.log.ticks.values_mut() {
            tick.made = tick.made.saturating_sub(by);
        }
        for shard in state.destinations.values_mut().flat_map(|destination| &mut destination.shards) {
            for (time, _) in &mut shard.progress {
                *time = time.saturating_sub(by);
            }
        }
        for desk in state.desks.values_mut() {
            desk.age(by);
        }
    }
}

fn check_shards(shards: u16) -> Result<(), StoreError> {
    if (1..=SLOTS).contains(&shards) { Ok(()) } else { Err(refused(format!("{shards} is not between 1 and {SLOTS}"))) }
}

fn refused(what: String) -> StoreError {
    StoreError::Refused { what }
}

pub(crate) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A panic under the lock is a bug that its own test reports. Other tests need not fail because of it.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
