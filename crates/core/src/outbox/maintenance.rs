//! Called by the relay: partitions, retention and pruning.

use std::time::Duration;

use async_trait::async_trait;

use crate::store::StoreError;

/// Maintenance of an outbox. Any relay may do it, but only one at a time.
#[async_trait]
pub trait Maintenance: Send + Sync {
    /// Creates partitions, deletes what retention allows, and prunes histories. It starts no further step after
    /// `budget`. It runs beside the other calls of a relay, and must not delay them.
    async fn maintain(&self, budget: Duration) -> Result<MaintenanceReport, StoreError>;
}

/// The result of maintenance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// Another process was doing it, or writing, so this call stopped.
    pub skipped: bool,
    /// Whether more can be deleted.
    pub more: bool,
    /// Partitions added ahead of new messages.
    pub partitions_created: u32,
    /// Old partitions whose messages were deleted.
    pub partitions_emptied: u32,
    /// Warnings for an operator, such as a destination that delays retention.
    pub warnings: Vec<String>,
}
