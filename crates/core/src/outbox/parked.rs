//! Called by the relay: keys whose first message failed, with the messages that wait behind it.

use std::sync::Arc;

use async_trait::async_trait;
use bytestring::ByteString;

use crate::outbox::LogEntry;
use crate::outbox::leases::Lease;
use crate::outbox::log::PublishFailure;
use crate::store::StoreError;

/// Messages of a parked key that are due.
#[derive(Clone, Debug)]
pub struct ParkedBatch {
    /// The key.
    pub key: ByteString,
    /// Its slot.
    pub slot: u16,
    /// Counted attempts of the first message.
    pub attempts: u32,
    /// Whether the first message must be sent alone.
    pub quarantined: bool,
    /// The address to probe, if the key waits for a held address.
    pub probe_address: Option<String>,
    /// The first messages of the queue, in order.
    pub messages: Vec<QueuedEntry>,
}

/// A message of a parked key's queue.
#[derive(Clone, Debug)]
pub struct QueuedEntry {
    /// Its number in the queue.
    pub ordinal: i64,
    /// The message.
    pub entry: LogEntry,
}

/// The result of publishing a [`ParkedBatch`].
#[derive(Clone, Debug)]
pub struct ParkedSettlement {
    /// The lease of the key's shard.
    pub lease: Lease,
    /// The key.
    pub key: ByteString,
    /// Queue numbers of confirmed messages.
    pub delivered: Vec<i64>,
    /// The next message, by its queue number, and why it failed. `None` if nothing failed.
    pub failed: Option<(i64, PublishFailure)>,
    /// An address that accepts messages again. Every key that waits for it may continue.
    pub released_address: Option<Arc<str>>,
}

/// The effect of a [`ParkedSettlement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkedResult {
    /// The lease was lost. Nothing was changed.
    LeaseLost,
    /// The key's queue is empty. Its next messages are published directly from the log again.
    KeyFreed,
    /// More messages of the key wait.
    StillParked,
}

/// Parked keys, as the relay retries them.
#[async_trait]
pub trait ParkedReader: Send + Sync {
    /// Applies the marks of operators, then returns due batches: at most `keys` batches of at most `messages` messages
    /// each.
    ///
    /// It does not claim them: a batch stays due, and may be returned again, until its result is recorded.
    async fn read_parked(&self, leases: &[Lease], keys: usize, messages: usize)
    -> Result<Vec<ParkedBatch>, StoreError>;

    /// Records the results of batches. Returns one result per settlement, in order.
    async fn settle_parked(&self, settlements: Vec<ParkedSettlement>) -> Result<Vec<ParkedResult>, StoreError>;
}
