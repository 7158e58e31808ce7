//! The port to the database from the receiver's side: what makes a handler's effect happen once.
//!
//! A consumer is a name; any number of processes, its *members*, work under it. An inbox keeps one row for each
//! (consumer, message id, replay). The row, the handler's effect, what it emits and its verdict commit together. A message
//! that cannot be handled now waits in a *queue* of the retry table, with those of its key behind it.

pub mod horizon;
pub mod identity;
pub mod operate;
pub mod retries;
pub mod source;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytestring::ByteString;
use jiff::Timestamp;
use uuid::Uuid;

use crate::consume::{Lane, Raw};
use crate::message::MessageId;
use crate::store::StoreError;

/// What names a message in one consumer's inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// The same in every repeat of the message.
    pub id: MessageId,
    /// Zero, but for messages that are handled again on purpose. It has nothing to do with any lease's epoch.
    pub replay: u32,
}

/// A message that arrived, with all that a dead letter keeps of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// What names it.
    pub entry: Entry,
    /// What it waits in if it cannot be handled now: its key for a consumer that keeps order, its id for one that does
    /// not.
    pub queue: ByteString,
    /// What arrived, exactly.
    pub raw: Raw,
    /// Where it was published to.
    pub address: Arc<str>,
    /// Which lane it came through.
    pub lane: Lane,
    /// Its number at the broker, where that has one.
    pub place: Option<u64>,
    /// What joins it with the messages that it was caused by.
    pub correlation: Option<ByteString>,
}

/// The right to handle the messages of one lane, for a consumer that keeps order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which lane.
    pub lane: Lane,
    /// Rises with every change of owner.
    pub epoch: i64,
    /// The member that has it.
    pub owner: Uuid,
}

/// What an inbox knows of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Its handling was begun and has not ended: it may have taken the process down.
    Open,
    /// A call to the far side is made for it, outside of any transaction.
    Calling,
    /// It waits in the retry table.
    Waiting,
    /// Handled.
    Done,
    /// Its handler wanted nothing of it.
    Skipped,
    /// Given up.
    Dead,
    /// A person took it out of the dead letters, and it waits in the retry table.
    Reopened,
}

impl State {
    /// Every state, in the order of a message's way.
    pub const ALL: [Self; 7] =
        [Self::Open, Self::Calling, Self::Waiting, Self::Done, Self::Skipped, Self::Dead, Self::Reopened];

    /// The word that SQL, JSON and people see.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Open => "started",
            Self::Calling => "calling",
            Self::Waiting => "waiting",
            Self::Done => "done",
            Self::Skipped => "skipped",
            Self::Dead => "dead",
            Self::Reopened => "redriven",
        }
    }

    /// The state of this word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

/// What is to be entered into the inbox.
#[derive(Clone, Copy, Debug)]
pub struct Enter<'a> {
    /// The lane that they came through, if the consumer keeps order. They are of this one.
    pub held: Option<&'a Held>,
    /// The messages, in the order in which they came.
    pub arrivals: &'a [Arrival],
}

/// What became of one message that was to be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// Handle it: if the transaction commits, it is done.
    New,
    /// It came before; nothing is to be done but to acknowledge it.
    Repeat(State),
    /// Its queue waits in the retry table. If the transaction commits, it is there too, behind the others.
    Behind,
}

/// A transaction that a handler can work in, or why there is none.
#[derive(Debug)]
pub enum Begun<T> {
    /// The transaction, and what became of each message, in order.
    Open(T, Vec<Entered>),
    /// The lane, or the claim, is another's now. Nothing was changed.
    Lost,
    /// Another worker has one of the messages, or its queue, in an open transaction. Nothing was changed; it is no
    /// attempt, only a delay.
    Busy,
}

/// The right to call the far side for one message, until it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Random for each claim.
    pub token: Uuid,
    /// How often the message's handling was begun, this time included.
    pub started: u32,
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// Call.
    Mine(Claim),
    /// It came before; nothing is to be done but to acknowledge it.
    Repeat(State),
    /// Its queue waits in the retry table, and so does it now.
    Behind,
    /// Another worker's call may still run, for so long at most.
    Busy(Duration),
    /// The lane is another's now. Nothing was changed.
    Lost,
}

