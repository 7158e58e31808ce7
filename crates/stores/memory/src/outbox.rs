//! The outbox as a whole: what an administrator does to it, and where transactions begin.

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

/// An outbox in memory. Cheap to clone: all clones are the same outbox.
#[derive(Clone, Debug)]
pub struct Outbox(Arc<Mutex<State>>);

impl Outbox {
    /// An empty outbox with the destination [`MAIN`].
    pub fn new(settings: Settings) -> Self {
        let shards = settings.shards.clamp(1, SLOTS);
        let mut state = State::new(settings);
        state.destinations.insert(MAIN.to_owned(), leases::Destination::new(shards, Position::at(0), 0));
        Self(Arc::new(Mutex::new(state)))
    }

    pub(crate) fn state(&self) -> &Mutex<State> {
        &self.0
    }

    /// Begins a transaction; several may be open at once.
    pub fn begin(&self) -> Transaction {
        Transaction::begin(&self.0)
    }

    /// A handle on a consumer's inbox, as each of its members has one.
    pub fn inbox(&self, consumer: &str, keeping: Keeping) -> Inbox {
        Inbox::new(&self.0, consumer, keeping)
    }

    /// A handle on all inboxes, for an operator.
    pub fn operator(&self) -> Operator {
        Operator::new(&self.0)
    }

    /// The log as a source of replays, for messages that are sent like this.
    pub fn log(&self, sending: Sending) -> OutboxLog {
        OutboxLog::new(&self.0, sending)
    }

    /// What applications committed to the ledger, in the order of the commits.
    pub fn ledger(&self) -> Vec<String> {
        lock(&self.0).ledger.clone()
    }

    /// A handle for a relay or an operator. If there is no such destination, every call says so.
    pub fn destination(&self, name: &str) -> Destination {
        Destination::new(&self.0, name)
    }

    /// Adds a destination with its own progress; refused if it exists, or with no shards, or more shards than slots.
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

    /// Removes a destination and all that it holds; retention no longer waits for it.
    pub fn remove_destination(&self, name: &str) -> Result<(), StoreError> {
        let mut state = lock(&self.0);
        state.destination(name)?;
        state.destinations.remove(name);
        Ok(())
    }

    /// Asks for another number of shards. Whoever leases carries it out, once all shards stand at one tick.
    pub fn regroup(&self, name: &str, shards: u16) -> Result<(), StoreError> {
        check_shards(shards)?;
        lock(&self.0).destination(name)?.ask_regroup(shards);
        Ok(())
    }

    /// Switches a destination off, so that nothing of it is leased, or on again.
    pub fn switch(&self, name: &str, on: bool) -> Result<(), StoreError> {
        lock(&self.0).destination(name)?.on = on;
        Ok(())
    }

    /// The server dies and comes back: open transactions are lost, what was committed stays.
    pub fn restart(&self) {
        let mut state = lock(&self.0);
        let tokens: Vec<u64> = state.open.keys().copied().collect();
        for token in tokens {
            state.rollback(token);
        }
    }

    /// Makes everything that retention and pruning look at older. Leases, claims and retries stay as they are.
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
    // A panic under the lock is a bug that its own test reports; the others need not fail with it.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
