//! What the suite needs of an inbox beyond the ports: effects, messages that handlers emit, and time.

use std::time::Duration;

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::inbox::operate::Operate;
use relevo_core::inbox::{Inbox, Keeping};

/// The transaction that a handler of this harness works in.
pub type Handling<H> = <<H as Harness>::Inbox as Inbox>::Transaction;

/// How long the inboxes of a harness keep things, unless a case says otherwise. No traces.
pub const KEEPING: Keeping = Keeping { done: Duration::from_hours(24), dead: Duration::from_hours(48), trace: None };

/// One database of its own for one case, with an outbox and a ledger that handlers write to.
///
/// A call that fails panics: cases look at what the ports answer, not at the harness.
#[async_trait]
pub trait Harness: Send + Sync {
    /// A member's handle on one consumer's inbox.
    type Inbox: Inbox;
    /// An operator's handle on the whole database.
    type Operator: Operate;

    /// A new handle on this consumer's inbox, independent of every other, as another process would have it.
    async fn inbox(&self, consumer: &str) -> Self::Inbox {
        self.inbox_keeping(consumer, KEEPING).await
    }

    /// The same, with times of its own.
    async fn inbox_keeping(&self, consumer: &str, keeping: Keeping) -> Self::Inbox;

    /// A new handle for an operator.
    async fn operator(&self) -> Self::Operator;

    /// The handler's effect: writes a line into the ledger, in the handler's transaction.
    async fn effect(&self, transaction: &mut Handling<Self>, line: &str);

    /// The committed lines of the ledger, in the order in which they were written, where one
    /// transaction followed the other.
    async fn effects(&self) -> Vec<String>;

    /// Emits any message to the outbox, in the handler's transaction.
    async fn emit(&self, transaction: &mut Handling<Self>) -> MessageId;

    /// The ids of the committed messages of the outbox, in the order in which they were emitted.
    async fn emitted(&self) -> Vec<MessageId>;

    /// Lets time pass for claims, retries and heartbeats: by waiting, by moving a clock, or by making every stored time of
    /// that kind earlier. Cases ask for minutes; for a few seconds at most while a handler's transaction is open and holds rows.
    async fn pass(&self, time: Duration);

    /// Makes everything that pruning looks at older: what was handled, dead letters, traces, and when members were last
    /// heard of. Claims and retries stay as they are.
    async fn age(&self, time: Duration);

    /// What differs from store to store; it chooses what a case expects, never whether it runs.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
}

/// What differs from store to store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// One transaction is open at a time. While a handler's is, every other call that writes finds the database busy: it
    /// waits for a short time, then says so, by an error where its answer has no word for that.
    pub one_writer: bool,
}
