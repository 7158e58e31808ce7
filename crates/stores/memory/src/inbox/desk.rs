//! What one consumer's inbox remembers: the tables of a database, for one consumer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytestring::ByteString;
use relevo_core::consume::Lane;
use relevo_core::inbox::operate::{Fate, Plan, ReplayState};
use relevo_core::inbox::{Arrival, Claim, Entry, Held, Setback, State as Known};
use uuid::Uuid;

use crate::state::Micros;

/// One consumer's tables.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    pub(crate) paused: bool,
    /// Since when nobody works for it, if a person said that nobody will.
    pub(crate) forgotten: Option<Micros>,
    /// What it was last pruned with.
    pub(crate) remembers: Option<Duration>,
    pub(crate) rows: BTreeMap<Entry, Row>,
    /// The retry table.
    pub(crate) queues: BTreeMap<ByteString, Queue>,
    pub(crate) letters: BTreeMap<Entry, Letter>,
    pub(crate) traces: BTreeMap<Entry, Trace>,
    pub(crate) members: BTreeMap<Uuid, Member>,
    pub(crate) lanes: BTreeMap<Lane, LaneRow>,
    pub(crate) replays: BTreeMap<u32, Replay>,
    /// The last number given to a message of a queue. Numbers rise, and a message keeps its own for good.
    last: i64,
}

/// What is known of one message.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) state: Known,
    pub(crate) arrived: Micros,
    pub(crate) changed: Micros,
    pub(crate) started: u32,
    /// Whose call may run, and until when, while the state is `calling`.
    pub(crate) claim: Option<(Uuid, Micros)>,
}

/// A queue of the retry table. It may be empty while it is claimed, and while it waits for a person.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) messages: BTreeMap<i64, Waiting>,
    pub(crate) next: Micros,
    pub(crate) claim: Option<(Uuid, Micros)>,
    /// The dead letters for whose sake it waits for a person.
    pub(crate) held: BTreeSet<Entry>,
}

/// A message of a queue, with what is counted of it.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) arrival: Arrival,
    pub(crate) attempts: u32,
    pub(crate) started: u32,
    pub(crate) error: String,
    /// Before then it is not tried: it failed, or was redriven at a rate.
    pub(crate) not_before: Micros,
}

/// A message that was given up.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(crate) arrival: Arrival,
    /// Its place among the messages of its queue, which it goes back to.
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

/// What became of a message, for people.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) arrival: Arrival,
    pub(crate) state: Known,
    pub(crate) repeats: u32,
    pub(crate) at: Micros,
}

/// A process that said that it is alive.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) beat: Micros,
    pub(crate) until: Micros,
    pub(crate) last_message_at: Option<jiff::Timestamp>,
}

/// Who has a lane, and what people ordered of it.
#[derive(Clone, Debug)]
pub(crate) struct LaneRow {
    /// `None` if it was given back.
    pub(crate) owner: Option<Uuid>,
    pub(crate) epoch: i64,
    pub(crate) mark: Option<u64>,
    pub(crate) paused: bool,
    pub(crate) breaker: Option<String>,
    pub(crate) forced: Option<bool>,
}

/// A replay on purpose.
#[derive(Clone, Debug)]
pub(crate) struct Replay {
    pub(crate) plan: Plan,
    pub(crate) state: ReplayState,
    pub(crate) fed: u64,
    pub(crate) cursor: Option<String>,
    /// What was fed, and where the reader stood then.
    pub(crate) portions: Vec<(Option<String>, Vec<Entry>)>,
    pub(crate) began: Micros,
}

impl Row {
    /// Whether the call that may run is the one of this claim; the claim may have expired.
    pub(crate) fn is_claimed_by(&self, claim: Claim) -> bool {
        self.state == Known::Calling && self.claim.is_some_and(|(token, _)| token == claim.token)
    }

    /// What it counts as: a call whose time is over is one that was only begun.
    pub(crate) fn state(&self, now: Micros) -> Known {
        let over = self.claim.is_none_or(|(_, until)| until <= now);
        if self.state == Known::Calling && over { Known::Open } else { self.state }
    }
}

impl Queue {
    /// An empty queue that is tried at this time.
    pub(crate) const fn new(next: Micros) -> Self {
        Self { messages: BTreeMap::new(), next, claim: None, held: BTreeSet::new() }
    }

    /// Whether the claim is this one; it may have expired.
    pub(crate) fn is_claimed_by(&self, token: Uuid) -> bool {
        self.claim.is_some_and(|(claimed, _)| claimed == token)
    }

    /// Whether anybody's claim still lasts.
    pub(crate) fn is_claimed(&self, now: Micros) -> bool {
        self.claim.is_some_and(|(_, until)| until > now)
    }

    /// Since when its first message may be tried, whatever its queue waited for.
    pub(crate) fn not_before(&self) -> Micros {
        self.messages.values().next().map_or(0, |first| first.not_before)
    }

    /// The number of the first message that is left.
    pub(crate) fn first(&self) -> Option<i64> {
        self.messages.first_key_value().map(|(number, _)| *number)
    }
}

impl Waiting {
    /// A message of which nothing is counted yet.
    pub(crate) const fn fresh(arrival: Arrival) -> Self {
        Self { arrival, attempts: 0, started: 0, error: String::new(), not_before: 0 }
    }
}

impl Desk {
    /// Whether the lane is still this member's, in this epoch.
    pub(crate) fn holds(&self, held: Option<&Held>) -> bool {
        held.is_none_or(|held| {
            self.lanes.get(&held.lane).is_some_and(|row| row.epoch == held.epoch && row.owner == Some(held.owner))
        })
    }

    /// Changes what is known of a message; its row is made if there is none. Whatever claim it had has ended.
    pub(crate) fn know(&mut self, entry: Entry, state: Known, now: Micros) -> &mut Row {
        let fresh = || Row { state, arrived: now, changed: now, started: 0, claim: None };
        let row = self.rows.entry(entry).or_insert_with(fresh);
        row.state = state;
        row.changed = now;
        row.claim = None;
        row
    }

    /// Notes what became of a message, if paths are traced.
    pub(crate) fn trace(&mut self, traced: bool, arrival: &Arrival, state: Known, now: Micros) {
        if traced {
            let fresh = || Trace { arrival: arrival.clone(), state, repeats: 0, at: now };
            let trace = self.traces.entry(arrival.entry).or_insert_with(fresh);
            trace.state = state;
            trace.at = now;
        }
    }

    /// Counts a repeat of a message that is traced.
    pub(crate) fn trace_repeat(&mut self, traced: bool, entry: Entry) {
        if let Some(trace) = self.traces.get_mut(&entry).filter(|_| traced) {
            trace.repeats += 1;
        }
    }

    /// Puts a message at the end of its queue, which is made if there is none.
    pub(crate) fn append(&mut self, waiting: Waiting, next: Micros) {
        let number = self.number();
        let queue = self.queues.entry(waiting.arrival.queue.clone()).or_insert_with(|| Queue::new(next));
        queue.messages.insert(number, waiting);
    }

    /// A number behind all others.
    pub(crate) const fn number(&mut self) -> i64 {
        self.last += 1;
        self.last
    }

    /// Makes a dead letter of the message that has this number; one that was redriven and failed again has a letter, which is
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
