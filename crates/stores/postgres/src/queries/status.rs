//! Message status in SQL: joins the log, the parked messages, the dead letters and the position of each shard for a range
//! of sequence numbers. Also destinations, shards and the backlog.

pub(crate) mod key;
pub(crate) mod replay;
pub(crate) mod sample;
pub(crate) mod verify;

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use relevo_core::outbox::admin::OutboxSettings;
use relevo_core::outbox::inspect::{DestinationInfo, MessageStatus, MessageSummary, ShardInfo};
use relevo_core::outbox::search::MessageFilter;
use relevo_core::{Message, MessageId};
use sqlx::postgres::PgRow;

use crate::binary_copy::{CopyRow, CopyRows};
use crate::classify::Error;
use crate::literal::{literal, millis};
use crate::queries::column;
use crate::queries::read::full_message;

/// The tables that can hold messages of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sources {
    pub(crate) log: bool,
    pub(crate) parked: bool,
    pub(crate) dead: bool,
}

impl Sources {
    pub(crate) const ALL: Self = Self { log: true, parked: true, dead: true };
    pub(crate) const LOG: Self = Self { log: true, parked: false, dead: false };

    /// Returns `None` for scheduled messages, which are not in the log yet.
    pub(crate) fn of(status: Option<MessageStatus>) -> Option<Self> {
        let none = Self { log: false, parked: false, dead: false };
        match status {
            None => Some(Self::ALL),
            Some(MessageStatus::Scheduled) => None,
            Some(MessageStatus::Pending | MessageStatus::Published) => Some(Self::LOG),
            Some(
                MessageStatus::Retrying | MessageStatus::Held | MessageStatus::Quarantined | MessageStatus::Waiting,
            ) => Some(Self { parked: true, ..none }),
            Some(MessageStatus::Dead | MessageStatus::Discarded) => Some(Self { dead: true, ..none }),
        }
    }
}

/// A range of sequence numbers. The end is exclusive.
pub(crate) type SeqRange = std::ops::Range<i64>;

/// Builds the conditions of a search, except the status.
pub(crate) fn condition(search: &MessageFilter) -> String {
    let texts = [("key", &search.key), ("topic", &search.topic), ("type", &search.kind)];
    let texts =
        texts.into_iter().filter_map(|(column, wanted)| Some(format!(" AND {column} = {}", literal(wanted.as_ref()?))));
    let times = [(">=", search.since), ("<", search.until)];
    let times = times.into_iter().filter_map(|(sign, time)| Some(format!(" AND created_at {sign} '{}'", time?)));
    texts.chain(times).collect()
}

/// Builds the conditions of a search for scheduled messages before an ordinal.
pub(crate) fn scheduled_condition(search: &MessageFilter, before: Option<u64>) -> String {
    condition(search) + &before.map_or_else(String::new, |before| format!(" AND ordinal < {before}"))
}

/// Builds the statements of operators for one outbox and one destination.
pub(crate) struct StatusStatements {
    schema: String,
    destination: String,
}

impl StatusStatements {
    pub(crate) fn new(schema: &str, destination: &str) -> Self {
        Self { schema: schema.to_owned(), destination: literal(destination) }
    }

    /// Builds a `FROM` clause for the rows of this destination.
    fn own(&self, table: &str) -> String {
        format!("{}.{table} WHERE destination = {}", self.schema, self.destination)
    }

    /// Selects messages in a range of sequence numbers. A message that retention deleted from the log may still be
    /// parked or dead.
    fn source(&self, from: Sources, numbers: &SeqRange, condition: &str) -> String {
        let Self { schema, .. } = self;
        let columns = "slot, id, created_at, topic, key, type";
        let range = format!("seq >= {} AND seq < {}{condition}", numbers.start, numbers.end);
        // Avoids duplicates: while the log has the row, the log provides it.
        let gone = format!("AND NOT EXISTS (SELECT 1 FROM {schema}.message AS o WHERE o.seq = q.seq)");
        let gone = if from.log { &*gone } else { "" };
        let side = |table: &str, more: &str| {
            let own = self.own(&format!("{table} AS q"));
            format!("SELECT seq, NULL::xid8 AS xid, {columns} FROM {own} AND {range} {more} {gone}")
        };
        let mut parts = Vec::new();
        if from.log {
            parts.push(format!("SELECT seq, xid, {columns} FROM {schema}.message WHERE {range}"));
        }
        if from.parked {
            parts.push(side("parked_message", ""));
        }
        if from.dead {
            parts.push(side("dead_letter", "AND state <> 'redriven'"));
        }
        parts.join(" UNION ALL ")
    }

