//! Explains why a key is blocked.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::operate::{Cause, Listed, Shard, Status, Why};
use relevo_core::slot::{shard_of, slot_of};
use relevo_core::store::Hold;

use super::listing::{self, Numbers, Sql};
use super::search::{Width, probe};
use super::show::standing;
use crate::classify::Error;
use crate::copy::Rows;
use crate::queries::literal;
use crate::store::Store;

/// Counting of waiting messages stops here,
const COUNTED_MAX: u64 = 10_000;
/// and at this time limit after the first one is found.
const COUNT_BUDGET: Duration = Duration::from_secs(5);

pub(super) async fn why(store: &Store, key: &str) -> Result<Why, Error> {
    let destination = store.this_destination().await?;
    let number = shard_of(slot_of(key), destination.shards);
    let shard = store.leased_shards().await?.into_iter().find(|shard| shard.shard == number);
    let shard = shard.ok_or(Error::Answer("a shard has no lease"))?;
    let answer = if let Some(parked) = parked(store, key).await? {
        of_parked(store, key, parked, &shard).await?
    } else if let Some(unread) = unread(store, key, number).await? {
        let cause = if shard.lasts.is_zero() { Cause::NoRelay } else { Cause::Unread };
        unread.because(cause)
    } else if let Some((id, mark)) = marked(store, key).await? {
        Waiting { since: None, count: 1, head: listed_by_id(store, id).await? }.because(Cause::Marked { id, mark })
    } else if let Some((first, count)) = scheduled(store, key).await? {
        let at = first.next_attempt_at.unwrap_or(first.created_at);
        Waiting { since: Some(first.created_at), count, head: Some(first) }.because(Cause::Scheduled { at })
    } else {
        Waiting { since: None, count: 0, head: None }.because(Cause::Nothing)
    };
    let (mut cause, Waiting { head, count, since }) = answer;
    // Nothing is published while the destination is disabled. But a dead letter needs an operator first, so it outranks
    // this cause.
    if !destination.on && !matches!(cause, Cause::Nothing | Cause::Scheduled { .. } | Cause::Dead { .. }) {
        cause = Cause::SwitchedOff;
    }
    Ok(Why { cause, head, waiting: count, since, shard })
}

/// The waiting messages of a key.
struct Waiting {
    head: Option<Listed>,
    count: u64,
    since: Option<Timestamp>,
}

impl Waiting {
    fn because(self, cause: Cause) -> (Cause, Self) {
        (cause, self)
    }
}

/// The `parked_key` row of a key, with its hold and its dead letter.
struct Parked {
    state: String,
    /// The time of the next retry or address probe.
    next_at: Option<Timestamp>,
    /// Whether that time has passed.
    is_due: bool,
    hold: Option<Hold>,
    dead: Option<(MessageId, String)>,
    since: Timestamp,
    queued: u64,
    head: Option<i64>,
}

async fn parked(store: &Store, key: &str) -> Result<Option<Parked>, Error> {
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
    let mut rows = Rows::new(store.asking.copy(sql).await?, 10)?;
    let Some(mut row) = rows.next_row()? else { return Ok(None) };
    let state = row.string()?;
    let next_at = row.optional_timestamp()?;
    let is_due = row.boolean()?;
    let address = row.optional_string()?;
    let error = row.string()?;
    let dead_id = row.optional_uuid()?.map(MessageId::from_uuid);
    let dead_state = row.optional_string()?;
    Ok(Some(Parked {
        state,
        next_at,
        is_due,
        hold: address.map(|address| Hold { address, error }),
        dead: dead_id.zip(dead_state),
        since: row.timestamp()?,
        queued: row.count()?,
        head: Some(row.int8()?).filter(|seq| *seq >= 0),
    }))
}

async fn of_parked(store: &Store, key: &str, parked: Parked, shard: &Shard) -> Result<(Cause, Waiting), Error> {
    let since = Some(parked.since);
    let mut head = match parked.head {
        Some(seq) => standing(store, seq).await?,
        None => None,
    };
    let mut count = parked.queued;
    let mut is_due = parked.is_due;
    let at = parked.next_at.unwrap_or(parked.since);
    let cause = match (parked.state.as_str(), parked.hold, parked.dead) {
        ("dead", _, Some((id, state))) => {
            head = listed_by_id(store, id).await?;
            count += 1;
            if matches!(state.as_str(), "redriving" | "discarding") {
                is_due = true;
                Cause::Marked { id, mark: state }
            } else {
                Cause::Dead { id }
            }
        }
        ("held", Some(hold), _) => Cause::Held { hold, probe_at: parked.next_at },
        ("quarantined", ..) => Cause::Quarantined { at },
        // A key blocked by another dead letter: the mark waits for the shard's owner.
        _ => marked(store, key).await?.map_or(Cause::Retry { at }, |(id, mark)| Cause::Marked { id, mark }),
    };
    // The key is due, but no relay owns the shard.
    let nobody = shard.lasts.is_zero() && is_due && !matches!(cause, Cause::Dead { .. });
    Ok(Waiting { head, count, since }.because(if nobody { Cause::NoRelay } else { cause }))
}

