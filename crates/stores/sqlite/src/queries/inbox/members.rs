//! Members, their heartbeats and their lanes.

use std::collections::BTreeSet;

use relevo_core::broker_consumer::Lane;
use relevo_core::inbox::LaneLease;
use relevo_core::inbox::admin::RemoveOutcome;
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply};
use serde_json::Value;
use sqlx::Row as _;
use sqlx::sqlite::SqliteConnection;
use uuid::Uuid;

use crate::classify::Error;
use crate::queries::{clock, column, millis};

/// Records a member's heartbeat and state. Returns the controls that operators set.
pub(crate) async fn heartbeat(
    connection: &mut SqliteConnection,
    consumer: &str,
    heartbeat: &Heartbeat,
) -> Result<HeartbeatReply, Error> {
    let now = clock(connection).await?;
    let sql = "INSERT INTO relevo_inbox_consumer AS c (name) VALUES (?1) \
               ON CONFLICT (name) DO UPDATE SET removed_at_ms = NULL WHERE c.removed_at_ms IS NOT NULL";
    sqlx::query(sql).bind(consumer).execute(&mut *connection).await?;
    let sql = "SELECT expires_at_ms FROM relevo_inbox_member WHERE consumer = ?1 AND owner = ?2";
    let row = sqlx::query(sql).bind(consumer).bind(heartbeat.owner).fetch_optional(&mut *connection).await?;
    let expires_at: Option<i64> = row.map(|row| column(&row, 0)).transpose()?;
    let sql = "INSERT INTO relevo_inbox_member AS m (consumer, owner, name, expires_at_ms, beat_at_ms, \
               last_message_at_ms) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (consumer, owner) DO UPDATE SET name = excluded.name, \
               expires_at_ms = excluded.expires_at_ms, beat_at_ms = excluded.beat_at_ms, \
               last_message_at_ms = coalesce(excluded.last_message_at_ms, m.last_message_at_ms)";
    let upsert =
        sqlx::query(sql).bind(consumer).bind(heartbeat.owner).bind(&heartbeat.name).bind(now + millis(heartbeat.ttl));
    let last = heartbeat.last_message_at.map(jiff::Timestamp::as_millisecond);
    upsert.bind(now).bind(last).execute(&mut *connection).await?;
    record_lane_status(connection, consumer, heartbeat).await?;
    let mut reply = heartbeat_reply(connection, consumer).await?;
    // A member without a row that reports lanes had a heartbeat before, so its row was deleted.
    reply.expired = expires_at.map_or(!heartbeat.settled_offsets.is_empty(), |expires_at| expires_at <= now);
    Ok(reply)
}

/// Writes the settled offsets and breakers of the member's own lanes. A breaker that it does not report is closed.
async fn record_lane_status(
    connection: &mut SqliteConnection,
    consumer: &str,
    heartbeat: &Heartbeat,
) -> Result<(), Error> {
    let sql = "SELECT lane FROM relevo_inbox_lane WHERE consumer = ?1 AND owner = ?2";
    let rows = sqlx::query(sql).bind(consumer).bind(heartbeat.owner).fetch_all(&mut *connection).await?;
    for row in &rows {
        let lane: &str = column(row, 0)?;
        let offset =
            heartbeat.settled_offsets.iter().find(|(named, _)| named.name() == lane).and_then(|(_, offset)| *offset);
        let breaker = heartbeat.breakers.iter().find(|(named, _)| named.name() == lane).map(|(_, reason)| reason);
        let sql = "UPDATE relevo_inbox_lane SET settled_offset = coalesce(?3, settled_offset), breaker_reason = ?4 \
                   WHERE consumer = ?1 AND lane = ?2 \
                   AND (settled_offset IS NOT coalesce(?3, settled_offset) OR breaker_reason IS NOT ?4)";
        let update = sqlx::query(sql).bind(consumer).bind(lane).bind(offset.map(u64::cast_signed)).bind(breaker);
        update.execute(&mut *connection).await?;
    }
    Ok(())
}

async fn heartbeat_reply(connection: &mut SqliteConnection, consumer: &str) -> Result<HeartbeatReply, Error> {
    let select = sqlx::query("SELECT paused FROM relevo_inbox_consumer WHERE name = ?1").bind(consumer);
    let paused = column(&select.fetch_one(&mut *connection).await?, 0)?;
    let sql = "SELECT lane, paused, breaker_forced FROM relevo_inbox_lane \
               WHERE consumer = ?1 AND (paused OR breaker_forced IS NOT NULL) ORDER BY lane";
    let mut reply = HeartbeatReply { paused, ..HeartbeatReply::default() };
    for row in &sqlx::query(sql).bind(consumer).fetch_all(connection).await? {
        let lane = Lane::new(column::<&str>(row, 0)?);
        if column(row, 1)? {
            reply.paused_lanes.push(lane.clone());
        }
        if let Some(open) = column(row, 2)? {
            reply.breaker_overrides.push((lane, open));
        }
    }
    Ok(reply)
}

