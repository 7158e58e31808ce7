//! What the suite needs of a store beyond the ports: writers, time, and a server that can be killed.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use relevo_core::message::{Headers, MessageId};
use relevo_core::store::{DeadLetters, Leases, OutboxReader, ParkedKeys, Upkeep};

/// The destination that every harness starts with, at the very beginning of an empty outbox.
pub const MAIN: &str = "main";
/// How many shards [`MAIN`] has.
pub const SHARDS: u16 = 8;
/// How long a harness's outbox keeps settled messages.
pub const RETENTION: Duration = Duration::from_hours(1);

/// One outbox of its own for one case, and everything that a case does to it.
///
/// A call that fails panics: cases look at what the ports answer, not at the harness.
#[async_trait]
pub trait StoreHarness: Send + Sync {
    /// A session of a relay or an operator.
    type Store: Leases + OutboxReader + ParkedKeys + Upkeep + DeadLetters;
    /// A transaction of an application.
    type Writer: Writer;

    /// A new session, independent of every other, of the destination [`MAIN`].
    async fn store(&self) -> Self::Store {
        self.store_for(MAIN).await
    }

    /// A new session, independent of every other, of the destination `name`.
    async fn store_for(&self, name: &str) -> Self::Store;

    /// Begins a transaction; several may be open at once, unless there is one writer at a time.
    async fn begin(&self) -> Self::Writer;

    /// Begins a transaction beside one that is open. `None` if the outbox has one writer at a time: whoever would be the
    /// second is told that it is busy.
    async fn begin_beside(&self) -> Option<Self::Writer> {
        Some(self.begin().await)
    }

    /// Adds a destination with its own progress.
    async fn add_destination(&self, name: &str, shards: u16, start: Start);

    /// Removes a destination and all that it holds.
    async fn remove_destination(&self, name: &str);

    /// Asks for another number of shards; relays carry it out through their leases.
    async fn regroup(&self, name: &str, shards: u16);

    /// Switches a destination off or on. One that is off leases nothing.
    async fn switch(&self, name: &str, on: bool);

    /// Kills the server without warning and starts it again. Open transactions are lost, what was committed stays;
    /// sessions and writers from before are not used again.
    async fn crash(&mut self);

    /// Lets time pass for leases, retries, holds and schedules: by waiting, by moving a clock, or by making every stored
    /// time of that kind earlier. Cases ask for minutes; for a few seconds at most while a writer is open.
    async fn let_pass(&self, time: Duration);

    /// Makes everything that retention looks at (messages, progress, ticks) older. Leases and retries stay as they are.
    async fn age(&self, time: Duration);

    /// Begins a new partition of the log: what is emitted from now on is dropped apart from what is there. A store that
    /// drops message by message does nothing.
    async fn next_partition(&self);

    /// How many committed messages the log still has, settled or not; scheduled ones are not in it yet.
    async fn kept(&self) -> usize;

    /// What differs from store to store; it chooses what a case expects, never whether it runs.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
}

/// Where a new destination begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With what is committed from now on.
    Now,
    /// With the oldest message that the log still has.
    Oldest,
}

/// What differs from store to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Nobody else uses the server. Otherwise transactions of others may move positions without messages.
    pub alone: bool,
    /// What was settled just before a crash stays settled. Otherwise it may be read again, and nothing else changes.
    pub durable_progress: bool,
    /// One transaction writes at a time, from its first write to its end. While it is open nobody else can emit, settle
    /// or lease; reading goes on.
    pub one_writer: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { alone: true, durable_progress: true, one_writer: false }
    }
}

/// A transaction of an application that emits messages. Dropping it rolls it back.
#[async_trait]
pub trait Writer: Send {
    /// Emits a message in this transaction and gives its id; an id that was used before says so. After a refusal the
    /// transaction can only be rolled back.
    async fn emit(&mut self, draft: Draft) -> Result<MessageId, Repeated>;

    /// Takes a scheduled message back; whether it was still waiting.
    async fn cancel(&mut self, id: MessageId) -> bool;

    /// Sets a savepoint of this name.
    async fn savepoint(&mut self, name: &str);

    /// Undoes what was done since that savepoint, which stays.
    async fn rollback_to(&mut self, name: &str);

    /// Commits.
    async fn commit(self);

    /// Rolls back.
    async fn rollback(self);
}

/// The caller's id was used before, and the draft asked to refuse that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeated;

/// What happens when a caller brings an id that was used before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRepeat {
    /// The emit fails.
    #[default]
    Refuse,
    /// The emit does nothing and gives the id.
    Ignore,
}

/// A message to emit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// What routes match first.
    pub topic: String,
    /// What order is kept within.
    pub key: String,
    /// What happened or is asked for.
    pub kind: String,
    /// The bytes, exactly.
    pub payload: Bytes,
    /// The payload's media type.
    pub content_type: String,
    /// The writer's own headers.
    pub headers: Headers,
    /// The caller's own id; without it the store makes one.
    pub id: Option<MessageId>,
    /// What happens if that id was used before.
    pub on_repeat: OnRepeat,
    /// Scheduled: enters the log so long after now.
    pub deliver_after: Option<Duration>,
}

impl Draft {
    /// An ordinary message of this key.
    pub fn of(key: impl Into<String>) -> Self {
        Self {
            topic: "orders".to_owned(),
            key: key.into(),
            kind: "OrderPlaced".to_owned(),
            payload: Bytes::from_static(b"{}"),
            content_type: "application/json".to_owned(),
            headers: Headers::new(),
            id: None,
            on_repeat: OnRepeat::default(),
            deliver_after: None,
        }
    }
}