/// Returns a dead letter of the key that an operator marked and no relay has processed. The index contains only marked
/// ones.
async fn marked(store: &Store, key: &str) -> Result<Option<(MessageId, String)>, Error> {
    let sql = format!(
        "SELECT id, state FROM {}.dead_letter WHERE destination = {} AND state IN ('redriving', 'discarding') AND key = {} \
         ORDER BY seq LIMIT 1",
        store.schema,
        literal(&store.destination),
        literal(key),
    );
    let mut rows = Rows::new(store.asking.copy(sql).await?, 2)?;
    let row = rows.next_row()?;
    row.map(|mut row| Ok((MessageId::from_uuid(row.uuid()?), row.string()?))).transpose()
}

async fn listed_by_id(store: &Store, id: MessageId) -> Result<Option<Listed>, Error> {
    let sql = format!("SELECT seq, created_at FROM {} AND id = '{id}'", Sql::of(store).own("dead_letter"));
    match probe(store, sql).await? {
        Some((seq, _)) => standing(store, seq).await,
        None => Ok(None),
    }
}

/// Returns the first unread message of the key and the number of them.
async fn unread(store: &Store, key: &str, shard: u16) -> Result<Option<Waiting>, Error> {
    let sql = Sql::of(store);
    let schema = sql.schema();
    let stand = sql.stand();
    let high = format!("{stand} SELECT max_seq, clock_timestamp() FROM stand WHERE shard = {shard}");
    let Some((high, _)) = probe(store, high).await? else { return Ok(None) };
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
    let mut found = pairs(store, ahead(&late, COUNTED_MAX)).await?;
    let began = Instant::now();
    let mut width = Width::first();
    let mut from = high.saturating_add(1);
    while let Some((next, _)) = probe(store, sql.next(from)).await? {
        let count = u64::try_from(found.len()).unwrap_or(u64::MAX);
        if count >= COUNTED_MAX || (count > 0 && began.elapsed() > COUNT_BUDGET) {
            break;
        }
        let asked = Instant::now();
        let numbers = Numbers { start: next, end: next.saturating_add(width.get()) };
        let range = format!(
            "(SELECT * FROM {schema}.message AS o WHERE o.seq >= {} AND o.seq < {})",
            numbers.start, numbers.end
        );
        found.extend(pairs(store, ahead(&range, COUNTED_MAX - count)).await?);
        width.adapt(asked.elapsed());
        from = numbers.end;
    }
    let Some(&(first, at)) = found.first() else { return Ok(None) };
    let head = standing(store, first).await?.filter(|head| head.status == Status::Pending);
    Ok(Some(Waiting { head, count: u64::try_from(found.len()).unwrap_or(u64::MAX), since: Some(at) }))
}

async fn pairs(store: &Store, sql: String) -> Result<Vec<(i64, Timestamp)>, Error> {
    let mut rows = Rows::new(store.asking.copy(sql).await?, 2)?;
    let mut pairs = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        pairs.push((row.int8()?, row.timestamp()?));
    }
    Ok(pairs)
}

/// Returns the first scheduled message of the key and the number of them.
async fn scheduled(store: &Store, key: &str) -> Result<Option<(Listed, u64)>, Error> {
    let schema = &store.schema;
    let of_key = literal(key);
    let first = format!(
        " AND ordinal = (SELECT s.ordinal FROM {schema}.scheduled AS s WHERE s.key = {of_key} ORDER BY s.due_at, s.ordinal LIMIT 1)"
    );
    let list = listing::scheduled(store.asking.copy(Sql::of(store).scheduled(&first, 1)).await?)?;
    let Some((_, first)) = list.into_iter().next() else { return Ok(None) };
    let count = format!(
        "SELECT count(*), clock_timestamp() FROM (SELECT 1 FROM {schema}.scheduled AS s WHERE s.key = {of_key} \
         LIMIT {COUNTED_MAX}) AS counted"
    );
    let count = probe(store, count).await?.map_or(1, |(count, _)| count.unsigned_abs());
    Ok(Some((first, count)))
}
