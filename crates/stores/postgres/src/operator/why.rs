//! Gathers the facts that explain why a key waits.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::outbox::inspect::{MessageStatus, MessageSummary};
use relevo_core::outbox::why::{
    KeyFacts, MarkedDeadLetter, ParkedFacts, ParkedState, ScheduledMessages, WaitingMessages,
};
use relevo_core::slot::{shard_of, slot_of};

use super::Scope;
use super::search::{ScanWidth, optional_seq, seq_and_time, summary_at};
use crate::classify::Error;
use crate::queries::status::key::{COUNTED_MAX, decode_marked_dead_letter, decode_parked_key};
use crate::queries::status::{self, SeqRange};

/// Time limit of counting after the first message is found.
const COUNT_TIME_MAX: Duration = Duration::from_secs(5);

pub(super) async fn key_facts(scope: Scope<'_>, key: &str) -> Result<KeyFacts, Error> {
    let destination = scope.destination().await?;
    let number = shard_of(slot_of(key), destination.shards);
    let shard = scope.shards().await?.into_iter().find(|shard| shard.shard == number);
    let shard = shard.ok_or(Error::UnexpectedResponse("a shard has no lease"))?;
    let parked = parked(scope, key).await?;
    let unapplied_mark = marked_dead_letter(scope, key).await?;
    let (mut waiting, mut later) = (None, None);
    if parked.is_none() {
        waiting = unread(scope, key, number).await?;
        later = scheduled(scope, key).await?;
    }
    Ok(KeyFacts { enabled: destination.enabled, shard, parked, unapplied_mark, unread: waiting, scheduled: later })
}

async fn parked(scope: Scope<'_>, key: &str) -> Result<Option<ParkedFacts>, Error> {
    let row = decode_parked_key(scope.connection.copy_out(scope.status().parked_key(key)).await?)?;
    let Some(row) = row else { return Ok(None) };
    let head = match (&row.state, row.first) {
        (ParkedState::Dead { id, .. }, _) => summary_by_id(scope, *id).await?,
        (_, Some(seq)) => summary_at(scope, seq).await?,
        (_, None) => None,
    };
    Ok(Some(ParkedFacts {
        state: row.state,
        next_at: row.next_at,
        is_due: row.is_due,
        since: row.parked_at,
        head,
        queued: row.queued,
    }))
}

async fn marked_dead_letter(scope: Scope<'_>, key: &str) -> Result<Option<MarkedDeadLetter>, Error> {
    let sql = scope.status().marked_dead_letter(key);
    let Some((id, mark)) = decode_marked_dead_letter(scope.connection.copy_out(sql).await?)? else { return Ok(None) };
    Ok(Some(MarkedDeadLetter { id, mark, message: summary_by_id(scope, id).await? }))
}

async fn summary_by_id(scope: Scope<'_>, id: MessageId) -> Result<Option<MessageSummary>, Error> {
    match optional_seq(scope, scope.status().seq_in_table("dead_letter", id)).await? {
        Some(seq) => summary_at(scope, seq).await,
        None => Ok(None),
    }
}

/// Returns the first unread message of the key and the number of them.
async fn unread(scope: Scope<'_>, key: &str, shard: u16) -> Result<Option<WaitingMessages>, Error> {
    let sql = scope.status();
    let Some(start) = optional_seq(scope, sql.window_start(shard)).await? else { return Ok(None) };
    let mut found = seqs_and_times(scope, sql.unsettled_late(key, shard)).await?;
    let began = Instant::now();
    let mut width = ScanWidth::first();
    let mut from = start.saturating_add(1);
    while let Some((next, _)) = seq_and_time(scope, sql.oldest_from(from)).await? {
        let count = u64::try_from(found.len()).unwrap_or(u64::MAX);
        if count >= COUNTED_MAX || (count > 0 && began.elapsed() > COUNT_TIME_MAX) {
            break;
        }
        let query_began = Instant::now();
        let numbers = SeqRange { start: next, end: next.saturating_add(width.get()) };
        found.extend(seqs_and_times(scope, sql.unsettled_in_range(key, shard, &numbers, COUNTED_MAX - count)).await?);
        width.adapt(query_began.elapsed());
        from = numbers.end;
    }
    let Some(&(first, at)) = found.first() else { return Ok(None) };
    let head = summary_at(scope, first).await?.filter(|head| head.status == MessageStatus::Pending);
    Ok(Some(WaitingMessages { head, count: u64::try_from(found.len()).unwrap_or(u64::MAX), since: Some(at) }))
}

async fn seqs_and_times(scope: Scope<'_>, sql: String) -> Result<Vec<(i64, Timestamp)>, Error> {
    status::decode_seqs_and_times(scope.connection.copy_out(sql).await?)
}

/// Returns the first scheduled message of the key and the number of them.
async fn scheduled(scope: Scope<'_>, key: &str) -> Result<Option<ScheduledMessages>, Error> {
    let sql = scope.status();
    let list = status::decode_scheduled(scope.connection.copy_out(sql.first_scheduled(key)).await?)?;
    let Some((_, head)) = list.into_iter().next() else { return Ok(None) };
    let count = optional_seq(scope, sql.count_scheduled(key)).await?.map_or(1, i64::unsigned_abs);
    let due_at = head.next_attempt_at.unwrap_or(head.created_at);
    Ok(Some(ScheduledMessages { head, count, due_at }))
}
