//! Applications: they change keys and emit messages about it, then commit, roll back or disconnect.

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

/// One transaction in N rolls back, and one in N loses its connection before it ends.
const ENDS: u32 = 10;
/// One transaction in N waits before it ends.
const SLOW: u32 = 20;
/// The pause of a producer when the database is unreachable.
const RETRY_DELAY: Duration = Duration::from_millis(50);

const CHANGE: &str = "UPDATE torture_key SET changes = changes + $2 WHERE key = $1 RETURNING changes - $2";
const RECORD: &str = "INSERT INTO torture_change VALUES ($1, $2, $3, $4)";

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Commit,
    Rollback,
    /// The connection is dropped in the middle, as if the process died.
    Disconnect,
}

/// The results of the producers, as far as they know them.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) committed: AtomicU64,
    pub(crate) rolled_back: AtomicU64,
    pub(crate) disconnected: AtomicU64,
    /// The database was unreachable or did not respond: the transaction may have committed.
    pub(crate) unknown: AtomicU64,
    /// Number of messages that the slowest consumer had handled at the last check.
    pub(crate) handled: AtomicU64,
}

/// An application process that writes.
pub(crate) struct Producer {
    pub(crate) name: String,
    pub(crate) database: Database,
    pub(crate) done: Arc<Progress>,
    pub(crate) random: SplitMix64,
    /// Maximum pause between two transactions.
    pub(crate) pause_ms: u32,
    /// Maximum number of changes in one transaction.
    pub(crate) burst_max: u32,
    /// The producer pauses while consumers are this many messages behind. `None` without consumers.
    pub(crate) ahead_max: Option<u64>,
}

impl Producer {
    /// Writes until it is stopped. Database errors are injected on purpose, so it tries again.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<()> {
        let mut link = None;
        let mut number = 0_u64;
        while !stop.is_cancelled() {
            if self.is_ahead() {
                sleep(RETRY_DELAY).await;
                continue;
            }
            let Some(open) = &mut link else {
                match self.database.connect().await {
                    Ok(open) => link = Some(open),
                    Err(_) => sleep(RETRY_DELAY).await,
                }
                continue;
            };
            number += 1;
            let end = match self.random.below(ENDS * 3) {
                0..=2 => End::Rollback,
                3 => End::Disconnect,
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
                (Ok(()), End::Disconnect) => &self.done.disconnected,
            };
            counter.fetch_add(burst.into(), Ordering::Relaxed);
            if changed.is_err() || end == End::Disconnect {
                link = None;
            }
            sleep(Duration::from_millis(self.random.below(self.pause_ms + 1).into())).await;
        }
        Ok(())
    }

    fn is_ahead(&self) -> bool {
        let [committed, handled] =
            [&self.done.committed, &self.done.handled].map(|count| count.load(Ordering::Relaxed));
        self.ahead_max.is_some_and(|max| committed > handled + max)
    }
}

/// One transaction. The row of the key is locked by a statement before the first one that emits.
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
                End::Disconnect => std::mem::forget(tx),
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
                End::Disconnect => std::mem::forget(tx),
            }
        }
    }
    Ok(())
}
