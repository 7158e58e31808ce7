//! Operator queries on an outbox. They are plain SELECTs, so a role with the relay's grants can run them. They need no
//! new schema version.

mod examine;
mod listing;
mod replay_source;
mod sample;
mod search;
mod show;
mod verify;
mod why;

use std::time::Duration;

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::finding::Finding;
use relevo_core::outbox::inspect::{Backlog, DestinationInfo, KeyReport, MessageDetails, OutboxInspector, ShardInfo};
use relevo_core::outbox::search::{MessageFilter, SearchPage, TimeRange, VerifyReport};
use relevo_core::store::StoreError;

use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::queries::{column, literal};
use crate::store::Store;

pub use self::replay_source::OutboxReplaySource;

#[async_trait]
impl OutboxInspector for Store {
    async fn destinations(&self) -> Result<Vec<DestinationInfo>, StoreError> {
        Ok(self.all_destinations().await?)
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        let sql = format!("SELECT * FROM {}.backlog({})", self.schema, literal(&self.destination));
        let rows = self.operator_connection.query(sql).await?;
        let row = rows.first().ok_or(Error::UnexpectedResponse("no backlog"))?;
        Ok(Backlog { pending: column(row, 0)?, exact: column(row, 1)?, parked: column(row, 2)?, dead: column(row, 3)? })
    }

    async fn search(&self, search: &MessageFilter, limit: usize, budget: Duration) -> Result<SearchPage, StoreError> {
        self.this_destination().await?;
        Ok(search::search(self, search, limit, budget).await?)
    }

    async fn message(&self, id: MessageId) -> Result<Option<MessageDetails>, StoreError> {
        self.this_destination().await?;
        Ok(show::show(self, id).await?)
    }

    async fn key_facts(&self, key: &str) -> Result<KeyReport, StoreError> {
        Ok(why::why(self, key).await?)
    }

    async fn shards(&self) -> Result<Vec<ShardInfo>, StoreError> {
        self.this_destination().await?;
        Ok(self.leased_shards().await?)
    }

    async fn verify(&self, range: TimeRange) -> Result<VerifyReport, StoreError> {
        self.this_destination().await?;
        Ok(verify::verify(self, range).await?)
    }

    async fn retention(&self) -> Result<Duration, StoreError> {
        let sql = format!("SELECT floor(date_part('epoch', retention))::bigint FROM {}.settings", self.schema);
        let rows = self.operator_connection.query(sql).await?;
        let seconds: i64 = column(rows.first().ok_or(Error::UnexpectedResponse("no settings"))?, 0)?;
        Ok(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(examine::examine(self).await?)
    }
}

impl Store {
    async fn all_destinations(&self) -> Result<Vec<DestinationInfo>, Error> {
        let sql = format!("SELECT name, shards, reshard_to, enabled FROM {}.destination ORDER BY name", self.schema);
        let rows = self.operator_connection.query(sql).await?;
        let shards = |number: i16| {
            u16::try_from(number).map_err(|_| Error::UnexpectedResponse("a number of shards is negative"))
        };
        let read = |row| {
            let regrouping_to: Option<i16> = column(row, 2)?;
            Ok(DestinationInfo {
                name: column(row, 0)?,
                shards: shards(column(row, 1)?)?,
                resharding_to: regrouping_to.map(shards).transpose()?,
                enabled: column(row, 3)?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Returns the destination of this store, or an error if it does not exist.
    async fn this_destination(&self) -> Result<DestinationInfo, Error> {
        let found = self.all_destinations().await?.into_iter().find(|it| it.name == self.destination);
        found.ok_or_else(|| Error::UnknownDestination(self.destination.clone()))
    }

    /// Lists the shards of this destination, with the names of their live relays.
    async fn leased_shards(&self) -> Result<Vec<ShardInfo>, Error> {
        let sql = format!(
            "SELECT l.shard, coalesce(m.name, l.owner::text), l.epoch, \
             greatest(0, floor(date_part('epoch', CASE WHEN isfinite(l.expires_at) THEN l.expires_at - clock_timestamp() END) \
                 * 1000))::bigint, \
             p.settled_at, (SELECT count(*) FROM {schema}.parked_key AS k \
                 WHERE k.destination = l.destination AND k.slot % d.shards = l.shard) \
             FROM {schema}.destination AS d JOIN {schema}.lease AS l ON l.destination = d.name \
             LEFT JOIN {schema}.relay AS m ON m.destination = l.destination AND m.owner = l.owner \
             LEFT JOIN LATERAL (SELECT q.settled_at FROM {schema}.progress AS q WHERE q.destination = d.name \
                 AND q.shards = d.shards AND q.shard = l.shard AND q.epoch > 0 ORDER BY q.progress_id DESC LIMIT 1) AS p ON true \
             WHERE d.name = {} ORDER BY l.shard",
            literal(&self.destination),
            schema = self.schema,
        );
        let mut rows = CopyRows::new(self.operator_connection.copy_out(sql).await?, 6)?;
        let mut shards = Vec::new();
        while let Some(mut row) = rows.next_row()? {
            shards.push(ShardInfo {
                shard: row.slot()?,
                owner: row.optional_string()?,
                epoch: row.int8()?,
                lease_remaining: Duration::from_millis(row.count()?),
                settled_at: row.optional_timestamp()?,
                parked_keys: row.count()?,
            });
        }
        Ok(shards)
    }
}