    /// Selects messages in a range of sequence numbers, each with its `status`. The other columns come from joined
    /// tables: `m` the message, `x` its dead letter, `p` and `k` its parked state, `st` the position of its shard.
    fn with_status(&self, from: Sources, numbers: &SeqRange, condition: &str) -> String {
        let Self { schema, destination } = self;
        let (low, high) = (numbers.start, numbers.end);
        format!(
            "SELECT m.*, st.max_seq, st.late_xids, st.seen_from, coalesce(st.settled, false) AS settled, \
             x.attempts AS dead_attempts, x.error AS dead_error, p.head, k.attempts AS parked_attempts, k.error, \
             coalesce(k.next_at, (SELECT h.next_at FROM {schema}.address_hold AS h \
                 WHERE h.destination = {destination} AND h.address = k.address)) AS next_at, \
             CASE WHEN x.state = 'discarded' THEN 'discarded' WHEN x.state IS NOT NULL THEN 'dead' \
                 WHEN p.seq IS NOT NULL THEN CASE WHEN p.head AND k.state <> 'dead' THEN k.state ELSE 'waiting' END \
                 WHEN st.settled THEN 'published' ELSE 'pending' END AS status \
             FROM ({source}) AS m \
             LEFT JOIN (SELECT * FROM {schema}.dead_letter WHERE destination = {destination} AND state <> 'redriven' \
                 AND seq >= {low} AND seq < {high}) AS x ON x.seq = m.seq \
             LEFT JOIN (SELECT q.seq, q.key, NOT EXISTS (SELECT 1 FROM {schema}.parked_message AS e \
                     WHERE e.destination = {destination} AND e.key = q.key AND e.ordinal < q.ordinal) AS head \
                 FROM {schema}.parked_message AS q WHERE q.destination = {destination} \
                 AND q.seq >= {low} AND q.seq < {high}) AS p ON p.seq = m.seq \
             LEFT JOIN {schema}.parked_key AS k ON k.destination = {destination} AND k.key = p.key \
             LEFT JOIN LATERAL (SELECT s.max_seq, s.late_xids, pg_visible_in_snapshot(m.xid, s.f) AS seen_from, \
                 pg_visible_in_snapshot(m.xid, s.f) OR (m.seq <= s.settled_seq AND pg_visible_in_snapshot(m.xid, s.t)) AS settled \
                 FROM shard_position AS s WHERE s.shard = m.slot % s.shards) AS st ON true",
            source = self.source(from, numbers, condition),
        )
    }

    /// The `WITH` clause that [`StatusStatements::with_status`] needs. It computes the position of each shard once per statement.
    fn positions(&self) -> String {
        format!(
            "WITH shard_position AS MATERIALIZED (SELECT d.shards, s.shard, s.settled_seq, f.snapshot AS f, f.max_seq, f.late_xids, \
             t.snapshot AS t FROM {schema}.destination AS d CROSS JOIN LATERAL {schema}.shard_positions(d.name) AS s \
             JOIN {schema}.tick AS f ON f.tick = s.from_tick JOIN {schema}.tick AS t ON t.tick = s.to_tick \
             WHERE d.name = {destination})",
            schema = self.schema,
            destination = self.destination,
        )
    }

