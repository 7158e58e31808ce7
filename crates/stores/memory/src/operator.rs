//! Read access for tests and oracles.

use relevo_core::dead_letters::{DeadLetter, DeadLetterFilter};
use relevo_core::outbox::{LogEntry, Position};

use crate::database::Database;
use crate::leases::ShardRow;
use crate::settle::ParkedState;

/// The event that a parked key waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParkedStateView {
    /// The time of its next attempt.
    Retrying,
    /// This held address.
    Held(String),
    /// The time of its next attempt, when it is sent alone.
    Quarantined,
    /// An operator.
    Dead,
}

/// A parked key.
#[derive(Clone, Debug)]
pub struct ParkedKeyView {
    /// The key.
    pub key: String,
    /// The event that it waits for.
    pub state: ParkedStateView,
    /// Counted attempts of its first message.
    pub attempts: u32,
    /// The waiting messages, in order.
    pub queue: Vec<LogEntry>,
}

impl Database {
    /// Every message ever committed to the log, in commit order, including those deleted by retention.
    pub fn committed(&self) -> Vec<LogEntry> {
        self.tables().lock().log.history.clone()
    }

    /// The retained messages of the log, in sequence order.
    pub fn retained(&self) -> Vec<LogEntry> {
        let state = self.tables().lock();
        let rows = state.log.rows.values().filter(|row| state.log.is_committed(row));
        rows.map(|row| row.entry.clone()).collect()
    }

    /// The number of scheduled messages.
    pub fn scheduled(&self) -> usize {
        self.tables().lock().scheduled.len()
    }

    /// The parked keys of a destination, ordered by slot and key. Empty if the destination does not exist.
    pub fn parked(&self, destination: &str) -> Vec<ParkedKeyView> {
        let state = self.tables().lock();
        let parked = state.destinations.get(destination).into_iter().flat_map(|tables| &tables.parked);
        parked
            .map(|(key, header)| ParkedKeyView {
                key: key.name.to_string(),
                state: match &header.state {
                    ParkedState::Retry => ParkedStateView::Retrying,
                    ParkedState::Address(address) => ParkedStateView::Held(address.clone()),
                    ParkedState::Quarantine => ParkedStateView::Quarantined,
                    ParkedState::Dead(_) => ParkedStateView::Dead,
                },
                attempts: header.attempts,
                queue: header.queue.values().cloned().collect(),
            })
            .collect()
    }

    /// The dead letters of a destination in any state, the oldest message first.
    pub fn dead_letters(&self, destination: &str) -> Vec<DeadLetter> {
        let state = self.tables().lock();
        let tables = state.destinations.get(destination);
        tables
            .map(|tables| tables.dead_letters(&DeadLetterFilter::default(), usize::MAX, state.config.started_at))
            .unwrap_or_default()
    }

    /// The positions of a destination's shards.
    pub fn progress(&self, destination: &str) -> Vec<Position> {
        let state = self.tables().lock();
        let shards = state.destinations.get(destination).into_iter().flat_map(|tables| &tables.shards);
        shards.map(ShardRow::position).collect()
    }
}
