//! What operators see of consumers and do with them.

use std::time::Duration;

use async_trait::async_trait;
use bytestring::ByteString;
use jiff::Timestamp;

use super::{Arrival, Entry, State};
use crate::message::MessageId;
use crate::store::StoreError;

/// A consumer in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// Its name.
    pub name: String,
    /// A person paused the whole of it.
    pub paused: bool,
    /// Its living members.
    pub members: u32,
    /// When one of its members was last heard of.
    pub beat_at: Option<Timestamp>,
    /// When one of its members last took a message.
    pub last_message_at: Option<Timestamp>,
    /// Messages in its retry table, counted up to 10 000.
    pub waiting: u64,
    /// Dead letters that wait for a person, counted up to 10 000.
    pub dead: u64,
    /// How long its inbox remembers what was handled: what it was last pruned with. `None` if it never was.
    pub remembers: Option<Duration>,
}

/// A process that works for a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// For people.
    pub name: String,
    /// Whether it counts as alive.
    pub alive: bool,
    /// When it was last heard of.
    pub beat_at: Timestamp,
    /// When it last took a message.
    pub last_message_at: Option<Timestamp>,
}

/// A lane of a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Its name.
    pub name: String,
    /// The member that has it, by name.
    pub owner: Option<String>,
    /// Rises with every change of owner.
    pub epoch: i64,
    /// Everything up to this number of the broker's was settled when it was last written.
    pub mark: Option<u64>,
    /// A person paused it.
    pub paused: bool,
    /// Its breaker is open, and why.
    pub breaker: Option<String>,
    /// A person opened (`true`) or closed its breaker by force.
    pub forced: Option<bool>,
}

/// A queue of the retry table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The key, or the id of a message whose consumer keeps no order.
    pub queue: ByteString,
    /// The first message.
    pub head: Entry,
    /// How many messages wait in it.
    pub length: u64,
    /// Counted attempts of the first one.
    pub attempts: u32,
    /// When it is tried next; `None` if it waits for a person.
    pub next_attempt_at: Option<Timestamp>,
    /// Why the first one waits.
    pub error: String,
}

/// One consumer, with all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The line of the list.
    pub consumer: Consumer,
    /// Its members, living ones first.
    pub members: Vec<Member>,
    /// Its lanes.
    pub lanes: Vec<Lane>,
    /// The first queues of its retry table, by the time of their next attempt.
    pub queues: Vec<Queue>,
}

/// What a person orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Take nothing more.
    Pause,
    /// Go on.
    Resume,
    /// Count the far side as away.
    OpenBreaker,
    /// Count the far side as reachable.
    CloseBreaker,
    /// Let the breaker decide by itself again.
    FreeBreaker,
}

/// What became of a consumer that was to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// Nobody works for it, and nobody is remembered who did.
    Gone,
    /// Somebody works for it. Nothing was changed.
    Alive,
    /// There is none of that name.
    Unknown,
}

/// What became of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// It waits for a person.
    Pending,
    /// It was redriven.
    Replayed,
    /// A person put it aside.
    Archived,
}

impl Fate {
    /// Every fate.
    pub const ALL: [Self; 3] = [Self::Pending, Self::Replayed, Self::Archived];

    /// The word that SQL, JSON and people see.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pending => "dead",
            Self::Replayed => "redriven",
            Self::Archived => "discarded",
        }
    }

    /// The fate of this word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fate| fate.word() == word)
    }
}

/// A message that a consumer gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The consumer.
    pub consumer: String,
    /// The message, its bytes and headers as they came.
    pub arrival: Arrival,
    /// A word for what kind of error it was.
    pub class: String,
    /// The error.
    pub error: String,
    /// Where it happened, if the handler panicked.
    pub backtrace: Option<String>,
    /// Counted attempts.
    pub attempts: u32,
    /// When it first arrived here.
    pub arrived_at: Timestamp,
    /// When it was given up; if it was redriven and failed again, the last time.
    pub dead_at: Timestamp,
    /// How often it was redriven.
    pub redriven: u32,
    /// What became of it.
    pub fate: Fate,
    /// What people wrote to it.
    pub note: Option<String>,
}

/// Which dead letters are meant; everything that is set must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFilter {
    /// Of this consumer.
    pub consumer: Option<String>,
    /// Only these ids, if there are any.
    pub ids: Vec<MessageId>,
    /// Of this queue: the key, for a consumer that keeps order.
    pub queue: Option<String>,
    /// With an error of this kind.
    pub class: Option<String>,
    /// With this fate.
    pub fate: Option<Fate>,
    /// Given up at this time or later.
    pub since: Option<Timestamp>,
    /// Given up before this time.
    pub until: Option<Timestamp>,
}

/// What is to be done with dead letters, by whom, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Which ones. Only those that are pending are touched.
    pub filter: DeadFilter,
    /// Only tells what would be done.
    pub dry_run: bool,
    /// So many a second are tried; all at once without it.
    pub rate: Option<u32>,
    /// Who asks.
    pub by: String,
    /// Why; it is kept with the dead letter.
    pub note: String,
}

/// What a consumer did with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The consumer.
    pub consumer: String,
    /// The message.
    pub entry: Entry,
    /// What it counts as: `processed`, `skipped`, `dead`, or `waiting` while it does.
    pub state: State,
    /// How often it came again and was not handled.
    pub repeats: u32,
    /// Where it was published to.
    pub address: String,
    /// Which lane it came through.
    pub lane: String,
    /// Its number at the broker.
    pub place: Option<u64>,
    /// What joins it with others.
    pub correlation: Option<String>,
    /// When it was entered, or last changed.
    pub at: Timestamp,
}

