//! Called by operators and at start-up: destinations of an outbox.

use async_trait::async_trait;

use crate::store::StoreError;

/// The position where a new destination starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartFrom {
    /// Messages that commit from now on.
    Now,
    /// The oldest retained message.
    Oldest,
}

/// Operator commands for an outbox, for one destination.
#[async_trait]
pub trait OutboxAdmin: Send + Sync {
    /// Adds the destination. Returns whether it is new.
    async fn add_destination(&self, shards: u16, start: StartFrom) -> Result<bool, StoreError>;

    /// Deletes the destination and everything that waits for it, so that it no longer delays retention. Returns whether
    /// it existed.
    async fn remove_destination(&self) -> Result<bool, StoreError>;

    /// Enables or disables the destination. Returns whether it exists.
    async fn switch(&self, on: bool) -> Result<bool, StoreError>;

    /// Requests another number of shards. The relays do the resharding. Returns whether the destination exists.
    async fn regroup(&self, shards: u16) -> Result<bool, StoreError>;
}
