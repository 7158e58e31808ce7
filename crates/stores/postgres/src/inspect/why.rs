//! Explains why a key is blocked.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::outbox::inspect::{KeyReport, MessageStatus, MessageSummary, ShardInfo, WaitCause};
use relevo_core::outbox::leases::HeldAddress;
use relevo_core::slot::{shard_of, slot_of};

use super::listing::{self, SeqRange, Sql};
use super::search::{ScanWidth, seq_and_time};
use super::show::summary_at;
use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::queries::literal;
use crate::store::Store;

/// Counting of waiting messages stops here,
const COUNTED_MAX: u64 = 10_000;
/// and at this time limit after the first one is found.
const COUNT_TIME_MAX: Duration = Duration::from_secs(5);

pub(super) async fn why(store: &Store, key: &str) -> Result<KeyReport, Error> {
    let destination = store.this_destination().await?;
    let number = shard_of(slot_of(key), destination.shards);
    let shard = store.leased_shards().await?.into_iter().find(|shard| shard.shard == number);
    let shard = shard.ok_or(Error::UnexpectedResponse("a shard has no lease"))?;
    let answer = if let Some(parked) = parked(store, key).await? {
        of_parked(store, key, parked, &shard).await?
    } else if let Some(unread) = unread(store, key, number).await? {
        let cause = if shard.lease_remaining.is_zero() { WaitCause::NoRelay } else { WaitCause::NotReadYet };
        unread.with_cause(cause)
    } else if let Some((id, mark)) = marked_dead_letter(store, key).await? {
        WaitingMessages { since: None, count: 1, head: summary_by_id(store, id).await? }
            .with_cause(WaitCause::MarkNotApplied { id, mark })
    } else if let Some((first, count)) = scheduled(store, key).await? {
        let at = first.next_attempt_at.unwrap_or(first.created_at);
        WaitingMessages { since: Some(first.created_at), count, head: Some(first) }
            .with_cause(WaitCause::Scheduled { at })
    } else {
        WaitingMessages { since: None, count: 0, head: None }.with_cause(WaitCause::Idle)
    };
    let (mut cause, WaitingMessages { head, count, since }) = answer;
    // Nothing is published while the destination is disabled. But a dead letter needs an operator first, so it outranks
    // this cause.
    if !destination.enabled
        && !matches!(cause, WaitCause::Idle | WaitCause::Scheduled { .. } | WaitCause::DeadLetter { .. })
    {
        cause = WaitCause::Disabled;
    }
    Ok(KeyReport { cause, head, waiting: count, since, shard })
}

/// The waiting messages of a key.
struct WaitingMessages {
    head: Option<MessageSummary>,
    count: u64,
    since: Option<Timestamp>,
}

impl WaitingMessages {
    fn with_cause(self, cause: WaitCause) -> (WaitCause, Self) {
        (cause, self)
    }
}

/// The `parked_key` row of a key, with its hold and its dead letter.
struct ParkedKey {
    state: String,
    /// The time of the next retry or address probe.
    next_at: Option<Timestamp>,
    /// Whether that time has passed.
    is_due: bool,
    hold: Option<HeldAddress>,
    dead: Option<(MessageId, String)>,
    parked_at: Timestamp,
    queued: u64,
    head: Option<i64>,
}

async fn parked(store: &Store, key: &str) -> Result<Option<ParkedKey>, Error> {
    let sql = format!(
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
        literal(&store.destination),
        literal(key),
        schema = store.schema,
    );
    let mut rows = CopyRows::new(store.operator_connection.copy_out(sql).await?, 10)?;
    let Some(mut row) = rows.next_row()? else { return Ok(None) };
    let state = row.string()?;
    let next_at = row.optional_timestamp()?;
    let is_due = row.boolean()?;
    let address = row.optional_string()?;
    let error = row.string()?;
    let dead_id = row.optional_uuid()?.map(MessageId::from_uuid);
    let dead_state = row.optional_string()?;
    Ok(Some(ParkedKey {
        state,
        next_at,
        is_due,
        hold: address.map(|address| HeldAddress { address, error }),
        dead: dead_id.zip(dead_state),
        parked_at: row.timestamp()?,
        queued: row.count()?,
        head: Some(row.int8()?).filter(|seq| *seq >= 0),
    }))
}

async fn of_parked(
    store: &Store,
    key: &str,
    parked: ParkedKey,
    shard: &ShardInfo,
) -> Result<(WaitCause, WaitingMessages), Error> {
    let since = Some(parked.parked_at);
    let mut head = match parked.head {
        Some(seq) => summary_at(store, seq).await?,
        None => None,
    };
    let mut count = parked.queued;
    let mut is_due = parked.is_due;
    let at = parked.next_at.unwrap_or(parked.parked_at);
    let cause = match (parked.state.as_str(), parked.hold, parked.dead) {
        ("dead", _, Some((id, state))) => {
            head = summary_by_id(store, id).await?;
            count += 1;
            if matches!(state.as_str(), "redriving" | "discarding") {
                is_due = true;
                WaitCause::MarkNotApplied { id, mark: state }
            } else {
                WaitCause::DeadLetter { id }
            }
        }
        ("held", Some(hold), _) => WaitCause::AddressHeld { held_address: hold, probe_at: parked.next_at },
        ("quarantined", ..) => WaitCause::Quarantined { at },
        // A key blocked by another dead letter: the mark waits for the shard's owner.
        _ => marked_dead_letter(store, key)
            .await?
            .map_or(WaitCause::Retrying { at }, |(id, mark)| WaitCause::MarkNotApplied { id, mark }),
    };
    // The key is due, but no relay owns the shard.
    let nobody = shard.lease_remaining.is_zero() && is_due && !matches!(cause, WaitCause::DeadLetter { .. });
    Ok(WaitingMessages { head, count, since }.with_cause(if nobody { WaitCause::NoRelay } else { cause }))
}

