//! The tables of one consumer's inbox.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytestring::ByteString;
use relevo_core::broker_consumer::Lane;
use relevo_core::dead_letters::DeadLetterState;
use relevo_core::inbox::attempts::CallClaim;
use relevo_core::inbox::replays::{ReplayPlan, ReplayState};
use relevo_core::inbox::retries::InboxFailure;
use relevo_core::inbox::{DedupId, InboxMessage, InboxState as Known, LaneLease};
use uuid::Uuid;

use crate::dead_letters::Mark;
use crate::state::Micros;

/// The tables of one consumer.
#[derive(Debug, Default)]
pub(crate) struct ConsumerTables {
    pub(crate) paused: bool,
    /// When an operator removed the consumer's members. A heartbeat resets it to `None`.
    pub(crate) removed_at: Option<Micros>,
    /// The retention of the last pruning.
    pub(crate) done_retention: Option<Duration>,
    pub(crate) rows: BTreeMap<DedupId, InboxRow>,
    /// The retry table.
    pub(crate) queues: BTreeMap<ByteString, RetryQueue>,
    pub(crate) dead_letters: BTreeMap<DedupId, InboxDeadLetterRow>,
    pub(crate) members: BTreeMap<Uuid, MemberRow>,
    pub(crate) lanes: BTreeMap<Lane, LaneRow>,
    pub(crate) replays: BTreeMap<u32, ReplayRow>,
    /// The last queue number. Numbers increase, and a message keeps its number.
    last_ordinal: i64,
}

/// The state of one message.
#[derive(Clone, Debug)]
pub(crate) struct InboxRow {
    pub(crate) state: Known,
    pub(crate) arrived_at: Micros,
    pub(crate) changed_at: Micros,
    pub(crate) unfinished_starts: u32,
    /// The token and the expiry of the running call, while the state is `calling`.
    pub(crate) claim: Option<(Uuid, Micros)>,
}

/// A queue of the retry table. It may be empty while it is claimed or waits for an operator.
#[derive(Clone, Debug)]
pub(crate) struct RetryQueue {
    pub(crate) messages: BTreeMap<i64, QueuedRow>,
    pub(crate) due_at: Micros,
    pub(crate) claim: Option<(Uuid, Micros)>,
    /// The dead letters because of which it waits for an operator.
    pub(crate) blocked_by: BTreeSet<DedupId>,
}

/// A message of a queue, with its counters.
#[derive(Clone, Debug)]
pub(crate) struct QueuedRow {
    pub(crate) message: InboxMessage,
    pub(crate) unfinished_starts: u32,
    pub(crate) error: String,
    /// The earliest time of the next attempt, set after a failure or a redrive with a rate.
    pub(crate) not_before: Micros,
}

/// A dead-lettered message.
#[derive(Clone, Debug)]
pub(crate) struct InboxDeadLetterRow {
    pub(crate) message: InboxMessage,
    /// Its number in the queue. A redrive puts it back there.
    pub(crate) ordinal: i64,
    pub(crate) class: &'static str,
    pub(crate) error: String,
    pub(crate) backtrace: Option<String>,
    pub(crate) arrived_at: Micros,
    pub(crate) dead_at: Micros,
    pub(crate) redrives: u32,
    pub(crate) state: DeadLetterState,
    pub(crate) mark: Option<Mark>,
}

/// A process that has sent a heartbeat.
#[derive(Clone, Debug)]
pub(crate) struct MemberRow {
    pub(crate) name: String,
    pub(crate) heartbeat_at: Micros,
    pub(crate) expires_at: Micros,
    pub(crate) last_message_at: Option<jiff::Timestamp>,
}

/// The owner of a lane and the operator commands for it.
#[derive(Clone, Debug)]
pub(crate) struct LaneRow {
    /// `None` if it was released.
    pub(crate) owner: Option<Uuid>,
    pub(crate) epoch: i64,
    pub(crate) settled_offset: Option<u64>,
    pub(crate) paused: bool,
    pub(crate) breaker: Option<String>,
    pub(crate) breaker_override: Option<bool>,
}

/// A replay.
#[derive(Clone, Debug)]
pub(crate) struct ReplayRow {
    pub(crate) plan: ReplayPlan,
    pub(crate) state: ReplayState,
    pub(crate) enqueued: u64,
    pub(crate) cursor: Option<String>,
    /// The added messages, with the reader's position before them.
    pub(crate) batches: Vec<(Option<String>, Vec<DedupId>)>,
    pub(crate) started_at: Micros,
}

