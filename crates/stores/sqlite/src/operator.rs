//! The operator ports: destinations, search, checks, consumers, dead letters and replays of inboxes.

mod examine;
pub(crate) mod replay_source;
mod sample;
mod search;
mod verify;
mod why;

use std::time::Duration;

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::finding::Finding;
use relevo_core::inbox::operate::{
    ConsumerControl, ConsumerDetails, ConsumerSummary, DeadLetter, DeadLetterFilter, DeadLetterState, EnqueueOutcome,
    InboxRecord, MarkRequest, Operate, RemoveOutcome, Replay, ReplayBatch, ReplayPlan, Trace,
};
use relevo_core::outbox::admin::{OutboxAdmin, StartFrom};
use relevo_core::outbox::inspect::{Backlog, DestinationInfo, KeyReport, MessageDetails, OutboxInspector, ShardInfo};
use relevo_core::outbox::search::{MessageFilter, SearchPage, TimeRange, VerifyReport};
use relevo_core::slot::SLOTS;
use relevo_core::store::StoreError;
use sqlx::sqlite::SqliteRow;

use crate::classify::Error;
use crate::connection::Durability;
use crate::queries::inbox::{dead_letters, members, replays};
use crate::queries::{column, consumers, leases, now, number};
use crate::store::Store;

impl Store {
    async fn add(&self, shards: u16, start: StartFrom) -> Result<bool, Error> {
        check_shards(shards)?;
        let mut session = self.write_connection.begin(Durability::Full).await?;
        let sql = concat!(
            "INSERT OR IGNORE INTO relevo_destination (name, shards, added_at_ms) VALUES (?1, ?2, ",
            now!(),
            ")"
        );
        let insert = sqlx::query(sql).bind(&self.destination).bind(i64::from(shards)).execute(&mut *session).await?;
        let is_new = insert.rows_affected() > 0;
        if is_new {
            let at = match start {
                StartFrom::Now => {
                    let newest = sqlx::query("SELECT coalesce(max(seq), 0) FROM relevo_message");
                    column(&newest.fetch_one(&mut *session).await?, 0)?
                }
                StartFrom::Oldest => 0,
            };
            leases::add_shards(&mut session, &self.destination, i64::from(shards), 0, at).await?;
        }
        session.commit().await?;
        Ok(is_new)
    }

    async fn list_destinations(&self) -> Result<Vec<DestinationInfo>, Error> {
        let mut session = self.read_connection.acquire().await?;
        let sql = "SELECT name, shards, reshard_to, enabled FROM relevo_destination ORDER BY name";
        let rows = sqlx::query(sql).fetch_all(&mut *session).await?;
        session.release();
        let destination = |row: &SqliteRow| {
            let regrouping_to = match column::<Option<i64>>(row, 2)? {
                None => None,
                Some(_) => Some(number(row, 2)?),
            };
            Ok(DestinationInfo {
                name: column(row, 0)?,
                shards: number(row, 1)?,
                resharding_to: regrouping_to,
                enabled: column(row, 3)?,
            })
        };
        rows.iter().map(destination).collect()
    }

    async fn retention(&self) -> Result<Duration, Error> {
        let mut session = self.read_connection.acquire().await?;
        let row = sqlx::query("SELECT retention_ms FROM relevo_settings").fetch_one(&mut *session).await?;
        session.release();
        Ok(Duration::from_millis(u64::try_from(column::<i64>(&row, 0)?).unwrap_or(0)))
    }

    /// Runs one statement on the destination. Returns whether the destination exists.
    async fn update_destination(&self, sql: &'static str, value: i64) -> Result<bool, Error> {
        let mut session = self.write_connection.begin(Durability::Full).await?;
        let changed = sqlx::query(sql).bind(&self.destination).bind(value).execute(&mut *session).await?;
        session.commit().await?;
        Ok(changed.rows_affected() > 0)
    }
}

fn check_shards(shards: u16) -> Result<(), Error> {
    if (1..=SLOTS).contains(&shards) {
        Ok(())
    } else {
        Err(Error::Refused(format!("{shards} is not a number of shards from 1 to {SLOTS}")))
    }
}

#[async_trait]
impl OutboxAdmin for Store {
    async fn add_destination(&self, shards: u16, start: StartFrom) -> Result<bool, StoreError> {
        self.with_timeout(self.add(shards, start)).await
    }

    async fn remove_destination(&self) -> Result<bool, StoreError> {
        self.with_timeout(self.update_destination("DELETE FROM relevo_destination WHERE name = ?1 AND ?2 = 0", 0)).await
    }

    async fn switch(&self, on: bool) -> Result<bool, StoreError> {
        let sql = "UPDATE relevo_destination SET enabled = ?2 WHERE name = ?1";
        self.with_timeout(self.update_destination(sql, i64::from(on))).await
    }

    async fn regroup(&self, shards: u16) -> Result<bool, StoreError> {
        let sql = "UPDATE relevo_destination SET reshard_to = ?2, reshard_seq = NULL WHERE name = ?1";
        self.with_timeout(async {
            check_shards(shards)?;
            self.update_destination(sql, i64::from(shards)).await
        })
        .await
    }
}

