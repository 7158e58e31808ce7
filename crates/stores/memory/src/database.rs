//! The outbox: administration and the start of transactions.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use relevo_core::inbox::InboxRetention;
use relevo_core::outbox::Position;
use relevo_core::replay_source::OutboxRouting;
use relevo_core::slot::SLOTS;

use crate::config::{Config, MAIN};
use crate::emit::Transaction;
use crate::inbox::Inbox;
use crate::inbox::source::OutboxReplaySource;
use crate::leases::DestinationTables;
use crate::operator::Operator;
use crate::state::{Tables, micros, timestamp};
use crate::store::Store;

/// An in-memory outbox. Cheap to clone: all clones are the same outbox.
#[derive(Clone, Debug)]
pub struct Database(Arc<Mutex<Tables>>);

impl Database {
    /// Creates an empty outbox with the destination [`MAIN`].
    pub fn new(settings: Config) -> Self {
        let shards = settings.shards.clamp(1, SLOTS);
        let mut state = Tables::new(settings);
        state.destinations.insert(MAIN.to_owned(), DestinationTables::new(shards, Position::at(0), 0));
        Self(Arc::new(Mutex::new(state)))
    }

    pub(crate) fn tables(&self) -> &Mutex<Tables> {
        &self.0
    }

    /// The time of the database's clock.
    pub fn now(&self) -> Timestamp {
        let state = self.0.lock();
        timestamp(state.config.started_at, state.now())
    }

    /// Begins a transaction. Several transactions may be open at once.
    pub fn begin(&self) -> Transaction {
        Transaction::begin(&self.0)
    }

    /// A handle to a consumer's inbox. Each member has its own.
    pub fn inbox(&self, consumer: &str, retention: InboxRetention) -> Inbox {
        Inbox::new(&self.0, consumer, retention)
    }

    /// A handle for operators, to the outbox and all inboxes.
    pub fn operator(&self) -> Operator {
        Operator(Arc::clone(&self.0))
    }

    /// The log as a source of replays, for messages that are sent with these routes and this source.
    pub fn log(&self, routing: OutboxRouting) -> OutboxReplaySource {
        OutboxReplaySource::new(&self.0, routing)
    }

    /// The lines that applications committed to the ledger, in commit order.
    pub fn effects(&self) -> Vec<String> {
        self.0.lock().effects.clone()
    }

    /// A handle for a relay or an operator. If the destination does not exist, every call returns an error.
    pub fn store(&self, name: &str) -> Store {
        Store::new(&self.0, name)
    }

    /// Simulates a server crash and restart: open transactions are lost, committed data stays.
    pub fn restart(&self) {
        let mut state = self.0.lock();
        let tokens: Vec<u64> = state.open_transactions.keys().copied().collect();
        for token in tokens {
            state.rollback(token);
        }
    }

    /// Makes all data older for retention and pruning. Leases, claims and retries do not change.
    pub fn age(&self, time: Duration) {
        let by = micros(time);
        let mut state = self.0.lock();
        for row in state.log.rows.values_mut() {
            row.inserted_at = row.inserted_at.saturating_sub(by);
        }
        for tick in state.log.ticks.values_mut() {
            tick.created_at = tick.created_at.saturating_sub(by);
        }
        for shard in state.destinations.values_mut().flat_map(|destination| &mut destination.shards) {
            for (time, _) in &mut shard.progress {
                *time = time.saturating_sub(by);
            }
        }
        for tables in state.consumers.values_mut() {
            tables.age(by);
        }
    }
}
