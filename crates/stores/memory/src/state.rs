//! All data of the outbox, behind one lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use relevo_core::MessageId;
use relevo_core::outbox::admin::OutboxSettings;
use relevo_core::store::StoreError;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::Config;
use crate::emit::{OpenTransaction, Scheduled};
use crate::inbox::tables::ConsumerTables;
use crate::leases::DestinationTables;
use crate::log::Log;
use relevo_core::random::SplitMix64;

/// Microseconds since the outbox was created. Times may be negative after `Database::age`.
pub(crate) type Micros = i64;

pub(crate) fn micros(time: Duration) -> Micros {
    Micros::try_from(time.as_micros()).unwrap_or(Micros::MAX)
}

/// Converts a time of the outbox's clock to a timestamp.
pub(crate) fn timestamp(started_at: Timestamp, time: Micros) -> Timestamp {
    started_at.saturating_add(SignedDuration::from_micros(time)).unwrap_or(started_at)
}

/// Converts a timestamp to a time of the outbox's clock.
pub(crate) fn micros_since(started_at: Timestamp, at: Timestamp) -> Micros {
    at.as_microsecond().saturating_sub(started_at.as_microsecond())
}

/// The data that a database would store in its tables.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) config: Config,
    /// The log keeps the ids that callers chose for as long as their messages, whatever `id_retention` is.
    pub(crate) settings: OutboxSettings,
    pub(crate) started: Instant,
    pub(crate) random: SplitMix64,
    pub(crate) log: Log,
    /// Open transactions by their token.
    pub(crate) open_transactions: BTreeMap<u64, OpenTransaction>,
    pub(crate) next_token: u64,
    /// Ids chosen by callers, as long as their messages are retained.
    pub(crate) ids: BTreeSet<MessageId>,
    /// Scheduled messages, by due time and emit order.
    pub(crate) scheduled: BTreeMap<(Micros, u64), Scheduled>,
    pub(crate) next_scheduled: u64,
    pub(crate) destinations: BTreeMap<String, DestinationTables>,
    /// The lines that applications committed.
    pub(crate) effects: Vec<String>,
    /// The inboxes, by consumer.
    pub(crate) consumers: BTreeMap<String, ConsumerTables>,
    /// Notified whenever a transaction has ended.
    pub(crate) transaction_ended: Arc<Notify>,
}

impl Tables {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            random: SplitMix64::new(config.seed),
            settings: OutboxSettings {
                retention: config.retention,
                id_retention: config.retention,
                dead_letter_retention: config.retention,
            },
            config,
            started: Instant::now(),
            log: Log::new(),
            open_transactions: BTreeMap::new(),
            next_token: 0,
            ids: BTreeSet::new(),
            scheduled: BTreeMap::new(),
            next_scheduled: 0,
            destinations: BTreeMap::new(),
            effects: Vec::new(),
            consumers: BTreeMap::new(),
            transaction_ended: Arc::default(),
        }
    }

    pub(crate) fn now(&self) -> Micros {
        micros(self.started.elapsed())
    }

    pub(crate) fn destination(&mut self, name: &str) -> Result<&mut DestinationTables, StoreError> {
        self.destinations.get_mut(name).ok_or_else(|| missing(name))
    }

    /// Borrows the log and one destination at once.
    pub(crate) fn split(&mut self, name: &str) -> Result<(&mut Log, &mut DestinationTables), StoreError> {
        let destination = self.destinations.get_mut(name).ok_or_else(|| missing(name))?;
        Ok((&mut self.log, destination))
    }
}

fn missing(name: &str) -> StoreError {
    StoreError::Refused { reason: format!("destination `{name}` does not exist") }
}
