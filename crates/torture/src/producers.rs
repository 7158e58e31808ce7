//! Applications: they change keys and emit that they did, commit, roll back, or vanish.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use relevo_core::Draft;
use sqlx::{Connection as _, Row as _};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::database::{Database, KEYS, Link};
use relevo_core::random::SplitMix64;

/// One transaction in so many rolls back, and as many connections vanish in mid-transaction.
const ENDS: u32 = 10;
/// One transaction in so many takes its time before it ends.
const SLOW: u32 = 20;
/// How long a producer waits when the database is away.
const AWAY: Duration = Duration::from_millis(50);

const CHANGE: &str = "UPDATE torture_key SET changes = changes + $2 WHERE key = $1 RETURNING changes - $2";
const RECORD: &str = "INSERT INTO torture_change VALUES ($1, $2, $3, $4)";

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Commit,
    Rollback,
    /// The connection is dropped in the middle, as by a process that dies.
    Vanish,
}

/// What the producers did, as far as they know.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) committed: AtomicU64,
    pub(crate) rolled_back: AtomicU64,
    pub(crate) vanished: AtomicU64,
    /// The database was away, or answered nothing: it may have happened.
    pub(crate) unknown: AtomicU64,
    /// Messages that the slowest consumer had handled when it was last looked.
    pub(crate) handled: AtomicU64,
}

/// One application process's worth of writing.
pub(crate) struct Producer {
    pub(crate) name: String,
    pub(crate) database: Database,
    pub(crate) done: Arc<Done>,
    pub(crate) random: SplitMix64,
    /// The longest pause between two transactions.
    pub(crate) pause_ms: u32,
    /// How often one transaction changes its key at most.
    pub(crate) burst_max: u32,
    /// Nothing is written while consumers are so many messages behind, if there are any.
    pub(crate) ahead_max: Option<u64>,
}

impl Producer {
    /// Writes until it is told to stop. What goes wrong with the database goes wrong on purpose: it tries again.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<()> {
        let mut link = None;
        let mut number = 0_u64;
        while !stop.is_cancelled() {
            if self.is_ahead() {
                sleep(AWAY).await;
                continue;
            }
            let Some(open) = &mut link else {
                match self.database.connect().await {
                    Ok(open) => link = Some(open),
                    Err(_) => sleep(AWAY).await,
                }
                continue;
            };
            number += 1;
            let end = match self.random.below(ENDS * 3) {
                0..=2 => End::Rollback,
                3 => End::Vanish,
                _ => End::Commit,
            };
            let key = format!("key-{}", self.random.below(KEYS));
            let burst = 1 + self.random.below(self.burst_max);
            let tokens: Vec<_> = (0..burst).map(|change| format!("{}-{number}-{change}", self.name)).collect();
            let slow = self.random.one_in(SLOW).then(|| Duration::from_millis(self.random.below(40).into()));
            let changed = change(open, &key, &tokens, slow, end).await;
            let counter = match (&changed, end) {
                (Err(_), _) => &self.done.unknown,
                (Ok(()), End::Commit) => &self.done.committed,
                (Ok(()), End::Rollback) => &self.done.rolled_back,
                (Ok(()), End::Vanish) => &self.done.vanished,
            };
            counter.fetch_add(burst.into(), Ordering::Relaxed);
            if changed.is_err() || end == End::Vanish {
                link = None;
            }
            sleep(Duration::from_millis(self.random.below(self.pause_ms + 1).into())).await;
        }
        Ok(())
    }

    fn is_ahead(&self) -> bool {
        let [committed, handled] =
            [&self.done.committed, &self.done.handled].map(|count| count.load(Ordering::Relaxed));
        self.ahead_max.is_some_and(|most| committed > handled + most)
    }
}

/// One transaction: the key's row is locked by an earlier statement than the first that emits.
async fn change(link: &mut Link, key: &str, tokens: &[String], slow: Option<Duration>, end: End) -> Result<()> {
    let draft = |number: i64, token: &str| {
        let payload = serde_json::json!({ "change": number, "token": token }).to_string();
        Draft::bytes("torture", key, "Changed", payload, "application/json")
    };
    let count = i64::try_from(tokens.len())?;
    match link {
        Link::Postgres(connection) => {
            let mut tx = connection.begin().await?;
            let before: i64 = sqlx::query(CHANGE).bind(key).bind(count).fetch_one(&mut *tx).await?.try_get(0)?;
            for (number, token) in (before + 1..).zip(tokens) {
                let id = relevo_store_postgres::emit(&mut tx, draft(number, token)).await?.to_string();
                sqlx::query(RECORD).bind(key).bind(number).bind(token).bind(id).execute(&mut *tx).await?;
            }
            sleep(slow.unwrap_or_default()).await;
            match end {
                End::Commit => tx.commit().await.context("it may have committed")?,
                End::Rollback => tx.rollback().await?,
                End::Vanish => std::mem::forget(tx),
            }
        }
        Link::Sqlite(connection) => {
            let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
            let before: i64 = sqlx::query(CHANGE).bind(key).bind(count).fetch_one(&mut *tx).await?.try_get(0)?;
            for (number, token) in (before + 1..).zip(tokens) {
                let id = relevo_store_sqlite::emit(&mut tx, draft(number, token)).await?.to_string();
                sqlx::query(RECORD).bind(key).bind(number).bind(token).bind(id).execute(&mut *tx).await?;
            }
            sleep(slow.unwrap_or_default()).await;
            match end {
                End::Commit => tx.commit().await.context("it may have committed")?,
                End::Rollback => tx.rollback().await?,
                End::Vanish => std::mem::forget(tx),
            }
        }
    }
    Ok(())
}
