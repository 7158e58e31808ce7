//! Gathers the facts that explain why a key waits.

use relevo_core::outbox::why::KeyFacts;
use relevo_core::slot::{shard_of, slot_of};
use sqlx::sqlite::SqliteConnection;

use crate::classify::Error;
use crate::queries::status::Progress;
use crate::queries::status::key;

pub(super) async fn key_facts(
    connection: &mut SqliteConnection,
    destination: &str,
    name: &str,
) -> Result<KeyFacts, Error> {
    let progress = Progress::load(connection, destination).await?;
    let shard = shard_of(slot_of(name), progress.shards);
    let mut shards = key::shards(connection, destination, progress.shards).await?;
    let shard = shards.swap_remove(shards.iter().position(|row| row.shard == shard).unwrap_or(0));
    let parked = key::parked(connection, destination, &progress, name).await?;
    let unapplied_mark = key::marked_dead_letter(connection, destination, &progress, name).await?;
    let (mut unread, mut scheduled) = (None, None);
    if parked.is_none() {
        unread = key::unread(connection, destination, &progress, name).await?;
        scheduled = key::scheduled(connection, name).await?;
    }
    Ok(KeyFacts { enabled: progress.enabled, shard, parked, unapplied_mark, unread, scheduled })
}