/// Returns a dead letter of the key that an operator marked and no relay has processed. The index contains only marked
/// ones.
async fn marked_dead_letter(store: &Store, key: &str) -> Result<Option<(MessageId, String)>, Error> {
    let sql = format!(
        "SELECT id, state FROM {}.dead_letter WHERE destination = {} AND state IN ('redriving', 'discarding') AND key = {} \
         ORDER BY seq LIMIT 1",
        store.schema,
        literal(&store.destination),
        literal(key),
    );
    let mut rows = CopyRows::new(store.operator_connection.copy_out(sql).await?, 2)?;
    let row = rows.next_row()?;
    row.map(|mut row| Ok((MessageId::from_uuid(row.uuid()?), row.string()?))).transpose()
}

async fn summary_by_id(store: &Store, id: MessageId) -> Result<Option<MessageSummary>, Error> {
    let sql = format!("SELECT seq, created_at FROM {} AND id = '{id}'", Sql::of(store).own("dead_letter"));
    match seq_and_time(store, sql).await? {
        Some((seq, _)) => summary_at(store, seq).await,
        None => Ok(None),
    }
}

/// Returns the first unread message of the key and the number of them.
async fn unread(store: &Store, key: &str, shard: u16) -> Result<Option<WaitingMessages>, Error> {
    let sql = Sql::of(store);
    let schema = sql.schema();
    let stand = sql.stand();
    let high = format!("{stand} SELECT max_seq, clock_timestamp() FROM stand WHERE shard = {shard}");
    let Some((high, _)) = seq_and_time(store, high).await? else { return Ok(None) };
    let ahead = |from: &str, room: u64| {
        format!(
            "{stand} SELECT m.seq, m.created_at FROM stand AS s CROSS JOIN LATERAL {from} AS m \
             WHERE s.shard = {shard} AND m.key = {key} AND NOT pg_visible_in_snapshot(m.xid, s.f) \
             AND NOT (m.seq <= s.settled_seq AND pg_visible_in_snapshot(m.xid, s.t)) ORDER BY m.seq LIMIT {room}",
            key = literal(key),
        )
    };
    // Numbers drawn before the tick by transactions that ended after it come first.
    let late = format!(
        "(SELECT o.* FROM unnest(s.late_xids) AS x CROSS JOIN LATERAL \
         (SELECT * FROM {schema}.message AS o WHERE o.xid = x AND o.seq <= s.max_seq) AS o)"
    );
    let mut found = seqs_and_times(store, ahead(&late, COUNTED_MAX)).await?;
    let began = Instant::now();
    let mut width = ScanWidth::first();
    let mut from = high.saturating_add(1);
    while let Some((next, _)) = seq_and_time(store, sql.next(from)).await? {
        let count = u64::try_from(found.len()).unwrap_or(u64::MAX);
        if count >= COUNTED_MAX || (count > 0 && began.elapsed() > COUNT_TIME_MAX) {
            break;
        }
        let asked = Instant::now();
        let numbers = SeqRange { start: next, end: next.saturating_add(width.get()) };
        let range = format!(
            "(SELECT * FROM {schema}.message AS o WHERE o.seq >= {} AND o.seq < {})",
            numbers.start, numbers.end
        );
        found.extend(seqs_and_times(store, ahead(&range, COUNTED_MAX - count)).await?);
        width.adapt(asked.elapsed());
        from = numbers.end;
    }
    let Some(&(first, at)) = found.first() else { return Ok(None) };
    let head = summary_at(store, first).await?.filter(|head| head.status == MessageStatus::Pending);
    Ok(Some(WaitingMessages { head, count: u64::try_from(found.len()).unwrap_or(u64::MAX), since: Some(at) }))
}

async fn seqs_and_times(store: &Store, sql: String) -> Result<Vec<(i64, Timestamp)>, Error> {
    let mut rows = CopyRows::new(store.operator_connection.copy_out(sql).await?, 2)?;
    let mut pairs = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        pairs.push((row.int8()?, row.timestamp()?));
    }
    Ok(pairs)
}

/// Returns the first scheduled message of the key and the number of them.
async fn scheduled(store: &Store, key: &str) -> Result<Option<(MessageSummary, u64)>, Error> {
    let schema = &store.schema;
    let of_key = literal(key);
    let first = format!(
        " AND ordinal = (SELECT s.ordinal FROM {schema}.scheduled AS s WHERE s.key = {of_key} ORDER BY s.due_at, s.ordinal LIMIT 1)"
    );
    let list =
        listing::decode_scheduled(store.operator_connection.copy_out(Sql::of(store).scheduled(&first, 1)).await?)?;
    let Some((_, first)) = list.into_iter().next() else { return Ok(None) };
    let count = format!(
        "SELECT count(*), clock_timestamp() FROM (SELECT 1 FROM {schema}.scheduled AS s WHERE s.key = {of_key} \
         LIMIT {COUNTED_MAX}) AS counted"
    );
    let count = seq_and_time(store, count).await?.map_or(1, |(count, _)| count.unsigned_abs());
    Ok(Some((first, count)))
}