impl InboxRow {
    /// Whether the running call belongs to this claim. The claim may have expired.
    pub(crate) fn is_claimed_by(&self, claim: CallClaim) -> bool {
        self.state == Known::Calling && self.claim.is_some_and(|(token, _)| token == claim.token)
    }

    /// The effective state: an expired call counts as a start without an end.
    pub(crate) fn state(&self, now: Micros) -> Known {
        let expired = self.claim.is_none_or(|(_, until)| until <= now);
        if self.state == Known::Calling && expired { Known::Started } else { self.state }
    }
}

impl RetryQueue {
    /// Creates an empty queue with this time of its next attempt.
    pub(crate) const fn new(due_at: Micros) -> Self {
        Self { messages: BTreeMap::new(), due_at, claim: None, blocked_by: BTreeSet::new() }
    }

    /// Whether this token holds the claim. The claim may have expired.
    pub(crate) fn is_claimed_by(&self, token: Uuid) -> bool {
        self.claim.is_some_and(|(claimed, _)| claimed == token)
    }

    /// Whether any member holds a valid claim.
    pub(crate) fn is_claimed(&self, now: Micros) -> bool {
        self.claim.is_some_and(|(_, until)| until > now)
    }

    /// The earliest time for the first message.
    pub(crate) fn not_before(&self) -> Micros {
        self.messages.values().next().map_or(0, |first| first.not_before)
    }

    /// The number of the first remaining message.
    pub(crate) fn first(&self) -> Option<i64> {
        self.messages.first_key_value().map(|(number, _)| *number)
    }
}

impl QueuedRow {
    /// A message that was not started.
    pub(crate) const fn new(message: InboxMessage) -> Self {
        Self { message, unfinished_starts: 0, error: String::new(), not_before: 0 }
    }
}

impl ConsumerTables {
    /// Whether this member still owns the lane in this epoch.
    pub(crate) fn holds_lease(&self, lease: Option<&LaneLease>) -> bool {
        lease.is_none_or(|lease| {
            self.lanes.get(&lease.lane).is_some_and(|row| row.epoch == lease.epoch && row.owner == Some(lease.owner))
        })
    }

    /// Sets the state of a message and ends its claim. Creates the row if it is missing.
    pub(crate) fn set_state(&mut self, dedup_id: DedupId, state: Known, now: Micros) -> &mut InboxRow {
        let new_row = || InboxRow { state, arrived_at: now, changed_at: now, unfinished_starts: 0, claim: None };
        let row = self.rows.entry(dedup_id).or_insert_with(new_row);
        row.state = state;
        row.changed_at = now;
        row.claim = None;
        row
    }

    /// Appends a message to its queue. Creates the queue if it is missing.
    pub(crate) fn append(&mut self, waiting: QueuedRow, next: Micros) {
        let number = self.next_ordinal();
        let queue = self.queues.entry(waiting.message.queue.clone()).or_insert_with(|| RetryQueue::new(next));
        queue.messages.insert(number, waiting);
    }

    /// The next queue number.
    pub(crate) const fn next_ordinal(&mut self) -> i64 {
        self.last_ordinal += 1;
        self.last_ordinal
    }

    /// Dead-letters the message with this number. If it was redriven and failed again, its existing dead letter becomes
    /// pending again.
    pub(crate) fn dead_letter(&mut self, number: i64, message: &InboxMessage, failure: &InboxFailure, now: Micros) {
        let arrived_at = self.set_state(message.dedup_id, Known::Dead, now).arrived_at;
        let before = self.dead_letters.remove(&message.dedup_id);
        let row = InboxDeadLetterRow {
            message: InboxMessage { attempts: failure.attempts, ..message.clone() },
            ordinal: number,
            class: failure.class,
            error: failure.error.clone(),
            backtrace: failure.backtrace.clone(),
            arrived_at,
            dead_at: now,
            redrives: before.as_ref().map_or(0, |row| row.redrives),
            state: DeadLetterState::Dead,
            mark: before.and_then(|row| row.mark),
        };
        self.dead_letters.insert(message.dedup_id, row);
    }
}
