//! Samples for monitoring. Every statement costs the same whatever the file size is.

use std::time::Duration;

use async_trait::async_trait;
use relevo_core::outbox::sample::{ConsumerSample, DestinationSample, OutboxMonitor, OutboxSample};
use relevo_core::store::StoreError;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::classify::Error;
use crate::operator::verify::slots_of;
use crate::queries::status::Progress;
use crate::queries::{column, now, number};
use crate::store::Store;

/// Counting stops here.
const COUNT_MAX: i64 = 10_000;

#[async_trait]
impl OutboxMonitor for Store {
    async fn sample_destination(&self) -> Result<DestinationSample, StoreError> {
        self.with_timeout(self.sample()).await
    }

    async fn sample_outbox(&self) -> Result<OutboxSample, StoreError> {
        self.with_timeout(self.sample_outbox()).await
    }
}

impl Store {
    async fn sample(&self) -> Result<DestinationSample, Error> {
        let backlog = self.count_backlog().await?;
        let mut session = self.read_connection.acquire().await?;
        let unsettled = oldest_unsettled(&mut session, &self.destination).await?;
        let sql = concat!(
            "SELECT (SELECT count(*) FROM (SELECT 1 FROM relevo_parked_key WHERE destination = ?1 LIMIT ?2)), \
             (SELECT count(*) FROM (SELECT 1 FROM relevo_address_hold WHERE destination = ?1 LIMIT ?2)), \
             (SELECT created_at_ms FROM relevo_parked_message WHERE destination = ?1 ORDER BY seq LIMIT 1), \
             (SELECT retention_ms FROM relevo_settings), ",
            now!()
        );
        let row = sqlx::query(sql).bind(&self.destination).bind(COUNT_MAX).fetch_one(&mut *session).await?;
        session.release();
        let (retention, now): (i64, i64) = (column(&row, 3)?, column(&row, 4)?);
        let since = [unsettled, column(&row, 2)?].into_iter().flatten().min();
        Ok(DestinationSample {
            backlog,
            parked_keys: column(&row, 0)?,
            held_addresses: column(&row, 1)?,
            oldest_pending: since.map_or(Duration::ZERO, |since| millis(now - since)),
            holdback: retention_overdue(unsettled, retention, now),
        })
    }

    async fn sample_outbox(&self) -> Result<OutboxSample, Error> {
        let mut session = self.read_connection.acquire().await?;
        let consumers = consumers(&mut session).await?;
        let holdbacks = all_retention_overdue(&mut session).await?;
        session.release();
        Ok(OutboxSample { horizon: None, consumers, retention_overdue: holdbacks })
    }
}

/// Retention deletes messages one by one, so the first unsettled one holds back all others.
fn retention_overdue(unsettled: Option<i64>, retention: i64, now: i64) -> Duration {
    unsettled.map_or(Duration::ZERO, |since| millis(now - since - retention))
}

async fn all_retention_overdue(connection: &mut SqliteConnection) -> Result<Vec<(String, Duration)>, Error> {
    let sql = concat!(
        "SELECT d.name, s.retention_ms, ",
        now!(),
        " FROM relevo_destination AS d, relevo_settings AS s ORDER BY 1"
    );
    let mut holdbacks = Vec::new();
    for row in sqlx::query(sql).fetch_all(&mut *connection).await? {
        let (name, retention, now): (String, i64, i64) = (column(&row, 0)?, column(&row, 1)?, column(&row, 2)?);
        let unsettled = oldest_unsettled(connection, &name).await?;
        holdbacks.push((name, retention_overdue(unsettled, retention, now)));
    }
    Ok(holdbacks)
}

/// Returns the emit time of the oldest unsettled message of the log.
async fn oldest_unsettled(connection: &mut SqliteConnection, destination: &str) -> Result<Option<i64>, Error> {
    let progress = Progress::load(connection, destination).await?;
    let mut oldest: Option<i64> = None;
    for (upto, shards) in progress.groups() {
        let sql = "SELECT created_at_ms FROM relevo_message WHERE seq > ?1 \
                   AND (?2 IS NULL OR slot IN (SELECT value FROM json_each(?2))) ORDER BY seq LIMIT 1";
        let first = sqlx::query(sql).bind(upto).bind(slots_of(&progress, &shards));
        if let Some(row) = first.fetch_optional(&mut *connection).await? {
            let created: i64 = column(&row, 0)?;
            oldest = Some(oldest.map_or(created, |oldest| oldest.min(created)));
        }
    }
    Ok(oldest)
}

/// The breaker state of a dead member is ignored.
async fn consumers(connection: &mut SqliteConnection) -> Result<Vec<ConsumerSample>, Error> {
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
            heartbeat_age: column::<Option<i64>>(row, 2)?.map(millis),
            last_message_age: column::<Option<i64>>(row, 3)?.map(millis),
            waiting: number(row, 4)?,
            dead: number(row, 5)?,
            breakers: serde_json::from_str(breakers)
                .map_err(|_| Error::unexpected_response("breakers are not JSON"))?,
        })
    };
    rows.iter().map(consumer).collect()
}

/// A negative age, after the clock was set back, becomes zero.
fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