    /// Lists messages, newest first. The publish time is looked up only for listed messages.
    pub(crate) fn list(
        &self,
        from: Sources,
        numbers: &SeqRange,
        condition: &str,
        status: Option<MessageStatus>,
        limit: usize,
    ) -> String {
        let Self { schema, destination } = self;
        let wanted = status.map_or_else(String::new, |status| format!("WHERE status = '{}'", status.as_str()));
        format!(
            "{positions} SELECT seq, id, created_at, topic, key, type, status, \
             CASE WHEN status = 'dead' OR status = 'discarded' THEN dead_attempts \
                 WHEN head AND status <> 'waiting' THEN parked_attempts ELSE 0 END, \
             CASE WHEN head AND status <> 'dead' THEN next_at END, \
             CASE WHEN status = 'dead' OR status = 'discarded' THEN dead_error WHEN head AND status <> 'waiting' THEN error END, \
             CASE WHEN status = 'published' THEN coalesce((SELECT l.published_at FROM {schema}.parked_published AS l \
                 WHERE l.destination = {destination} AND l.seq = m.seq), \
                 (SELECT p.settled_at FROM {schema}.progress AS p JOIN {schema}.tick AS f ON f.tick = p.from_tick \
                 JOIN {schema}.tick AS t ON t.tick = p.to_tick WHERE p.destination = {destination} \
                 AND m.slot % p.shards = p.shard AND p.settled_at >= m.created_at \
                 AND (pg_visible_in_snapshot(m.xid, f.snapshot) \
                     OR (m.seq <= p.settled_seq AND pg_visible_in_snapshot(m.xid, t.snapshot))) \
                 ORDER BY p.settled_at LIMIT 1)) END \
             FROM (SELECT * FROM ({rows}) AS every {wanted} ORDER BY seq DESC LIMIT {limit}) AS m ORDER BY seq DESC",
            positions = self.positions(),
            rows = self.with_status(from, numbers, condition),
        )
    }

    /// Selects the highest number below `before` and its emit time.
    pub(crate) fn newest_below(&self, from: Sources, before: i64) -> String {
        let newest =
            |table: &str| format!("(SELECT seq, created_at FROM {table} seq < {before} ORDER BY seq DESC LIMIT 1)");
        let mut parts = Vec::new();
        if from.log {
            parts.push(newest(&format!("{}.message WHERE", self.schema)));
        }
        if from.parked {
            parts.push(newest(&format!("{} AND", self.own("parked_message"))));
        }
        if from.dead {
            parts.push(newest(&format!("{} AND", self.own("dead_letter"))));
        }
        format!("SELECT seq, created_at FROM ({}) AS tops ORDER BY seq DESC LIMIT 1", parts.join(" UNION ALL "))
    }

    /// Selects the lowest number of the log that is at least `from`, and its emit time.
    pub(crate) fn oldest_from(&self, from: i64) -> String {
        format!("SELECT seq, created_at FROM {}.message WHERE seq >= {from} ORDER BY seq LIMIT 1", self.schema)
    }

    /// Selects scheduled messages, newest first.
    pub(crate) fn scheduled(&self, condition: &str, limit: usize) -> String {
        format!(
            "SELECT ordinal, id, created_at, topic, key, type, due_at FROM {}.scheduled WHERE true{condition} \
             ORDER BY ordinal DESC LIMIT {limit}",
            self.schema
        )
    }

    pub(crate) fn scheduled_by_id(&self, id: MessageId) -> String {
        self.scheduled(&format!(" AND id = '{id}'"), 1)
    }

    /// Selects a full message of the table `scheduled`.
    pub(crate) fn scheduled_message(&self, id: MessageId) -> String {
        self.full_message_where("scheduled", &format!("id = '{id}'"))
    }

    /// Selects a full message of another table.
    pub(crate) fn full_message(&self, table: &str, seq: i64) -> String {
        self.full_message_where(table, &format!("seq = {seq}"))
    }

    fn full_message_where(&self, table: &str, condition: &str) -> String {
        let own = if matches!(table, "parked_message" | "dead_letter") {
            format!("destination = {} AND ", self.destination)
        } else {
            String::new()
        };
        format!(
            "SELECT id, created_at, topic, key, type, content_type, headers::text, payload FROM {}.{table} \
             WHERE {own}{condition} LIMIT 1",
            self.schema
        )
    }