/// What happens to a message that was not handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It waits in the retry table, with those of its queue behind it.
    Retry {
        /// From now, on the database's clock.
        after: Duration,
    },
    /// It was not tried: it waits in its queue as it did, and how often its handling was begun before counts on.
    Wait {
        /// From now, on the database's clock.
        after: Duration,
    },
    /// Given up, and its queue waits for a person.
    DeadHold,
    /// Given up, and its queue goes on.
    DeadContinue,
}

/// A message that was not handled, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setback {
    /// What happens to it.
    pub stop: Stop,
    /// Counted attempts so far.
    pub attempts: u32,
    /// A word for what kind of error it was.
    pub class: &'static str,
    /// The error, for people.
    pub error: String,
    /// Where it happened, if the handler panicked.
    pub backtrace: Option<String>,
}

/// The answer to a setback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It waits, or is a dead letter: it can be acknowledged.
    Kept,
    /// It came before and ended meanwhile: it can be acknowledged.
    Repeat(State),
    /// The lane, or the claim, is another's now. Nothing was changed.
    Lost,
    /// Another worker has it in an open transaction, or its call may still run. Nothing was changed.
    Busy,
}

/// A queue of the retry table whose time has come, claimed for one member.
#[derive(Clone, Debug)]
pub struct Due {
    /// Which queue.
    pub queue: ByteString,
    /// The claim. Every call about the queue says it; once it has expired another member may have the queue.
    pub token: Uuid,
    /// The first messages in order. None is left of a queue that only has to be released.
    pub messages: Vec<Waiting>,
}

/// A message of a claimed queue, with what is counted of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its number in the queue.
    pub number: i64,
    /// The message.
    pub arrival: Arrival,
    /// Counted attempts.
    pub attempts: u32,
    /// How often its handling was begun and did not end; of the first message, this time included.
    pub started: u32,
    /// Whether a person took it out of the dead letters: its age counts no more.
    pub reopened: bool,
}

/// What a member says of itself.
#[derive(Clone, Debug)]
pub struct Beat {
    /// Random for each process.
    pub owner: Uuid,
    /// For people.
    pub name: String,
    /// How long it counts as alive from now.
    pub lasts: Duration,
    /// The lanes that it holds, with how far each has come at the broker: everything up to there is settled.
    pub marks: Vec<(Lane, Option<u64>)>,
    /// When it last took a message.
    pub last_message_at: Option<Timestamp>,
    /// Lanes whose breaker is open, each with why.
    pub breakers: Vec<(Lane, String)>,
}

/// What a member is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// A person paused the whole consumer.
    pub paused: bool,
    /// Lanes that a person paused.
    pub paused_lanes: Vec<Lane>,
    /// Lanes whose breaker a person closed or opened by force: open if `true`.
    pub forced: Vec<(Lane, bool)>,
    /// Another member had counted this one as dead, and may have taken its lanes.
    pub was_dead: bool,
}

/// How long things are kept, and whether paths are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keeping {
    /// How long an inbox knows what was handled. A message that is older is never handled unprotected.
    pub done: Duration,
    /// How long dead letters that were replayed or archived are kept.
    pub dead: Duration,
    /// How long traces are kept; none are written without it.
    pub trace: Option<Duration>,
}

impl Default for Keeping {
    fn default() -> Self {
        const DAY: Duration = Duration::from_hours(24);
        Self { done: 30 * DAY, dead: 90 * DAY, trace: None }
    }
}

/// One consumer's inbox.
///
/// Every call is one transaction of its own unless it says otherwise. Cancelling one leaves it done or not done, and a
/// transaction that is dropped is rolled back.
#[async_trait]
pub trait Inbox: Send + Sync {
    /// The transaction that a handler works in.
    type Transaction: Send;

