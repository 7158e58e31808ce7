//! The statements that explain why a key waits.

use bytes::Bytes;
use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetterState, MarkAction};
use relevo_core::outbox::leases::HeldAddress;
use relevo_core::outbox::why::ParkedState;

use super::{SeqRange, StatusStatements};
use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::literal::literal;

/// Counting of waiting messages stops here.
pub(crate) const COUNTED_MAX: u64 = 10_000;

/// The `parked_key` row of a key, with its hold and its dead letter.
pub(crate) struct ParkedKey {
    pub(crate) state: ParkedState,
    /// The time of the next retry or address probe.
    pub(crate) next_at: Option<Timestamp>,
    /// Whether that time has passed.
    pub(crate) is_due: bool,
    pub(crate) parked_at: Timestamp,
    pub(crate) queued: u64,
    /// The number of the first parked message.
    pub(crate) first: Option<i64>,
}

impl StatusStatements {
    pub(crate) fn parked_key(&self, key: &str) -> String {
        format!(
            "SELECT k.state, coalesce(k.next_at, h.next_at), coalesce(coalesce(k.next_at, h.next_at) <= clock_timestamp(), false), \
             k.address, coalesce(h.error, k.error), k.dead_id, x.state, k.since, \
             (SELECT count(*) FROM (SELECT 1 FROM {schema}.parked_message AS m WHERE m.destination = k.destination \
                 AND m.key = k.key LIMIT {COUNTED_MAX}) AS counted), \
             coalesce((SELECT m.seq FROM {schema}.parked_message AS m WHERE m.destination = k.destination \
                 AND m.key = k.key ORDER BY m.ordinal LIMIT 1), -1) \
             FROM {schema}.parked_key AS k \
             LEFT JOIN {schema}.address_hold AS h ON h.destination = k.destination AND h.address = k.address \
             LEFT JOIN {schema}.dead_letter AS x ON x.destination = k.destination AND x.id = k.dead_id \
             WHERE k.destination = {} AND k.key = {}",
            self.destination,
            literal(key),
            schema = self.schema,
        )
    }

    /// Selects a dead letter of the key that an operator marked and no relay has processed. The index contains only
    /// marked ones.
    pub(crate) fn marked_dead_letter(&self, key: &str) -> String {
        let own = self.own("dead_letter");
        let key = literal(key);
        format!(
            "SELECT id, state FROM {own} AND state IN ('redriving', 'discarding') AND key = {key} ORDER BY seq LIMIT 1"
        )
    }

    /// Selects the highest number before the current window of a shard.
    pub(crate) fn window_start(&self, shard: u16) -> String {
        format!("{} SELECT max_seq FROM shard_position WHERE shard = {shard}", self.positions())
    }

    /// Selects unsettled messages of a key that late transactions emitted below the window. They come first.
    pub(crate) fn unsettled_late(&self, key: &str, shard: u16) -> String {
        let late = format!(
            "(SELECT o.* FROM unnest(s.late_xids) AS x CROSS JOIN LATERAL \
             (SELECT * FROM {}.message AS o WHERE o.xid = x AND o.seq <= s.max_seq) AS o)",
            self.schema
        );
        self.unsettled_of_key(&late, key, shard, COUNTED_MAX)
    }

    /// Selects unsettled messages of a key in a range above the start of the window.
    pub(crate) fn unsettled_in_range(&self, key: &str, shard: u16, numbers: &SeqRange, limit: u64) -> String {
        let range = format!(
            "(SELECT * FROM {}.message AS o WHERE o.seq >= {} AND o.seq < {})",
            self.schema, numbers.start, numbers.end
        );
        self.unsettled_of_key(&range, key, shard, limit)
    }

    fn unsettled_of_key(&self, from: &str, key: &str, shard: u16, limit: u64) -> String {
        format!(
            "{} SELECT m.seq, m.created_at FROM shard_position AS s CROSS JOIN LATERAL {from} AS m \
             WHERE s.shard = {shard} AND m.key = {} AND NOT pg_visible_in_snapshot(m.xid, s.f) \
             AND NOT (m.seq <= s.settled_seq AND pg_visible_in_snapshot(m.xid, s.t)) ORDER BY m.seq LIMIT {limit}",
            self.positions(),
            literal(key),
        )
    }

    /// Selects the scheduled message of a key that is due first.
    pub(crate) fn first_scheduled(&self, key: &str) -> String {
        let first = format!(
            " AND ordinal = (SELECT s.ordinal FROM {}.scheduled AS s WHERE s.key = {} ORDER BY s.due_at, s.ordinal LIMIT 1)",
            self.schema,
            literal(key)
        );
        self.scheduled(&first, 1)
    }

    pub(crate) fn count_scheduled(&self, key: &str) -> String {
        format!(
            "SELECT count(*) FROM (SELECT 1 FROM {}.scheduled AS s WHERE s.key = {} LIMIT {COUNTED_MAX}) AS counted",
            self.schema,
            literal(key)
        )
    }
}

/// Reads the row of [`StatusStatements::parked_key`].
pub(crate) fn decode_parked_key(answer: Bytes) -> Result<Option<ParkedKey>, Error> {
    let mut rows = CopyRows::new(answer, 10)?;
    let Some(mut row) = rows.next_row()? else { return Ok(None) };
    let state = row.string()?;
    let next_at = row.optional_timestamp()?;
    let is_due = row.boolean()?;
    let address = row.optional_string()?.unwrap_or_default();
    let error = row.string()?;
    let dead_id = row.optional_uuid()?.map(MessageId::from_uuid);
    let dead_state = row.optional_string()?;
    let state = match (state.as_str(), dead_id) {
        ("dead", Some(id)) => ParkedState::Dead { id, unapplied_mark: dead_state.as_deref().and_then(unapplied_mark) },
        ("held", _) => ParkedState::Held(HeldAddress { address, error }),
        ("quarantined", _) => ParkedState::Quarantined,
        ("retrying", _) => ParkedState::Retrying,
        _ => return Err(Error::UnexpectedResponse("a parked key has an unknown state or no dead letter")),
    };
    Ok(Some(ParkedKey {
        state,
        next_at,
        is_due,
        parked_at: row.timestamp()?,
        queued: row.count()?,
        first: Some(row.int8()?).filter(|seq| *seq >= 0),
    }))
}

/// Reads the row of [`StatusStatements::marked_dead_letter`].
pub(crate) fn decode_marked_dead_letter(answer: Bytes) -> Result<Option<(MessageId, MarkAction)>, Error> {
    let mut rows = CopyRows::new(answer, 2)?;
    let Some(mut row) = rows.next_row()? else { return Ok(None) };
    let id = MessageId::from_uuid(row.uuid()?);
    let mark = unapplied_mark(&row.string()?).ok_or(Error::UnexpectedResponse("a mark is unknown"))?;
    Ok(Some((id, mark)))
}

fn unapplied_mark(state: &str) -> Option<MarkAction> {
    DeadLetterState::parse(state)?.unapplied_mark()
}
