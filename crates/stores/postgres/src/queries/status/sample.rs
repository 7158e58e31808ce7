//! The statements of monitoring. Each costs the same whatever the table sizes are, and stale statistics cannot mislead
//! the planner, as for reading pages.

use std::time::Duration;

use bytes::Bytes;
use relevo_core::outbox::inspect::Backlog;
use relevo_core::outbox::sample::{ConsumerSample, DestinationSample, VacuumHorizon};
use sqlx::postgres::PgRow;

use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::queries::{column, scalar};

/// Counting stops here.
const COUNT_MAX: u32 = 10_000;

/// The age in transactions of the oldest one that a session of `pg_stat_activity` holds back, or null if it holds none
/// back. A snapshot holds back rows of its own database. A standby's snapshot has no database and holds back rows of
/// all. A transaction that has written holds back the snapshots of every database. Between two statements it has no
/// snapshot itself.
pub(crate) const XMIN_AGE: &str = "greatest(age(backend_xid), \
     CASE WHEN datname IS NULL OR datname = current_database() THEN age(backend_xmin) END)::bigint";

/// A vacuum's snapshot holds nothing back, so it is excluded. A slot has no start time, but its transactions count.
pub(crate) fn vacuum_horizon_query() -> String {
    format!(
        "SELECT coalesce(max(transactions), 0), \
         floor(date_part('epoch', clock_timestamp() - min(since)) * 1000)::bigint FROM ( \
         SELECT {XMIN_AGE} AS transactions, xact_start AS since FROM pg_stat_activity \
         WHERE {XMIN_AGE} IS NOT NULL AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker' \
         UNION ALL SELECT age(transaction)::bigint, prepared FROM pg_prepared_xacts \
         UNION ALL SELECT coalesce(age(xmin), age(catalog_xmin))::bigint, NULL FROM pg_replication_slots) AS holder"
    )
}

/// Milliseconds since a time, or null.
fn millis_since(time: &str) -> String {
    format!("floor(date_part('epoch', clock_timestamp() - {time}) * 1000)::bigint")
}

/// Selects unsettled messages of each group of shards at the same position: those above it by sequence number, and
/// those of late transactions below it. Settled messages are skipped by index.
fn unsettled(schema: &str, columns: &str, limit: u32) -> String {
    let wanted = "m.slot % d.shards = ANY (g.shards) AND NOT pg_visible_in_snapshot(m.xid, g.f)";
    format!(
        "FROM g CROSS JOIN d CROSS JOIN LATERAL ( \
             (SELECT {columns} FROM {schema}.message AS m WHERE m.seq > g.start \
                 AND CASE WHEN {wanted} THEN true END ORDER BY m.seq LIMIT {limit}) \
             UNION ALL \
             (SELECT {columns} FROM unnest(g.late_xids) AS x CROSS JOIN LATERAL ( \
                 SELECT * FROM {schema}.message AS m WHERE (m.xid, m.seq) > (x, 0) AND (m.xid, m.seq) <= (x, g.start) \
                 AND CASE WHEN {wanted} AND NOT (m.seq <= g.settled_seq AND pg_visible_in_snapshot(m.xid, g.t)) THEN true END \
                 ORDER BY m.xid, m.seq LIMIT {limit}) AS m LIMIT {limit})) AS m"
    )
}

