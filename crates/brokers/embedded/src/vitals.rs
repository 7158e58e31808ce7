//! What is sampled for those who watch.

use async_trait::async_trait;
use relevo_core::failure::Failure;
use relevo_core::sample::{BrokerVitals, SampleBroker};
use sqlx::Row as _;

use crate::broker::EmbeddedBroker;
use crate::classify::Error;

/// Dead letters of a group are counted no further.
const COUNT_MAX: i64 = 10_000;

impl EmbeddedBroker {
    async fn dead_counts(&self) -> Result<Vec<(String, u64)>, Error> {
        let rows = sqlx::query(
            "SELECT g.name, (SELECT count(*) FROM (SELECT 1 FROM broker_dead AS d WHERE d.group_id = g.id LIMIT ?1))
             FROM broker_group AS g ORDER BY g.name",
        )
        .bind(COUNT_MAX)
        .fetch_all(self.0.link.readers())
        .await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get::<i64, _>(1).unsigned_abs())).collect())
    }
}

#[async_trait]
impl SampleBroker for EmbeddedBroker {
    /// A group has one place for its dead letters, and its name.
    async fn vitals(&self) -> Result<BrokerVitals, Failure> {
        Ok(BrokerVitals { nodes: None, dead: self.dead_counts().await? })
    }
}