    /// Selects the number of a message in a side table by its id.
    pub(crate) fn seq_in_table(&self, table: &str, id: MessageId) -> String {
        format!("SELECT seq FROM {} AND id = '{id}' LIMIT 1", self.own(table))
    }

    /// Selects the number of a message in a range of the log by its id.
    pub(crate) fn seq_in_range(&self, id: MessageId, numbers: &SeqRange) -> String {
        format!(
            "SELECT seq FROM {}.message WHERE seq >= {} AND seq < {} AND id = '{id}' LIMIT 1",
            self.schema, numbers.start, numbers.end
        )
    }

    /// Selects when a caller used this id.
    pub(crate) fn id_claimed_at(&self, id: MessageId) -> String {
        format!("SELECT claimed_at FROM {}.dedup_id WHERE id = '{id}'", self.schema)
    }

    /// Selects the shards of the destination, with the names of their live relays.
    pub(crate) fn shards(&self) -> String {
        format!(
            "SELECT l.shard, coalesce(m.name, l.owner::text), l.epoch, \
             greatest(0, floor(date_part('epoch', CASE WHEN isfinite(l.expires_at) THEN l.expires_at - clock_timestamp() END) \
                 * 1000))::bigint, \
             p.settled_at, (SELECT count(*) FROM {schema}.parked_key AS k \
                 WHERE k.destination = l.destination AND k.slot % d.shards = l.shard) \
             FROM {schema}.destination AS d JOIN {schema}.lease AS l ON l.destination = d.name \
             LEFT JOIN {schema}.relay AS m ON m.destination = l.destination AND m.owner = l.owner \
             LEFT JOIN LATERAL (SELECT q.settled_at FROM {schema}.progress AS q WHERE q.destination = d.name \
                 AND q.shards = d.shards AND q.shard = l.shard AND q.epoch > 0 ORDER BY q.progress_id DESC LIMIT 1) AS p ON true \
             WHERE d.name = {} ORDER BY l.shard",
            self.destination,
            schema = self.schema,
        )
    }
}

/// Selects all destinations, or only the one with this name.
pub(crate) fn select_destinations(schema: &str, only: Option<&str>) -> String {
    let condition = only.map_or_else(String::new, |name| format!(" WHERE name = {}", literal(name)));
    format!("SELECT name, shards, reshard_to, enabled FROM {schema}.destination{condition} ORDER BY name")
}

pub(crate) fn destinations(rows: &[PgRow]) -> Result<Vec<DestinationInfo>, Error> {
    let shards =
        |number: i16| u16::try_from(number).map_err(|_| Error::UnexpectedResponse("a number of shards is negative"));
    let destination = |row| {
        let resharding_to: Option<i16> = column(row, 2)?;
        Ok(DestinationInfo {
            name: column(row, 0)?,
            shards: shards(column(row, 1)?)?,
            resharding_to: resharding_to.map(shards).transpose()?,
            enabled: column(row, 3)?,
        })
    };
    rows.iter().map(destination).collect()
}

pub(crate) fn select_settings(schema: &str) -> String {
    let millis = |column: &str| format!("floor(date_part('epoch', {column}) * 1000)::bigint");
    let columns = ["retention", "id_retention", "dead_letter_retention"].map(millis).join(", ");
    format!("SELECT {columns} FROM {schema}.settings")
}

/// Changes the settings if they differ, because every process that starts may send this.
pub(crate) fn update_settings(schema: &str, settings: &OutboxSettings) -> String {
    let interval = |duration| format!("interval '1 millisecond' * {}", millis(duration));
    let OutboxSettings { retention, id_retention, dead_letter_retention } = *settings;
    let values = [retention, id_retention, dead_letter_retention].map(interval).join(", ");
    let columns = "(retention, id_retention, dead_letter_retention)";
    format!("UPDATE {schema}.settings SET {columns} = ({values}) WHERE {columns} IS DISTINCT FROM ({values})")
}