/// The position of a destination, its oldest unsettled message, and the end of retention of the oldest full partition.
fn destination_position(schema: &str, destination: &str) -> String {
    format!(
        "d AS (SELECT shards FROM {schema}.destination WHERE name = {destination}), \
         g AS MATERIALIZED ( \
             SELECT array_agg(s.shard) AS shards, s.settled_seq, f.snapshot AS f, t.snapshot AS t, \
                 greatest(f.max_seq, s.settled_seq) AS start, ARRAY(SELECT DISTINCT unnest(f.late_xids || t.late_xids)) AS late_xids \
             FROM {schema}.shard_positions({destination}) AS s \
             JOIN {schema}.tick AS f ON f.tick = s.from_tick JOIN {schema}.tick AS t ON t.tick = s.to_tick \
             GROUP BY s.settled_seq, f.tick, t.tick), \
         oldest AS (SELECT min(m.seq) AS seq, min(m.created_at) AS at {oldest}), \
         kept AS (SELECT newest.created_at + s.retention AS until, p.end_seq FROM {schema}.settings AS s \
             CROSS JOIN (SELECT p.first_seq, p.end_seq FROM {schema}.message_partition AS p WHERE p.emptied_at IS NULL \
                 AND p.end_seq <= (SELECT t.max_seq FROM {schema}.tick AS t ORDER BY t.tick DESC LIMIT 1) \
                 ORDER BY p.first_seq LIMIT 1) AS p \
             CROSS JOIN LATERAL (SELECT m.created_at FROM {schema}.message AS m \
                 WHERE m.seq >= p.first_seq AND m.seq < p.end_seq ORDER BY m.seq DESC LIMIT 1) AS newest)",
        oldest = unsettled(schema, "m.seq, m.created_at", 1),
    )
}

/// How long a destination [has retained](destination_position) the oldest full partition past its retention.
fn overdue_millis() -> String {
    let since = millis_since("kept.until");
    format!("coalesce((SELECT {since} FROM kept CROSS JOIN oldest WHERE oldest.seq < kept.end_seq), 0)")
}

pub(crate) fn retention_overdue_query(schema: &str, destination: &str) -> String {
    format!("WITH {} SELECT {}", destination_position(schema, destination), overdue_millis())
}

pub(crate) fn destination_sample_query(schema: &str, destination: &str) -> String {
    let counted =
        |from: &str| format!("(SELECT count(*) FROM (SELECT 1 FROM {schema}.{from} LIMIT {COUNT_MAX}) AS counted)");
    let past = COUNT_MAX + 1;
    format!(
        "WITH {destination_position}, \
         pending AS (SELECT count(*) AS n FROM (SELECT 1 {counting} LIMIT {past}) AS counted), \
         waits AS (SELECT least(o.at, (SELECT p.created_at FROM {schema}.parked_message AS p \
             WHERE p.destination = {destination} ORDER BY p.seq LIMIT 1)) AS since FROM oldest AS o) \
         SELECT CASE WHEN pending.n <= {COUNT_MAX} THEN pending.n ELSE greatest({past}, ( \
                 SELECT b.pending FROM {schema}.backlog({destination}, 0) AS b)) END, \
             pending.n <= {COUNT_MAX}, {parked}, {dead}, {keys}, {held}, coalesce({age}, 0), \
             {overdue_millis} \
         FROM d CROSS JOIN pending CROSS JOIN waits",
        destination_position = destination_position(schema, destination),
        overdue_millis = overdue_millis(),
        counting = unsettled(schema, "m.seq", past),
        parked = counted(&format!("parked_message WHERE destination = {destination} ORDER BY seq")),
        dead = counted(&format!("dead_letter WHERE destination = {destination} AND state = 'dead' ORDER BY seq")),
        keys = counted(&format!("parked_key WHERE destination = {destination} ORDER BY key")),
        held = counted(&format!("address_hold WHERE destination = {destination} ORDER BY address")),
        age = millis_since("waits.since"),
    )
}

