//! What groups rejected.

use relevo_core::Raw;
use sqlx::Row as _;

use crate::broker::EmbeddedBroker;
use crate::classify::Error;
use crate::group::Stored;
use crate::inspect::{Kept, kept};

/// A message that a group rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its number among the dead letters.
    pub id: i64,
    /// How often it was delivered.
    pub count: u32,
    /// Why it was rejected.
    pub reason: String,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// The message, bytes and all.
    pub message: Kept,
}

impl DeadLetter {
    /// What arrived, exactly.
    pub const fn raw(&self) -> &Raw {
        &self.message.raw
    }
}

/// Which dead letters of a group are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// Those with these numbers.
    Ids(Vec<i64>),
}

impl EmbeddedBroker {
    /// Dead letters of a group, oldest first.
    pub async fn dead(&self, group: &str, limit: usize) -> Result<Vec<DeadLetter>, Error> {
        let group = self.find(group).await?;
        let rows = sqlx::query(
            "SELECT d.id AS dead, d.count, d.reason, d.dead_at_ms AS dead_ms, m.* FROM broker_dead d
             JOIN broker_message m ON m.seq = d.seq WHERE d.group_id = ?1 ORDER BY d.id LIMIT ?2",
        )
        .bind(group.id)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(self.0.link.readers())
        .await?;
        let letter = |row: &sqlx::sqlite::SqliteRow| {
            Ok(DeadLetter {
                id: row.get("dead"),
                count: row.get("count"),
                reason: row.get("reason"),
                at_ms: row.get("dead_ms"),
                message: kept(row)?,
            })
        };
        rows.iter().map(letter).collect()
    }

    /// Delivers dead letters to their group again, their counts going on and their retries from zero; how many. In an ordered
    /// group they come after what has been delivered meanwhile.
    pub async fn requeue(&self, group: &str, which: &Which) -> Result<u64, Error> {
        self.bury_or_raise(group, which, Some(REQUEUE)).await
    }

    /// Deletes dead letters for ever; how many.
    pub async fn delete_dead(&self, group: &str, which: &Which) -> Result<u64, Error> {
        self.bury_or_raise(group, which, None).await
    }

    async fn bury_or_raise(&self, group: &str, which: &Which, first: Option<&'static str>) -> Result<u64, Error> {
        let group = self.find(group).await?;
        let ids = match which {
            Which::All => None,
            Which::Ids(ids) => Some(serde_json::json!(ids).to_string()),
        };
        let mut write = self.0.link.write().await?;
        if let Some(sql) = first {
            sqlx::query(sql).bind(group.id).bind(&ids).execute(write.sql()).await?;
        }
        let gone = sqlx::query(
            "DELETE FROM broker_dead WHERE group_id = ?1 AND (?2 IS NULL OR id IN (SELECT value FROM json_each(?2)))",
        )
        .bind(group.id)
        .bind(&ids)
        .execute(write.sql())
        .await?;
        write.commit().await?;
        self.0.wake.stir();
        Ok(gone.rows_affected())
    }

    pub(crate) async fn find(&self, group: &str) -> Result<Stored, Error> {
        Stored::find(self.0.link.readers(), group).await?.ok_or_else(|| Error::NoGroup(group.to_owned()))
    }
}

const REQUEUE: &str = "
INSERT INTO broker_pending (seq, group_id, lane, state, count, key)
SELECT d.seq, d.group_id, d.lane, 0, d.count, m.key FROM broker_dead d JOIN broker_message m ON m.seq = d.seq
WHERE d.group_id = ?1 AND (?2 IS NULL OR d.id IN (SELECT value FROM json_each(?2)))";
