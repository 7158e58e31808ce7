//! Explains why a key is blocked.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::outbox::inspect::{KeyReport, MessageStatus, MessageSummary, ShardInfo, WaitCause};
use relevo_core::slot::{shard_of, slot_of};

use super::Scope;
use super::search::{ScanWidth, optional_seq, seq_and_time, summary_at};
use crate::classify::Error;
use crate::queries::status::key::{COUNTED_MAX, ParkedKey, decode_marked_dead_letter, decode_parked_key};
use crate::queries::status::{self, SeqRange};

/// Time limit of counting after the first message is found.
const COUNT_TIME_MAX: Duration = Duration::from_secs(5);

pub(super) async fn why(scope: Scope<'_>, key: &str) -> Result<KeyReport, Error> {
    let destination = scope.destination().await?;
    let number = shard_of(slot_of(key), destination.shards);
    let shard = scope.shards().await?.into_iter().find(|shard| shard.shard == number);
    let shard = shard.ok_or(Error::UnexpectedResponse("a shard has no lease"))?;
    let (mut cause, WaitingMessages { head, count, since }) = if let Some(parked) = parked(scope, key).await? {
        explain_parked(scope, key, parked, &shard).await?
    } else if let Some(unread) = unread(scope, key, number).await? {
        let cause = if shard.lease_remaining.is_zero() { WaitCause::NoRelay } else { WaitCause::NotReadYet };
        unread.with_cause(cause)
    } else if let Some((id, mark)) = marked_dead_letter(scope, key).await? {
        WaitingMessages { since: None, count: 1, head: summary_by_id(scope, id).await? }
            .with_cause(WaitCause::MarkNotApplied { id, mark })
    } else if let Some((first, count)) = scheduled(scope, key).await? {
        let at = first.next_attempt_at.unwrap_or(first.created_at);
        WaitingMessages { since: Some(first.created_at), count, head: Some(first) }
            .with_cause(WaitCause::Scheduled { at })
    } else {
        WaitingMessages { since: None, count: 0, head: None }.with_cause(WaitCause::Idle)
    };
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

async fn parked(scope: Scope<'_>, key: &str) -> Result<Option<ParkedKey>, Error> {
    decode_parked_key(scope.connection.copy_out(scope.status().parked_key(key)).await?)
}

async fn explain_parked(
    scope: Scope<'_>,
    key: &str,
    parked: ParkedKey,
    shard: &ShardInfo,
) -> Result<(WaitCause, WaitingMessages), Error> {
    let since = Some(parked.parked_at);
    let mut head = match parked.head {
        Some(seq) => summary_at(scope, seq).await?,
        None => None,
    };
    let mut count = parked.queued;
    let mut is_due = parked.is_due;
    let at = parked.next_at.unwrap_or(parked.parked_at);
    let cause = match (parked.state.as_str(), parked.hold, parked.dead) {
        ("dead", _, Some((id, state))) => {
            head = summary_by_id(scope, id).await?;
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
        _ => marked_dead_letter(scope, key)
            .await?
            .map_or(WaitCause::Retrying { at }, |(id, mark)| WaitCause::MarkNotApplied { id, mark }),
    };
    // The key is due, but no relay owns the shard.
    let no_relay = shard.lease_remaining.is_zero() && is_due && !matches!(cause, WaitCause::DeadLetter { .. });
    Ok(WaitingMessages { head, count, since }.with_cause(if no_relay { WaitCause::NoRelay } else { cause }))
}

async fn marked_dead_letter(scope: Scope<'_>, key: &str) -> Result<Option<(MessageId, String)>, Error> {
    decode_marked_dead_letter(scope.connection.copy_out(scope.status().marked_dead_letter(key)).await?)
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
async fn scheduled(scope: Scope<'_>, key: &str) -> Result<Option<(MessageSummary, u64)>, Error> {
    let sql = scope.status();
    let list = status::decode_scheduled(scope.connection.copy_out(sql.first_scheduled(key)).await?)?;
    let Some((_, first)) = list.into_iter().next() else { return Ok(None) };
    let count = optional_seq(scope, sql.count_scheduled(key)).await?.map_or(1, i64::unsigned_abs);
    Ok(Some((first, count)))
}
