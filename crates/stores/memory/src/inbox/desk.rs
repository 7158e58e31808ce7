//! The tables of one consumer's inbox.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytestring::ByteString;
use relevo_core::consume::Lane;
use relevo_core::inbox::operate::{Fate, Plan, ReplayState};
use relevo_core::inbox::{Arrival, Claim, Entry, Held, Setback, State as Known};
use uuid::Uuid;

use crate::state::Micros;

/// The tables of one consumer.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    pub(crate) paused: bool,
    /// When an operator removed the consumer's members. A heartbeat resets it to `None`.
    pub(crate) forgotten: Option<Micros>,
    /// The retention of the last pruning.
    pub(crate) remembers: Option<Duration>,
    pub(crate) rows: BTreeMap<Entry, Row>,
    /// The retry table.
    pub(crate) queues: BTreeMap<ByteString, Queue>,
    pub(crate) letters: BTreeMap<Entry, Letter>,
    pub(crate) traces: BTreeMap<Entry, Trace>,
    pub(crate) members: BTreeMap<Uuid, Member>,
    pub(crate) lanes: BTreeMap<Lane, LaneRow>,
    pub(crate) replays: BTreeMap<u32, Replay>,
    /// The last queue number. Numbers increase, and a message keeps its number.
    last: i64,
}

/// The state of one message.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) state: Known,
    pub(crate) arrived: Micros,
    pub(crate) changed: Micros,
    pub(crate) started: u32,
    /// The token and the expiry of the running call, while the state is `calling`.
    pub(crate) claim: Option<(Uuid, Micros)>,
}

/// A queue of the retry table. It may be empty while it is claimed or waits for an operator.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) messages: BTreeMap<i64, Waiting>,
    pub(crate) next: Micros,
    pub(crate) claim: Option<(Uuid, Micros)>,
    /// The dead letters because of which it waits for an operator.
    pub(crate) held: BTreeSet<Entry>,
}

/// A message of a queue, with its counters.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) arrival: Arrival,
    pub(crate) attempts: u32,
    pub(crate) started: u32,
    pub(crate) error: String,
    /// The earliest time of the next attempt, set after a failure or a redrive with a rate.
    pub(crate) not_before: Micros,
}

/// A dead-lettered message.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(crate) arrival: Arrival,
    /// Its number in the queue. A redrive puts it back there.
    pub(crate) number: i64,
    pub(crate) class: &'static str,
    pub(crate) error: String,
    pub(crate) backtrace: Option<String>,
    pub(crate) attempts: u32,
    pub(crate) arrived: Micros,
    pub(crate) dead: Micros,
    pub(crate) redriven: u32,
    pub(crate) fate: Fate,
    pub(crate) marked: Micros,
    pub(crate) note: Option<String>,
}

/// What a consumer did with a message, for operators.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) arrival: Arrival,
    pub(crate) state: Known,
    pub(crate) repeats: u32,
    pub(crate) at: Micros,
}

/// A process that has sent a heartbeat.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) beat: Micros,
    pub(crate) until: Micros,
    pub(crate) last_message_at: Option<jiff::Timestamp>,
}

/// The owner of a lane and the operator commands for it.
#[derive(Clone, Debug)]
pub(crate) struct LaneRow {
    /// `None` if it was released.
    pub(crate) owner: Option<Uuid>,
    pub(crate) epoch: i64,
    pub(crate) mark: Option<u64>,
    pub(crate) paused: bool,
    pub(crate) breaker: Option<String>,
    pub(crate) forced: Option<bool>,
}

/// A replay.
#[derive(Clone, Debug)]
pub(crate) struct Replay {
    pub(crate) plan: Plan,
    pub(crate) state: ReplayState,
    pub(crate) fed: u64,
    pub(crate) cursor: Option<String>,
    /// The added messages, with the reader's position before them.
    pub(crate) portions: Vec<(Option<String>, Vec<Entry>)>,
    pub(crate) began: Micros,
}

impl Row {
    /// Whether the running call belongs to this claim. The claim may have expired.
    pub(crate) fn is_claimed_by(&self, claim: Claim) -> bool {
        self.state == Known::Calling && self.claim.is_some_and(|(token, _)| token == claim.token)
    }

