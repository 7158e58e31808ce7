//! The operator port of consumers: controls, dead letters and replays.

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::inbox::admin::{
    ConsumerControl, ConsumerDetails, ConsumerSummary, InboxRecord, Operate, RemoveOutcome,
};
use relevo_core::inbox::dead_letters::{DeadLetter, DeadLetterFilter, MarkRequest};
use relevo_core::inbox::replays::{EnqueueOutcome, Replay, ReplayBatch, ReplayPlan};
use relevo_core::store::StoreError;
use sqlx::postgres::PgRow;

use crate::classify::Error;
use crate::connection::read_committed;
use crate::queries::{consumers, count_u32, count_u64, json_response, scalar};
use crate::store::Store;

impl Store {
    async fn call_inbox(&self, sql: String) -> Result<Vec<PgRow>, Error> {
        self.operator_connection.query(read_committed(&sql)).await
    }
}

#[async_trait]
impl Operate for Store {
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

    async fn list_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let rows = self.call_inbox(consumers::list_dead_letters(&self.schema, filter, limit)).await?;
        Ok(rows.iter().map(consumers::dead_letter).collect::<Result<_, _>>()?)
    }

    async fn redrive(&self, mark: &MarkRequest) -> Result<u64, StoreError> {
        Ok(count_u64(scalar(&self.call_inbox(consumers::redrive(&self.schema, mark)).await?)?)?)
    }

    async fn archive(&self, mark: &MarkRequest) -> Result<u64, StoreError> {
        Ok(count_u64(scalar(&self.call_inbox(consumers::discard(&self.schema, mark)).await?)?)?)
    }

    async fn find_message(&self, id: MessageId) -> Result<Vec<InboxRecord>, StoreError> {
        let rows = self.call_inbox(consumers::find_message(&self.schema, id)).await?;
        Ok(rows.iter().map(|row| consumers::inbox_record(row, id)).collect::<Result<_, _>>()?)
    }

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
