//! The operator ports of consumers: controls and replays.

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::inbox::ConsumerOperator;
use relevo_core::inbox::admin::{
    ConsumerAdmin, ConsumerControl, ConsumerDetails, ConsumerSummary, InboxRecord, RemoveOutcome,
};
use relevo_core::inbox::replays::{ConsumerReplays, EnqueueOutcome, Replay, ReplayBatch, ReplayPlan};
use relevo_core::store::StoreError;
use sqlx::postgres::PgRow;

use crate::classify::Error;
use crate::connection::read_committed;
use crate::operator::Operator;
use crate::queries::{consumers, count_u32, json_response, scalar};

impl Operator {
    pub(super) async fn call_inbox(&self, sql: String) -> Result<Vec<PgRow>, Error> {
        self.connection.query(read_committed(&sql)).await
    }
}

#[async_trait]
impl ConsumerAdmin for Operator {
    async fn list_consumers(&self) -> Result<Vec<ConsumerSummary>, StoreError> {
        let rows = self.call_inbox(consumers::list_consumers(&self.schema, None)).await?;
        Ok(rows.iter().map(consumers::consumer_summary).collect::<Result<_, _>>()?)
    }

    async fn get_consumer(&self, name: &str, limit: usize) -> Result<Option<ConsumerDetails>, StoreError> {
        let rows = self.call_inbox(consumers::list_consumers(&self.schema, Some(name))).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let summary = consumers::consumer_summary(row)?;
        let answer = json_response(&self.call_inbox(consumers::get_consumer(&self.schema, name, limit)).await?)?;
        let details = consumers::consumer_details(summary, &answer);
        Ok(Some(details.ok_or(Error::UnexpectedResponse("a consumer is malformed"))?))
    }

    async fn set_control(
        &self,
        consumer: &str,
        lane: Option<&str>,
        control: ConsumerControl,
    ) -> Result<bool, StoreError> {
        Ok(scalar(&self.call_inbox(consumers::set_control(&self.schema, consumer, lane, control)).await?)?)
    }

    async fn remove_consumer(&self, consumer: &str) -> Result<RemoveOutcome, StoreError> {
        let rows = self.call_inbox(consumers::remove_consumer(&self.schema, consumer)).await?;
        Ok(consumers::remove_outcome(&rows)?)
    }

    async fn find_message(&self, id: MessageId) -> Result<Vec<InboxRecord>, StoreError> {
        let rows = self.call_inbox(consumers::find_message(&self.schema, id)).await?;
        Ok(rows.iter().map(|row| consumers::inbox_record(row, id)).collect::<Result<_, _>>()?)
    }
}

#[async_trait]
impl ConsumerReplays for Operator {
    async fn create_replay(&self, plan: &ReplayPlan) -> Result<u32, StoreError> {
        Ok(count_u32(scalar(&self.call_inbox(consumers::create_replay(&self.schema, plan)).await?)?)?)
    }

    async fn enqueue_replay(
        &self,
        consumer: &str,
        number: u32,
        batch: ReplayBatch<'_>,
    ) -> Result<EnqueueOutcome, StoreError> {
        let rows = self.call_inbox(consumers::enqueue_replay(&self.schema, consumer, number, &batch)).await?;
        Ok(consumers::enqueue_outcome(&rows)?)
    }

    async fn stop_replay(&self, consumer: &str, number: u32) -> Result<bool, StoreError> {
        Ok(scalar(&self.call_inbox(consumers::stop_replay(&self.schema, consumer, number)).await?)?)
    }

    async fn resume_replay(&self, consumer: &str, number: u32, more_dead_letters: u64) -> Result<bool, StoreError> {
        let sql = consumers::resume_replay(&self.schema, consumer, number, more_dead_letters);
        Ok(scalar(&self.call_inbox(sql).await?)?)
    }

    async fn list_replays(&self, consumer: &str) -> Result<Vec<Replay>, StoreError> {
        let rows = self.call_inbox(consumers::list_replays(&self.schema, consumer)).await?;
        Ok(rows.iter().map(|row| consumers::replay(row, consumer)).collect::<Result<_, _>>()?)
    }
}

impl ConsumerOperator for Operator {
    fn as_replays(&self) -> Option<&dyn ConsumerReplays> {
        Some(self)
    }
}
