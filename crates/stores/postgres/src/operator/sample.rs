//! Samples for monitoring. A relay takes them every few seconds.

use std::time::Duration;

use async_trait::async_trait;
use relevo_core::outbox::sample::{ConsumerSample, DestinationSample, OutboxMonitor, OutboxSample, VacuumHorizon};
use relevo_core::store::StoreError;

use crate::classify::Error;
use crate::literal::literal;
use crate::operator::Operator;
use crate::queries::status::{self, sample};

#[async_trait]
impl OutboxMonitor for Operator {
    async fn sample_destination(&self, destination: &str) -> Result<DestinationSample, StoreError> {
        let sql = sample::destination_sample_query(&self.schema, &literal(destination));
        let sample = sample::destination_sample(&self.connection.query(sql).await?)?;
        Ok(sample.ok_or_else(|| Error::UnknownDestination(destination.to_owned()))?)
    }

    async fn sample_outbox(&self) -> Result<OutboxSample, StoreError> {
        Ok(OutboxSample {
            horizon: Some(self.horizon().await?),
            consumers: self.consumers().await?,
            retention_overdue: self.retention_overdue().await?,
        })
    }
}

impl Operator {
    /// The statements that sampling sends, so that tests can check their cost.
    #[doc(hidden)]
    pub fn sampling_statements(&self, destination: &str) -> Vec<String> {
        let destination = literal(destination);
        vec![
            sample::destination_sample_query(&self.schema, &destination),
            sample::vacuum_horizon_query(),
            sample::consumer_samples_query(&self.schema),
            sample::retention_overdue_query(&self.schema, &destination),
        ]
    }

    async fn horizon(&self) -> Result<VacuumHorizon, Error> {
        sample::vacuum_horizon(&self.connection.query(sample::vacuum_horizon_query()).await?)
    }

    async fn retention_overdue(&self) -> Result<Vec<(String, Duration)>, Error> {
        let rows = self.connection.query(status::select_destinations(&self.schema, None)).await?;
        let mut overdue = Vec::new();
        for destination in status::destinations(&rows)? {
            let sql = sample::retention_overdue_query(&self.schema, &literal(&destination.name));
            let rows = self.connection.query(sql).await?;
            overdue.push((destination.name, sample::retention_overdue(&rows)?));
        }
        Ok(overdue)
    }

    async fn consumers(&self) -> Result<Vec<ConsumerSample>, Error> {
        let sql = sample::consumer_samples_query(&self.schema);
        sample::consumer_samples(self.connection.copy_out(sql).await?)
    }
}
