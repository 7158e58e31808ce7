//! What people ask of an outbox and tell it.

use async_trait::async_trait;
use relevo_core::operate::{Operate, Start};
use relevo_core::slot::SLOTS;
use relevo_core::store::StoreError;

use crate::classify::Error;
use crate::leases;
use crate::link::Durability;
use crate::queries::{column, now};
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

    /// One statement about the destination; says whether it was there.
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
        let sql = "UPDATE relevo_destination SET regroup_to = ?2, regroup_at = NULL WHERE name = ?1";
        self.call(async {
            check_shards(shards)?;
            self.change(sql, i64::from(shards)).await
        })
        .await
    }
}
