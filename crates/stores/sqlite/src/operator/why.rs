//! Explains why a key waits.

use relevo_core::outbox::inspect::{KeyReport, WaitCause};
use relevo_core::slot::{shard_of, slot_of};
use sqlx::sqlite::SqliteConnection;

use crate::classify::Error;
use crate::queries::status::Progress;
use crate::queries::status::key::{KeyWait, parked, scheduled, shards, unread};

/// Returns the first cause that holds: parked, unsettled, scheduled, idle.
pub(super) async fn why(connection: &mut SqliteConnection, destination: &str, key: &str) -> Result<KeyReport, Error> {
    let progress = Progress::load(connection, destination).await?;
    let shard = shard_of(slot_of(key), progress.shards);
    let mut shards = shards(connection, destination, progress.shards).await?;
    let shard = shards.swap_remove(shards.iter().position(|row| row.shard == shard).unwrap_or(0));
    let mut wait = parked(connection, destination, &progress, key).await?;
    if wait.is_none() {
        wait = unread(connection, destination, &progress, key, &shard).await?;
    }
    let KeyWait { mut cause, head, since, waiting } = match wait {
        Some(wait) => wait,
        None => scheduled(connection, key).await?,
    };
    if !progress.enabled && !matches!(cause, WaitCause::Idle | WaitCause::Scheduled { .. }) {
        cause = WaitCause::Disabled;
    }
    Ok(KeyReport { cause, head, waiting, since, shard })
}