/// Acquires lanes for a live member: its own, free ones, and those of dead owners. No handler's transaction is open at
/// the same time.
pub(crate) async fn acquire_lanes(
    connection: &mut SqliteConnection,
    consumer: &str,
    owner: Uuid,
    lanes: &[Lane],
) -> Result<Vec<LaneLease>, Error> {
    let now = clock(connection).await?;
    let sql = "SELECT 1 FROM relevo_inbox_member WHERE consumer = ?1 AND owner = ?2 AND expires_at_ms > ?3";
    let alive = sqlx::query(sql).bind(consumer).bind(owner).bind(now).fetch_optional(&mut *connection).await?;
    if alive.is_none() {
        return Ok(Vec::new());
    }
    let mut taken = Vec::new();
    for lane in lanes.iter().collect::<BTreeSet<_>>() {
        let sql = "INSERT INTO relevo_inbox_lane AS l (consumer, lane, epoch, owner) VALUES (?1, ?2, 1, ?3) \
                   ON CONFLICT (consumer, lane) DO UPDATE SET epoch = l.epoch + 1, owner = ?3, breaker_reason = NULL \
                   WHERE l.owner IS NOT ?3 AND NOT EXISTS (SELECT 1 FROM relevo_inbox_member AS m \
                   WHERE m.consumer = ?1 AND m.owner = l.owner AND m.expires_at_ms > ?4)";
        let upsert = sqlx::query(sql).bind(consumer).bind(lane.name()).bind(owner).bind(now);
        upsert.execute(&mut *connection).await?;
        let sql = "SELECT epoch FROM relevo_inbox_lane WHERE consumer = ?1 AND lane = ?2 AND owner = ?3";
        let select = sqlx::query(sql).bind(consumer).bind(lane.name()).bind(owner);
        if let Some(row) = select.fetch_optional(&mut *connection).await? {
            taken.push(LaneLease { lane: lane.clone(), epoch: row.try_get(0)?, owner });
        }
    }
    Ok(taken)
}

/// Releases lanes of a member, or all of them if none are named.
pub(crate) async fn release_lanes(
    connection: &mut SqliteConnection,
    consumer: &str,
    owner: Uuid,
    lanes: Option<&[Lane]>,
) -> Result<(), Error> {
    let names = lanes.map(|lanes| lanes.iter().map(Lane::name).collect::<Value>().to_string());
    let sql = "UPDATE relevo_inbox_lane SET owner = NULL, breaker_reason = NULL WHERE consumer = ?1 AND owner = ?2 \
               AND (?3 IS NULL OR lane IN (SELECT value FROM json_each(?3)))";
    sqlx::query(sql).bind(consumer).bind(owner).bind(names).execute(connection).await?;
    Ok(())
}

/// Releases the lanes of a member and removes it.
pub(crate) async fn leave(connection: &mut SqliteConnection, consumer: &str, owner: Uuid) -> Result<(), Error> {
    release_lanes(connection, consumer, owner, None).await?;
    let delete = sqlx::query("DELETE FROM relevo_inbox_member WHERE consumer = ?1 AND owner = ?2");
    delete.bind(consumer).bind(owner).execute(connection).await?;
    Ok(())
}

/// Removes a consumer without live members. No handler's transaction is open at the same time.
pub(crate) async fn remove_consumer(connection: &mut SqliteConnection, consumer: &str) -> Result<RemoveOutcome, Error> {
    let known = sqlx::query("SELECT 1 FROM relevo_inbox_consumer_name WHERE name = ?1").bind(consumer);
    if known.fetch_optional(&mut *connection).await?.is_none() {
        return Ok(RemoveOutcome::Unknown);
    }
    let now = clock(connection).await?;
    let alive = sqlx::query("SELECT 1 FROM relevo_inbox_member WHERE consumer = ?1 AND expires_at_ms > ?2");
    if alive.bind(consumer).bind(now).fetch_optional(&mut *connection).await?.is_some() {
        return Ok(RemoveOutcome::MembersAlive);
    }
    let lanes = sqlx::query("DELETE FROM relevo_inbox_lane WHERE consumer = ?1");
    lanes.bind(consumer).execute(&mut *connection).await?;
    let members = sqlx::query("DELETE FROM relevo_inbox_member WHERE consumer = ?1");
    members.bind(consumer).execute(&mut *connection).await?;
    let sql = "INSERT INTO relevo_inbox_consumer (name, removed_at_ms) VALUES (?1, ?2) \
               ON CONFLICT (name) DO UPDATE SET paused = 0, removed_at_ms = excluded.removed_at_ms";
    sqlx::query(sql).bind(consumer).bind(now).execute(connection).await?;
    Ok(RemoveOutcome::Removed)
}