    /// The effective state: an expired call counts as a start without an end.
    pub(crate) fn state(&self, now: Micros) -> Known {
        let over = self.claim.is_none_or(|(_, until)| until <= now);
        if self.state == Known::Calling && over { Known::Open } else { self.state }
    }
}

impl Queue {
    /// Creates an empty queue with this time of its next attempt.
    pub(crate) const fn new(next: Micros) -> Self {
        Self { messages: BTreeMap::new(), next, claim: None, held: BTreeSet::new() }
    }

    /// Whether this token holds the claim. The claim may have expired.
    pub(crate) fn is_claimed_by(&self, token: Uuid) -> bool {
        self.claim.is_some_and(|(claimed, _)| claimed == token)
    }

    /// Whether any member holds a valid claim.
    pub(crate) fn is_claimed(&self, now: Micros) -> bool {
        self.claim.is_some_and(|(_, until)| until > now)
    }

    /// The earliest time for the first message, whatever the queue waited for.
    pub(crate) fn not_before(&self) -> Micros {
        self.messages.values().next().map_or(0, |first| first.not_before)
    }

    /// The number of the first remaining message.
    pub(crate) fn first(&self) -> Option<i64> {
        self.messages.first_key_value().map(|(number, _)| *number)
    }
}

impl Waiting {
    /// Creates a message without attempts.
    pub(crate) const fn fresh(arrival: Arrival) -> Self {
        Self { arrival, attempts: 0, started: 0, error: String::new(), not_before: 0 }
    }
}

impl Desk {
    /// Whether this member still owns the lane in this epoch.
    pub(crate) fn holds(&self, held: Option<&Held>) -> bool {
        held.is_none_or(|held| {
            self.lanes.get(&held.lane).is_some_and(|row| row.epoch == held.epoch && row.owner == Some(held.owner))
        })
    }

    /// Sets the state of a message and ends its claim. Creates the row if it is missing.
    pub(crate) fn know(&mut self, entry: Entry, state: Known, now: Micros) -> &mut Row {
        let fresh = || Row { state, arrived: now, changed: now, started: 0, claim: None };
        let row = self.rows.entry(entry).or_insert_with(fresh);
        row.state = state;
        row.changed = now;
        row.claim = None;
        row
    }

    /// Records the state of a message, if traces are written.
    pub(crate) fn trace(&mut self, traced: bool, arrival: &Arrival, state: Known, now: Micros) {
        if traced {
            let fresh = || Trace { arrival: arrival.clone(), state, repeats: 0, at: now };
            let trace = self.traces.entry(arrival.entry).or_insert_with(fresh);
            trace.state = state;
            trace.at = now;
        }
    }

    /// Counts a repeat of a traced message.
    pub(crate) fn trace_repeat(&mut self, traced: bool, entry: Entry) {
        if let Some(trace) = self.traces.get_mut(&entry).filter(|_| traced) {
            trace.repeats += 1;
        }
    }

    /// Appends a message to its queue. Creates the queue if it is missing.
    pub(crate) fn append(&mut self, waiting: Waiting, next: Micros) {
        let number = self.number();
        let queue = self.queues.entry(waiting.arrival.queue.clone()).or_insert_with(|| Queue::new(next));
        queue.messages.insert(number, waiting);
    }

    /// The next queue number.
    pub(crate) const fn number(&mut self) -> i64 {
        self.last += 1;
        self.last
    }

    /// Dead-letters the message with this number. If it was redriven and failed again, its existing dead letter becomes
    /// pending again.
    pub(crate) fn bury(&mut self, number: i64, arrival: &Arrival, setback: &Setback, now: Micros) {
        let arrived = self.know(arrival.entry, Known::Dead, now).arrived;
        let before = self.letters.remove(&arrival.entry);
        let letter = Letter {
            arrival: arrival.clone(),
            number,
            class: setback.class,
            error: setback.error.clone(),
            backtrace: setback.backtrace.clone(),
            attempts: setback.attempts,
            arrived,
            dead: now,
            redriven: before.as_ref().map_or(0, |letter| letter.redriven),
            fate: Fate::Pending,
            marked: now,
            note: before.and_then(|letter| letter.note),
        };
        self.letters.insert(arrival.entry, letter);
    }
}
