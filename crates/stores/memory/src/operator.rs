//! The operator ports, and read access for tests and oracles.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::dead_letters::{
    DeadLetter, DeadLetterAdmin, DeadLetterFilter, DeadLetterOwner, DeadLetterPage, MarkReport, MarkRequest,
};
use relevo_core::inbox::ConsumerOperator;
use relevo_core::inbox::replays::ConsumerReplays;
use relevo_core::outbox::admin::{DestinationChange, OutboxAdmin, OutboxSettings, StartFrom};
use relevo_core::outbox::{LogEntry, Position};
use relevo_core::slot::SLOTS;
use relevo_core::store::StoreError;

use crate::database::Database;
use crate::inbox::lock_timeout::or_busy_error;
use crate::leases::{DestinationTables, ShardRow};
use crate::settle::ParkedState;
use crate::state::Tables;

/// Operator access to the outbox and to all inboxes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Operator(pub(crate) Arc<Mutex<Tables>>);

#[async_trait]
impl OutboxAdmin for Operator {
    async fn add_destination(&self, destination: &str, shards: u16, start: StartFrom) -> Result<bool, StoreError> {
        check_shards(shards)?;
        let mut tables = self.0.lock();
        if tables.destinations.contains_key(destination) {
            return Ok(false);
        }
        let now = tables.now();
        let tick = match start {
            StartFrom::Now => tables.log.tick(now),
            StartFrom::Oldest => 0,
        };
        let added = DestinationTables::new(shards, Position::at(tick), now);
        tables.destinations.insert(destination.to_owned(), added);
        Ok(true)
    }

    async fn update_destination(&self, destination: &str, change: DestinationChange) -> Result<bool, StoreError> {
        if let DestinationChange::Shards(shards) = change {
            check_shards(shards)?;
        }
        let mut tables = self.0.lock();
        let Some(tables) = tables.destinations.get_mut(destination) else { return Ok(false) };
        match change {
            DestinationChange::Enabled(enabled) => tables.enabled = enabled,
            DestinationChange::Shards(shards) => tables.request_resharding(shards),
        }
        Ok(true)
    }

    async fn remove_destination(&self, destination: &str) -> Result<bool, StoreError> {
        Ok(self.0.lock().destinations.remove(destination).is_some())
    }

    async fn settings(&self) -> Result<OutboxSettings, StoreError> {
        Ok(self.0.lock().settings)
    }

    async fn set_settings(&self, settings: &OutboxSettings) -> Result<(), StoreError> {
        self.0.lock().settings = *settings;
        Ok(())
    }
}

fn check_shards(shards: u16) -> Result<(), StoreError> {
    if (1..=SLOTS).contains(&shards) {
        return Ok(());
    }
    Err(StoreError::Refused { reason: format!("{shards} is not between 1 and {SLOTS}") })
}

#[async_trait]
impl DeadLetterAdmin for Operator {
    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DeadLetterPage, StoreError> {
        let mut tables = self.0.lock();
        let started_at = tables.config.started_at;
        match &filter.owner {
            DeadLetterOwner::Destination(name) => {
                let after = after.map(|after| after.parse().map_err(|_| invalid_cursor(after))).transpose()?;
                Ok(tables.destination(name)?.list_dead_letters(filter, after, limit, started_at))
            }
            DeadLetterOwner::Consumer(_) | DeadLetterOwner::AnyConsumer => {
                filter.check_for_consumer()?;
                tables.list_inbox_dead_letters(filter, after, limit)
            }
        }
    }

    async fn get_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let mut tables = self.0.lock();
        let started_at = tables.config.started_at;
        match &filter.owner {
            DeadLetterOwner::Destination(name) => {
                Ok(tables.destination(name)?.get_dead_letters(filter, limit, started_at))
            }
            DeadLetterOwner::Consumer(_) | DeadLetterOwner::AnyConsumer => {
                filter.check_for_consumer()?;
                Ok(tables.get_inbox_dead_letters(filter, limit))
            }
        }
    }

    async fn mark_dead_letters(&self, request: &MarkRequest) -> Result<MarkReport, StoreError> {
        request.check()?;
        if let DeadLetterOwner::Destination(name) = &request.filter.owner {
            let mut tables = self.0.lock();
            let (now, started_at) = (tables.now(), tables.config.started_at);
            return Ok(MarkReport::complete(tables.destination(name)?.mark(request, started_at, now)));
        }
        or_busy_error(&self.0, |tables| tables.mark_inbox_dead_letters(request)).await.map(MarkReport::complete)
    }
}

impl ConsumerOperator for Operator {
    fn as_replays(&self) -> Option<&dyn ConsumerReplays> {
        Some(self)
    }
}

pub(crate) fn invalid_cursor(cursor: &str) -> StoreError {
    StoreError::Refused { reason: format!("`{cursor}` is not a position in this list") }
}

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
        let mut state = self.tables().lock();
        let (filter, started_at) = (DeadLetterFilter::of_destination(destination), state.config.started_at);
        let tables = state.destination(destination).ok();
        tables.map(|tables| tables.get_dead_letters(&filter, usize::MAX, started_at)).unwrap_or_default()
    }

    /// The positions of a destination's shards.
    pub fn progress(&self, destination: &str) -> Vec<Position> {
        let state = self.tables().lock();
        let shards = state.destinations.get(destination).into_iter().flat_map(|tables| &tables.shards);
        shards.map(ShardRow::position).collect()
    }
}