#[async_trait]
impl OutboxInspector for Store {
    async fn destinations(&self) -> Result<Vec<DestinationInfo>, StoreError> {
        self.with_timeout(self.list_destinations()).await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.with_timeout(self.count_backlog()).await
    }

    async fn search(&self, search: &MessageFilter, limit: usize, budget: Duration) -> Result<SearchPage, StoreError> {
        self.with_timeout(self.search(search, limit, budget)).await
    }

    async fn message(&self, id: MessageId) -> Result<Option<MessageDetails>, StoreError> {
        self.with_timeout(self.show(id)).await
    }

    async fn key_facts(&self, key: &str) -> Result<KeyReport, StoreError> {
        self.with_timeout(self.why(key)).await
    }

    async fn shards(&self) -> Result<Vec<ShardInfo>, StoreError> {
        self.with_timeout(self.list_shards()).await
    }

    async fn verify(&self, range: TimeRange) -> Result<VerifyReport, StoreError> {
        self.with_timeout(self.verify(range)).await
    }

    async fn retention(&self) -> Result<Duration, StoreError> {
        self.with_timeout(self.retention()).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        self.with_timeout(self.examine()).await
    }
}

/// Reads the file. A read waits for no writer.
macro_rules! look {
    ($store:expr, $session:ident, $work:expr) => {
        $store
            .with_timeout(async {
                let mut $session = $store.read_connection.acquire().await?;
                let seen = $work.await?;
                $session.release();
                Ok(seen)
            })
            .await
    };
}

/// Changes the file in one transaction that survives a power failure.
macro_rules! change {
    ($store:expr, $session:ident, $work:expr) => {
        $store
            .with_timeout(async {
                let mut $session = $store.write_connection.begin(Durability::Full).await?;
                let done = $work.await?;
                $session.commit().await?;
                Ok(done)
            })
            .await
    };
}

impl Store {
    async fn mark_inbox_dead_letters(&self, fate: DeadLetterState, mark: &MarkRequest) -> Result<u64, StoreError> {
        if mark.dry_run {
            return look!(self, session, dead_letters::count_dead_letters(&mut session, &mark.filter));
        }
        change!(self, session, dead_letters::mark_dead_letters(&mut session, fate, mark))
    }
}

#[async_trait]
impl Operate for Store {
    async fn list_consumers(&self) -> Result<Vec<ConsumerSummary>, StoreError> {
        look!(self, session, consumers::consumers(&mut session, None))
    }

    async fn get_consumer(&self, name: &str, limit: usize) -> Result<Option<ConsumerDetails>, StoreError> {
        look!(self, session, consumers::consumer_details(&mut session, name, limit))
    }

    async fn set_control(
        &self,
        consumer: &str,
        lane: Option<&str>,
        order: ConsumerControl,
    ) -> Result<bool, StoreError> {
        change!(self, session, consumers::set_control(&mut session, consumer, lane, order))
    }

    async fn remove_consumer(&self, consumer: &str) -> Result<RemoveOutcome, StoreError> {
        change!(self, session, members::remove_consumer(&mut session, consumer))
    }

    async fn list_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        look!(self, session, dead_letters::list_dead_letters(&mut session, filter, limit))
    }

    async fn redrive(&self, mark: &MarkRequest) -> Result<u64, StoreError> {
        self.mark_inbox_dead_letters(DeadLetterState::Redriven, mark).await
    }

    async fn archive(&self, mark: &MarkRequest) -> Result<u64, StoreError> {
        self.mark_inbox_dead_letters(DeadLetterState::Discarded, mark).await
    }

    async fn trace(&self, id: MessageId) -> Result<Vec<Trace>, StoreError> {
        look!(self, session, consumers::traces(&mut session, id))
    }

    async fn find_message(&self, id: MessageId) -> Result<Vec<InboxRecord>, StoreError> {
        look!(self, session, consumers::find_message(&mut session, id))
    }

    async fn create_replay(&self, plan: &ReplayPlan) -> Result<u32, StoreError> {
        change!(self, session, replays::create(&mut session, plan))
    }

    async fn enqueue_replay(
        &self,
        consumer: &str,
        number: u32,
        portion: ReplayBatch<'_>,
    ) -> Result<EnqueueOutcome, StoreError> {
        change!(self, session, replays::enqueue(&mut session, consumer, number, portion))
    }

    async fn stop_replay(&self, consumer: &str, number: u32) -> Result<bool, StoreError> {
        change!(self, session, replays::stop(&mut session, consumer, number))
    }

    async fn resume_replay(&self, consumer: &str, number: u32, dead_more: u64) -> Result<bool, StoreError> {
        change!(self, session, replays::resume(&mut session, consumer, number, dead_more))
    }

    async fn list_replays(&self, consumer: &str) -> Result<Vec<Replay>, StoreError> {
        look!(self, session, replays::list(&mut session, consumer))
    }
}
