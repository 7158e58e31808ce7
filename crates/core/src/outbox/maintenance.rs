//! Called by the relay: partitions, retention and pruning.

use async_trait::async_trait;

use crate::store::StoreError;

/// Maintenance of an outbox. Any relay may do it, but only one at a time.
#[async_trait]
pub trait Maintenance: Send + Sync {
    /// Creates partitions, deletes what retention allows, and prunes histories.
    async fn maintain(&self) -> Result<MaintenanceReport, StoreError>;
}

/// The result of maintenance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// Another relay was doing it, so this call did nothing.
    pub skipped: bool,
    /// Created partitions.
    pub prepared: u32,
    /// Emptied or dropped partitions.
    pub dropped: u32,
    /// Warnings for an operator, such as a destination that delays retention.
    pub warnings: Vec<String>,
}