/// Consumers that only have inbox rows are found by stepping from name to name. The breaker state of a dead member is
/// ignored. The last column is true for a removed consumer that has handled nothing since.
pub(crate) fn consumer_samples_query(schema: &str) -> String {
    format!(
        "WITH RECURSIVE step (n) AS ( \
             (SELECT i.consumer FROM {schema}.inbox AS i ORDER BY i.consumer LIMIT 1) \
             UNION ALL \
             SELECT (SELECT i.consumer FROM {schema}.inbox AS i WHERE i.consumer > step.n ORDER BY i.consumer LIMIT 1) \
             FROM step WHERE step.n IS NOT NULL \
         ), name AS (SELECT n FROM step WHERE n IS NOT NULL UNION SELECT c.name FROM {schema}.inbox_consumer AS c) \
         SELECT n, m.members, {beat}, {last}, \
             (SELECT count(*) FROM (SELECT 1 FROM {schema}.inbox_retry_message AS w WHERE w.consumer = n \
                 ORDER BY w.queue, w.ordinal LIMIT {COUNT_MAX}) AS w), \
             (SELECT count(*) FROM (SELECT 1 FROM {schema}.inbox_dead_letter AS d WHERE d.consumer = n AND d.state = 'dead' \
                 ORDER BY d.ordinal LIMIT {COUNT_MAX}) AS d), \
             coalesce((SELECT jsonb_agg(jsonb_build_array(k.lane, k.breaker_reason IS NOT NULL AND EXISTS ( \
                     SELECT 1 FROM {schema}.inbox_lane AS l JOIN {schema}.inbox_member AS o USING (consumer, owner) \
                     WHERE l.consumer = n AND l.lane = k.lane AND o.expires_at >= clock_timestamp())) ORDER BY k.lane) \
                 FROM {schema}.inbox_lane_status AS k WHERE k.consumer = n), '[]')::text, \
             coalesce(h.removed_at >= coalesce(( \
                 SELECT i.entered_at FROM {schema}.inbox AS i WHERE i.consumer = n AND i.entered_at < 'infinity' \
                 ORDER BY i.entered_at DESC LIMIT 1), '-infinity'), false) \
         FROM name LEFT JOIN {schema}.inbox_consumer AS h ON h.name = n CROSS JOIN LATERAL ( \
             SELECT count(*) FILTER (WHERE m.expires_at >= clock_timestamp()) AS members, max(m.beat_at) AS beat_at, \
                 max(m.last_message_at) AS last_message_at \
             FROM {schema}.inbox_member AS m WHERE m.consumer = n) AS m ORDER BY n",
        beat = millis_since("m.beat_at"),
        last = millis_since("m.last_message_at"),
    )
}

/// Reads the row of [`destination_sample_query`]. An unknown destination has none.
pub(crate) fn destination_sample(rows: &[PgRow]) -> Result<Option<DestinationSample>, Error> {
    let Some(row) = rows.first() else { return Ok(None) };
    let backlog =
        Backlog { pending: column(row, 0)?, exact: column(row, 1)?, parked: column(row, 2)?, dead: column(row, 3)? };
    Ok(Some(DestinationSample {
        backlog,
        parked_keys: column(row, 4)?,
        held_addresses: column(row, 5)?,
        oldest_pending: millis(column(row, 6)?),
        holdback: millis(column(row, 7)?),
    }))
}

/// Reads the row of [`vacuum_horizon_query`].
pub(crate) fn vacuum_horizon(rows: &[PgRow]) -> Result<VacuumHorizon, Error> {
    let row = rows.first().ok_or(Error::UnexpectedResponse("no horizon"))?;
    let transactions: i64 = column(row, 0)?;
    let held: Option<i64> = column(row, 1)?;
    Ok(VacuumHorizon { transactions: u64::try_from(transactions).unwrap_or(0), held_for: millis(held.unwrap_or(0)) })
}

/// Reads the row of [`retention_overdue_query`].
pub(crate) fn retention_overdue(rows: &[PgRow]) -> Result<Duration, Error> {
    Ok(millis(scalar(rows)?))
}

/// Reads the rows of [`consumer_samples_query`].
pub(crate) fn consumer_samples(answer: Bytes) -> Result<Vec<ConsumerSample>, Error> {
    let mut rows = CopyRows::new(answer, 8)?;
    let mut consumers = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let consumer = ConsumerSample {
            name: row.string()?,
            members: row.count()?,
            heartbeat_age: row.optional_int8()?.map(millis),
            last_message_age: row.optional_int8()?.map(millis),
            waiting: row.count()?,
            dead: row.count()?,
            breakers: serde_json::from_str(&row.string()?).map_err(|_| Error::UnexpectedResponse("not JSON"))?,
        };
        // A removed consumer is reported while it has waiting messages or dead letters.
        let is_removed = row.boolean()?;
        if !is_removed || consumer.waiting > 0 || consumer.dead > 0 {
            consumers.push(consumer);
        }
    }
    Ok(consumers)
}

/// A negative age, after the clock was set back, becomes zero.
fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