    /// Opens a transaction and enters messages in it. With a lane, the lane is locked against a change of its owner until
    /// the transaction ends. Waits for other workers only for a short time.
    async fn begin(&self, enter: Enter<'_>) -> Result<Begun<Self::Transaction>, StoreError>;

    /// Changes, in the handler's transaction, what a message counts as: it was entered as handled, and is skipped.
    async fn skip(&self, transaction: &mut Self::Transaction, entry: Entry) -> Result<(), StoreError>;

    /// Commits. After an error it may have happened.
    async fn commit(&self, transaction: Self::Transaction) -> Result<(), StoreError>;

    /// Commits, and begins the next transaction as [`begin`](Self::begin) does, if that is quicker in one call. The outer error is the
    /// commit's: after it, it may have happened, and nothing is begun. The inner answer is what became of the next.
    async fn commit_and_begin(
        &self,
        transaction: Self::Transaction,
        next: Enter<'_>,
    ) -> Result<Result<Begun<Self::Transaction>, StoreError>, StoreError> {
        self.commit(transaction).await?;
        Ok(self.begin(next).await)
    }

    /// Rolls back: nothing happened.
    async fn roll_back(&self, transaction: Self::Transaction) -> Result<(), StoreError>;

    /// Notes that the handling of a message begins which was delivered before, and says how often it did: one that takes the
    /// process down each time is found by that.
    async fn start(&self, arrival: &Arrival) -> Result<u32, StoreError>;

    /// Claims a message for a call to the far side that is made outside of any transaction, for so long at most.
    async fn claim(&self, arrival: &Arrival, held: Option<&Held>, lasts: Duration) -> Result<Claimed, StoreError>;

    /// Opens the transaction in which the result of a call is committed: only while the claim is still this one.
    async fn begin_claimed(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Claim,
    ) -> Result<Begun<Self::Transaction>, StoreError>;

    /// Notes that the handling of a message ended without a result while the process lives: it is tried again by whoever has
    /// it. How often its handling was started counts from zero again. A call's claim ends, so that the next call can claim:
    /// the state goes back to [`State::Open`]. Changes nothing if the message has ended, waits, was never noted, or if the
    /// claim is another's by now.
    async fn ended(&self, entry: Entry, claim: Option<Claim>) -> Result<(), StoreError>;

    /// Keeps a message that was not handled, in the retry table or as a dead letter. `claim` is the one that its call had;
    /// without one, a call of somebody else whose time is over counts as a handling that was only begun.
    async fn set_back(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Option<Claim>,
        setback: &Setback,
    ) -> Result<Kept, StoreError>;

    /// Claims queues whose time has come, for so long at most: at most `queues` with at most `messages` each.
    async fn due(&self, queues: usize, messages: usize, lasts: Duration) -> Result<Vec<Due>, StoreError>;

    /// Opens the transaction in which one message of a claimed queue is handled. It must be the first that is left. If the
    /// transaction commits, it is done and has left the queue.
    async fn begin_due(&self, due: &Due, number: i64) -> Result<Begun<Self::Transaction>, StoreError>;

    /// Keeps a message of a claimed queue that was not handled again. With [`Stop::DeadContinue`] the next message may be
    /// handled, with any other the claim ends.
    async fn set_back_due(&self, due: &Due, number: i64, setback: &Setback) -> Result<Kept, StoreError>;

    /// Ends a claim; a queue that is empty is gone, and its messages take the live path again. A claim that is lost is
    /// ignored.
    async fn release(&self, due: &Due) -> Result<(), StoreError>;

    /// Says that a member is alive, and what it does; hears what people ordered.
    async fn beat(&self, beat: &Beat) -> Result<Orders, StoreError>;

    /// Takes lanes for a living member: those that it has already, that are free, or whose owner is dead and has no
    /// transaction open. The epoch of every lane that changes hands rises. Those that are another's are left out.
    async fn take(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<Held>, StoreError>;

    /// Frees lanes of a member that lives on, because the broker gives them to another by now. What others have is left as it
    /// is. May wait for open transactions that hold the lanes.
    async fn give_back(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError>;

    /// Frees the lanes of a member and forgets it.
    async fn leave(&self, owner: Uuid) -> Result<(), StoreError>;

    /// Deletes, at most `limit` rows of each kind, what is older than its retention: what is done or skipped, archived or
    /// replayed dead letters, traces. Says whether there is more.
    async fn prune(&self, limit: usize) -> Result<bool, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::operate::{Fate, ReplayState};
    use super::*;

    #[test]
    fn every_word_is_read_back() {
        assert!(State::ALL.iter().all(|state| State::of(state.word()) == Some(*state)));
        assert!(Fate::ALL.iter().all(|fate| Fate::of(fate.word()) == Some(*fate)));
        assert!(ReplayState::ALL.iter().all(|state| ReplayState::of(state.word()) == Some(*state)));
        assert_eq!((State::of("other"), Fate::of("other"), ReplayState::of("other")), (None, None, None));
    }
}