pub(crate) fn settings(rows: &[PgRow]) -> Result<OutboxSettings, Error> {
    let row = rows.first().ok_or(Error::UnexpectedResponse("no settings"))?;
    let duration =
        |index| Ok::<_, Error>(Duration::from_millis(u64::try_from(column::<i64>(row, index)?).unwrap_or(0)));
    Ok(OutboxSettings { retention: duration(0)?, id_retention: duration(1)?, dead_letter_retention: duration(2)? })
}

/// Reads the rows of [`StatusStatements::shards`].
pub(crate) fn decode_shards(answer: Bytes) -> Result<Vec<ShardInfo>, Error> {
    let mut rows = CopyRows::new(answer, 6)?;
    let mut shards = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        shards.push(ShardInfo {
            shard: row.slot()?,
            owner: row.optional_string()?,
            epoch: row.int8()?,
            lease_remaining: Duration::from_millis(row.count()?),
            settled_at: row.optional_timestamp()?,
            parked_keys: row.count()?,
        });
    }
    Ok(shards)
}

/// Reads one number, or nothing.
pub(crate) fn decode_seq(answer: Bytes) -> Result<Option<i64>, Error> {
    let mut rows = CopyRows::new(answer, 1)?;
    let row = rows.next_row()?;
    row.map(|mut row| row.int8()).transpose()
}

/// Reads one time, or nothing.
pub(crate) fn decode_time(answer: Bytes) -> Result<Option<Timestamp>, Error> {
    let mut rows = CopyRows::new(answer, 1)?;
    let row = rows.next_row()?;
    row.map(|mut row| row.timestamp()).transpose()
}

/// Reads sequence numbers with their emit times.
pub(crate) fn decode_seqs_and_times(answer: Bytes) -> Result<Vec<(i64, Timestamp)>, Error> {
    let mut rows = CopyRows::new(answer, 2)?;
    let mut pairs = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        pairs.push((row.int8()?, row.timestamp()?));
    }
    Ok(pairs)
}

/// Reads the rows of [`StatusStatements::list`].
pub(crate) fn decode_summaries(answer: Bytes) -> Result<Vec<MessageSummary>, Error> {
    let mut rows = CopyRows::new(answer, 11)?;
    let mut list = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let seq = Some(row.int8()?);
        let mut one = decode_summary_start(&mut row)?;
        one.seq = seq;
        one.status = MessageStatus::parse(&row.text()?).ok_or(Error::UnexpectedResponse("a status is not known"))?;
        one.attempts = u32::try_from(row.int4()?).map_err(|_| Error::UnexpectedResponse("attempts are negative"))?;
        one.next_attempt_at = row.optional_timestamp()?;
        one.last_error = row.optional_string()?;
        one.published_at = row.optional_timestamp()?;
        list.push(one);
    }
    Ok(list)
}

/// Reads the rows of [`StatusStatements::scheduled`], each with its ordinal in the table `scheduled`.
pub(crate) fn decode_scheduled(answer: Bytes) -> Result<Vec<(i64, MessageSummary)>, Error> {
    let mut rows = CopyRows::new(answer, 7)?;
    let mut list = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let no = row.int8()?;
        let mut one = decode_summary_start(&mut row)?;
        one.next_attempt_at = Some(row.timestamp()?);
        list.push((no, one));
    }
    Ok(list)
}

/// Reads the columns that every list begins with. The other fields have the values of a scheduled message.
fn decode_summary_start(row: &mut CopyRow<'_>) -> Result<MessageSummary, Error> {
    Ok(MessageSummary {
        seq: None,
        id: MessageId::from_uuid(row.uuid()?),
        created_at: row.timestamp()?,
        topic: row.string()?,
        key: row.string()?,
        kind: row.string()?,
        status: MessageStatus::Scheduled,
        attempts: 0,
        next_attempt_at: None,
        last_error: None,
        published_at: None,
    })
}

/// Reads the rows of [`StatusStatements::full_message`].
pub(crate) fn decode_message(answer: Bytes) -> Result<Option<Message>, Error> {
    let mut rows = CopyRows::new(answer, 8)?;
    let row = rows.next_row()?;
    row.map(|mut row| full_message(&mut row)).transpose()
}
