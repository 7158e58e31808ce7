//! Statements of the samples for monitoring. Every statement costs the same whatever the file size is.

use std::time::Duration;

use relevo_core::outbox::sample::ConsumerSample;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::Progress;
use crate::classify::Error;
use crate::queries::{COUNT_MAX, column, now, number};

/// Numbers of a destination. Counts stop at [`COUNT_MAX`].
pub(crate) struct DestinationCounts {
    pub(crate) parked_keys: i64,
    pub(crate) held_addresses: i64,
    /// The emit time of the oldest parked message.
    pub(crate) oldest_parked: Option<i64>,
}

pub(crate) async fn destination_counts(
    connection: &mut SqliteConnection,
    destination: &str,
) -> Result<DestinationCounts, Error> {
    let sql = "SELECT (SELECT count(*) FROM (SELECT 1 FROM relevo_parked_key WHERE destination = ?1 LIMIT ?2)), \
               (SELECT count(*) FROM (SELECT 1 FROM relevo_address_hold WHERE destination = ?1 LIMIT ?2)), \
               (SELECT created_at_ms FROM relevo_parked_message WHERE destination = ?1 ORDER BY seq LIMIT 1)";
    let row = sqlx::query(sql).bind(destination).bind(COUNT_MAX).fetch_one(connection).await?;
    Ok(DestinationCounts {
        parked_keys: column(&row, 0)?,
        held_addresses: column(&row, 1)?,
        oldest_parked: column(&row, 2)?,
    })
}

/// Returns the emit time of the oldest unsettled message of the log.
pub(crate) async fn oldest_unsettled(
    connection: &mut SqliteConnection,
    destination: &str,
) -> Result<Option<i64>, Error> {
    let progress = Progress::load(connection, destination).await?;
    let mut oldest: Option<i64> = None;
    for (settled_seq, shards) in progress.groups() {
        let sql = "SELECT created_at_ms FROM relevo_message WHERE seq > ?1 \
                   AND (?2 IS NULL OR slot IN (SELECT value FROM json_each(?2))) ORDER BY seq LIMIT 1";
        let first = sqlx::query(sql).bind(settled_seq).bind(progress.slots(&shards));
        if let Some(row) = first.fetch_optional(&mut *connection).await? {
            let created: i64 = column(&row, 0)?;
            oldest = Some(oldest.map_or(created, |oldest| oldest.min(created)));
        }
    }
    Ok(oldest)
}

/// Samples all consumers. The breaker state of a dead member is ignored.
pub(crate) async fn consumers(connection: &mut SqliteConnection) -> Result<Vec<ConsumerSample>, Error> {
    let sql = concat!(
        "WITH clock (now) AS (SELECT ",
        now!(),
        ") SELECT n.name, \
             (SELECT count(*) FROM relevo_inbox_member AS m WHERE m.consumer = n.name AND m.expires_at_ms > c.now), \
             c.now - (SELECT max(m.beat_at_ms) FROM relevo_inbox_member AS m WHERE m.consumer = n.name), \
             c.now - (SELECT max(m.last_message_at_ms) FROM relevo_inbox_member AS m WHERE m.consumer = n.name), \
             (SELECT count(*) FROM (SELECT 1 FROM relevo_inbox_retry_message AS w WHERE w.consumer = n.name LIMIT ?1)), \
             (SELECT count(*) FROM ( \
                 SELECT 1 FROM relevo_inbox_dead_letter AS d WHERE d.consumer = n.name AND d.state = 'dead' \
                 LIMIT ?1)), \
             (SELECT json_group_array(json_array(l.lane, json(iif(l.breaker_reason IS NULL, 'false', 'true')))) FROM ( \
                 SELECT k.lane, iif(EXISTS (SELECT 1 FROM relevo_inbox_member AS m WHERE m.consumer = k.consumer \
                     AND m.owner = k.owner AND m.expires_at_ms > c.now), k.breaker_reason, NULL) AS breaker_reason \
                 FROM relevo_inbox_lane AS k WHERE k.consumer = n.name ORDER BY k.lane) AS l) \
         FROM relevo_inbox_consumer_name AS n CROSS JOIN clock AS c ORDER BY n.name"
    );
    let rows = sqlx::query(sql).bind(COUNT_MAX).fetch_all(connection).await?;
    let consumer = |row: &SqliteRow| {
        let breakers: &str = column(row, 6)?;
        Ok(ConsumerSample {
            name: column(row, 0)?,
            members: number(row, 1)?,
            heartbeat_age: column::<Option<i64>>(row, 2)?.map(age),
            last_message_age: column::<Option<i64>>(row, 3)?.map(age),
            waiting: number(row, 4)?,
            dead: number(row, 5)?,
            breakers: serde_json::from_str(breakers)
                .map_err(|_| Error::unexpected_response("breakers are not JSON"))?,
        })
    };
    rows.iter().map(consumer).collect()
}

/// A negative age, after the clock was set back, becomes zero.
pub(crate) fn age(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
