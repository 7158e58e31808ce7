//! Called by operators and at start-up: destinations and settings of an outbox.

use std::time::Duration;

use async_trait::async_trait;

use crate::store::StoreError;

crate::text_enum! {
    /// The position where a new destination starts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum StartFrom {
        /// Messages that commit from now on.
        Now = "now",
        /// The oldest retained message.
        Oldest = "oldest",
    }
}

crate::text_enum! {
    /// What a role of the database is used for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RoleKind {
        /// An application that emits messages, and cancels scheduled ones.
        Writer = "writer",
        /// A relay.
        Relay = "relay",
        /// A consumer with an inbox.
        Consumer = "consumer",
        /// An operator, who reads everything, redrives and discards dead letters, and controls consumers and replays.
        Operator = "operator",
    }
}

/// A change of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestinationChange {
    /// Enables or disables it. No relay runs for a disabled destination, and retention waits for it.
    Enabled(bool),
    /// Requests another number of shards. The relays do the resharding.
    Shards(u16),
}

/// What an outbox keeps, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxSettings {
    /// Settled messages.
    pub retention: Duration,
    /// Ids that callers chose, so that a repeat is detected.
    pub id_retention: Duration,
    /// Dead letters that were redriven or discarded.
    pub dead_letter_retention: Duration,
}

/// Operator commands for an outbox.
#[async_trait]
pub trait OutboxAdmin: Send + Sync {
    /// Adds a destination. Returns `false`, and changes nothing, if it exists.
    async fn add_destination(&self, destination: &str, shards: u16, start: StartFrom) -> Result<bool, StoreError>;

    /// Changes a destination. Returns whether it exists.
    async fn update_destination(&self, destination: &str, change: DestinationChange) -> Result<bool, StoreError>;

    /// Deletes a destination and everything that waits for it, so that it no longer delays retention. Returns whether
    /// it existed.
    async fn remove_destination(&self, destination: &str) -> Result<bool, StoreError>;

    /// Grants a role of the database the rights of its kind. Later migrations grant it their new functions too. Returns
    /// `false` if there is no such role.
    async fn grant(&self, _kind: RoleKind, _role: &str) -> Result<bool, StoreError> {
        Err(StoreError::Refused { reason: "this database has no roles".to_owned() })
    }

    /// The settings.
    async fn settings(&self) -> Result<OutboxSettings, StoreError>;

    /// Replaces the settings. Writes nothing if they are the same.
    async fn set_settings(&self, settings: &OutboxSettings) -> Result<(), StoreError>;
}

/// Operator commands for an outbox whose rows another database wrote: a restored dump, a copy or an upgraded cluster.
#[async_trait]
pub trait OutboxTakeover: Send + Sync {
    /// Adopts the outbox after an upgrade, or in a copy that must publish from now on.
    async fn adopt(&self) -> Result<(), StoreError>;

    /// Assigns transaction ids of this server to all rows after a restore from a dump. Returns the number of messages
    /// that will be published.
    async fn rebase(&self) -> Result<u64, StoreError>;
}