/// What an inbox knows of a message, whether paths are traced or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The consumer.
    pub consumer: String,
    /// The message.
    pub entry: Entry,
    /// What it counts as.
    pub state: State,
    /// How often handling was begun that has not ended.
    pub started: u32,
    /// When it was entered, or last changed; `None` of one that waits or is dead, where the store does not tell.
    pub at: Option<Timestamp>,
}

/// What is replayed on purpose, to one consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The consumer.
    pub consumer: String,
    /// Where messages are read from and which ones, in words that only the reader understands.
    pub source: String,
    /// How many messages it has.
    pub count: u64,
    /// So many a second at most.
    pub rate: u32,
    /// It stops by itself after so many new dead letters.
    pub dead_max: u64,
    /// Who asks.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// How a replay stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayState {
    /// Messages are being fed.
    Running,
    /// Everything was fed.
    Finished,
    /// A person, or its stop condition, stopped it.
    Stopped,
}

impl ReplayState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Running, Self::Finished, Self::Stopped];

    /// The word that SQL, JSON and people see.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
        }
    }

    /// The state of this word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

/// A replay, as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Its number, above zero; the messages are entered under it.
    pub number: u32,
    /// What it does.
    pub plan: Plan,
    /// How it stands.
    pub state: ReplayState,
    /// Messages fed so far.
    pub fed: u64,
    /// Of those, how many were handled or skipped.
    pub done: u64,
    /// Of those, how many are dead letters.
    pub dead: u64,
    /// Of those, how many could be handled now: they wait for nobody and for no time. Counted up to 100 000.
    pub ready: u64,
    /// Where the reader goes on.
    pub cursor: Option<String>,
    /// When it began.
    pub began_at: Timestamp,
}

impl Replay {
    /// How many of the messages that were fed wait, for whatever it is.
    pub const fn waiting(&self) -> u64 {
        self.fed.saturating_sub(self.done + self.dead)
    }
}

/// Messages that a reader took from a log, in their order, and how far it has come with them.
#[derive(Clone, Copy, Debug)]
pub struct Portion<'a> {
    /// The messages.
    pub messages: &'a [Arrival],
    /// Where the reader began; the replay must stand there. `None` at the very beginning.
    pub from: Option<&'a str>,
    /// Where it goes on; `None` if it has read everything.
    pub to: Option<&'a str>,
}

/// The answer to a portion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fed {
    /// Its messages wait in the retry table, and the replay stands where it ends.
    Kept,
    /// Another reader has moved the replay. Nothing was changed.
    Moved,
    /// The replay does not run. Nothing was changed, unless this was what stopped it.
    Ended,
}

/// What operators do with consumers.
#[async_trait]
pub trait Operate: Send + Sync {
    /// Every consumer that was ever heard of. One that was forgotten is told only while something of it waits or is dead, and again
    /// once it gave a sign of life, or handled something.
    async fn consumers(&self) -> Result<Vec<Consumer>, StoreError>;

    /// One consumer, with the first `limit` queues of its retry table; `None` if nobody heard of it.
    async fn consumer(&self, name: &str, limit: usize) -> Result<Option<Shown>, StoreError>;

    /// Orders something of a consumer, or of one of its lanes. `false` if there is none of that name.
    async fn order(&self, consumer: &str, lane: Option<&str>, order: Order) -> Result<bool, StoreError>;

    /// Forgets who worked for a consumer: its members, its lanes with their marks, and what people ordered of them. What it handled,
    /// what waits, dead letters, traces and replays stay: if it comes back, it goes on as if it had slept. While a member is alive, or
    /// has a transaction open in one of the lanes, nothing is changed; one that gives a sign of life at the same moment does so
    /// before this, which then changes nothing, or after it.
    async fn forget(&self, consumer: &str) -> Result<Forgotten, StoreError>;

    /// Dead letters, oldest first.
    async fn dead(&self, filter: &DeadFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError>;

    /// Reopens dead letters, those of a queue in their order and in front of what waits behind them; says how many. A second
    /// call reopens nothing.
    async fn redrive(&self, mark: &Mark) -> Result<u64, StoreError>;

    /// Puts dead letters aside; says how many. A queue that waited for one goes on.
    async fn archive(&self, mark: &Mark) -> Result<u64, StoreError>;

    /// What consumers did with a message.
    async fn trace(&self, id: MessageId) -> Result<Vec<Trace>, StoreError>;

    /// What the inboxes of all consumers know of a message, by consumer and replay.
    async fn known(&self, id: MessageId) -> Result<Vec<Known>, StoreError>;

    /// Begins a replay; says its number.
    async fn begin_replay(&self, plan: &Plan) -> Result<u32, StoreError>;

    /// Puts messages into the consumer's retry table under the replay's number, and notes where the reader goes on, or that it
    /// has read everything. Of two readers that stand at the same place one feeds. A message that was fed before is not fed
    /// again. A replay that has as many dead letters as its plan allows is stopped instead.
    async fn feed(&self, consumer: &str, number: u32, portion: Portion<'_>) -> Result<Fed, StoreError>;

    /// Stops a replay; what of it waits in the retry table and was not begun is taken out, and the reader goes on before the
    /// first of it, should the replay be resumed. `false` if it did not run.
    async fn stop_replay(&self, consumer: &str, number: u32) -> Result<bool, StoreError>;

    /// Lets a stopped replay run again, until it has so many dead letters more than now. `false` if it was not stopped.
    async fn resume_replay(&self, consumer: &str, number: u32, dead_more: u64) -> Result<bool, StoreError>;

    /// The replays of a consumer, newest first.
    async fn replays(&self, consumer: &str) -> Result<Vec<Replay>, StoreError>;
}
