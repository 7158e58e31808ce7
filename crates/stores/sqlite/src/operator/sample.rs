//! Samples for monitoring.

use std::time::Duration;

use async_trait::async_trait;
use relevo_core::outbox::sample::{DestinationSample, OutboxMonitor, OutboxSample};
use relevo_core::store::StoreError;
use sqlx::sqlite::SqliteConnection;

use super::verify::backlog;
use crate::classify::Error;
use crate::operator::Operator;
use crate::queries::status::sample::{age, consumers, destination_counts, oldest_unsettled};
use crate::queries::{clock, destinations, millis, retention};

#[async_trait]
impl OutboxMonitor for Operator {
    async fn sample_destination(&self, destination: &str) -> Result<DestinationSample, StoreError> {
        self.inspect(async |c| sample_destination(c, destination).await).await
    }

    async fn sample_outbox(&self) -> Result<OutboxSample, StoreError> {
        self.inspect(async |c| sample_outbox(c).await).await
    }
}

async fn sample_destination(connection: &mut SqliteConnection, destination: &str) -> Result<DestinationSample, Error> {
    let backlog = backlog(connection, destination).await?;
    let unsettled = oldest_unsettled(connection, destination).await?;
    let counts = destination_counts(connection, destination).await?;
    let retention = retention::settings(connection).await?.retention;
    let now = clock(connection).await?;
    let oldest = [unsettled, counts.oldest_parked].into_iter().flatten().min();
    Ok(DestinationSample {
        backlog,
        parked_keys: counts.parked_keys,
        held_addresses: counts.held_addresses,
        oldest_pending: oldest.map_or(Duration::ZERO, |oldest| age(now - oldest)),
        holdback: retention_overdue(unsettled, retention, now),
    })
}

async fn sample_outbox(connection: &mut SqliteConnection) -> Result<OutboxSample, Error> {
    let consumers = consumers(connection).await?;
    let retention = retention::settings(connection).await?.retention;
    let now = clock(connection).await?;
    let mut overdue = Vec::new();
    for destination in destinations::list(connection).await? {
        let unsettled = oldest_unsettled(connection, &destination.name).await?;
        overdue.push((destination.name, retention_overdue(unsettled, retention, now)));
    }
    Ok(OutboxSample { horizon: None, consumers, retention_overdue: overdue })
}

/// Retention deletes messages one by one, so the first unsettled one delays all others.
fn retention_overdue(unsettled: Option<i64>, retention: Duration, now: i64) -> Duration {
    unsettled.map_or(Duration::ZERO, |created_at| age(now - created_at - millis(retention)))
}
