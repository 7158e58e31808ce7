//! The operator ports: destinations, search, checks.

use std::time::Duration;

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::operate::{
    Backlog, Destination, Finding, Found, Inspect, Operate, Range, Search, Shard, Shown, Start, Verified, Why,
};
use relevo_core::slot::SLOTS;
use relevo_core::store::StoreError;
use sqlx::sqlite::SqliteRow;

use crate::classify::Error;
use crate::leases;
use crate::link::Durability;
use crate::queries::{column, now, number};
use crate::store::Store;

impl Store {
    async fn add(&self, shards: u16, start: Start) -> Result<bool, Error> {
        check_shards(shards)?;
        let mut session = self.settling.begin(Durability::Power).await?;
        let sql = concat!(
            "INSERT OR IGNORE INTO relevo_destination (name, shards, added_at_ms) VALUES (?1, ?2, ",
            now!(),
            ")"
        );
        let insert = sqlx::query(sql).bind(&self.destination).bind(i64::from(shards)).execute(&mut *session).await?;
        let is_new = insert.rows_affected() > 0;
        if is_new {
            let at = match start {
                Start::Now => {
                    let newest = sqlx::query("SELECT coalesce(max(seq), 0) FROM relevo_message");
                    column(&newest.fetch_one(&mut *session).await?, 0)?
                }
                Start::Oldest => 0,
            };
            leases::add_shards(&mut session, &self.destination, i64::from(shards), 0, at).await?;
        }
        session.commit().await?;
        Ok(is_new)
    }

    async fn list_destinations(&self) -> Result<Vec<Destination>, Error> {
        let mut session = self.reading.take().await?;
        let sql = "SELECT name, shards, reshard_to, enabled FROM relevo_destination ORDER BY name";
        let rows = sqlx::query(sql).fetch_all(&mut *session).await?;
        session.give_back();
        let destination = |row: &SqliteRow| {
            let regrouping_to = match column::<Option<i64>>(row, 2)? {
                None => None,
                Some(_) => Some(number(row, 2)?),
            };
            Ok(Destination { name: column(row, 0)?, shards: number(row, 1)?, regrouping_to, on: column(row, 3)? })
        };
        rows.iter().map(destination).collect()
    }

    async fn kept_for(&self) -> Result<Duration, Error> {
        let mut session = self.reading.take().await?;
        let row = sqlx::query("SELECT retention_ms FROM relevo_settings").fetch_one(&mut *session).await?;
        session.give_back();
        Ok(Duration::from_millis(u64::try_from(column::<i64>(&row, 0)?).unwrap_or(0)))
    }

    /// Runs one statement on the destination. Returns whether the destination exists.
    async fn change(&self, sql: &'static str, value: i64) -> Result<bool, Error> {
        let mut session = self.settling.begin(Durability::Power).await?;
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
impl Operate for Store {
    async fn add_destination(&self, shards: u16, start: Start) -> Result<bool, StoreError> {
        self.call(self.add(shards, start)).await
    }

    async fn remove_destination(&self) -> Result<bool, StoreError> {
        self.call(self.change("DELETE FROM relevo_destination WHERE name = ?1 AND ?2 = 0", 0)).await
    }

    async fn switch(&self, on: bool) -> Result<bool, StoreError> {
        let sql = "UPDATE relevo_destination SET enabled = ?2 WHERE name = ?1";
        self.call(self.change(sql, i64::from(on))).await
    }

    async fn regroup(&self, shards: u16) -> Result<bool, StoreError> {
        let sql = "UPDATE relevo_destination SET reshard_to = ?2, reshard_seq = NULL WHERE name = ?1";
        self.call(async {
            check_shards(shards)?;
            self.change(sql, i64::from(shards)).await
        })
        .await
    }
}

#[async_trait]
impl Inspect for Store {
    async fn destinations(&self) -> Result<Vec<Destination>, StoreError> {
        self.call(self.list_destinations()).await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.call(self.count_backlog()).await
    }

    async fn search(&self, search: &Search, limit: usize, budget: Duration) -> Result<Found, StoreError> {
        self.call(self.find(search, limit, budget)).await
    }

    async fn show(&self, id: MessageId) -> Result<Option<Shown>, StoreError> {
        self.call(self.shown(id)).await
    }

    async fn why(&self, key: &str) -> Result<Why, StoreError> {
        self.call(self.reason(key)).await
    }

    async fn shards(&self) -> Result<Vec<Shard>, StoreError> {
        self.call(self.list_shards()).await
    }

    async fn verify(&self, range: Range) -> Result<Verified, StoreError> {
        self.call(self.compare(range)).await
    }

    async fn retention(&self) -> Result<Duration, StoreError> {
        self.call(self.kept_for()).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        self.call(self.look_over()).await
    }
}
