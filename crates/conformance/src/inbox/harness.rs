//! The operations that the suite needs from an inbox, beyond the ports: effects, messages that handlers emit, and time.

use std::time::Duration;

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::inbox::replays::ConsumerReplays;
use relevo_core::inbox::{ConsumerOperator, Inbox, InboxRetention};

/// The transaction type of handlers in this harness.
pub type HandlerTransaction<H> = <<H as Harness>::Inbox as Inbox>::Transaction;

/// Default retention of inboxes in a harness. Traces are off.
pub const RETENTION: InboxRetention =
    InboxRetention { done: Duration::from_hours(24), dead_letters: Duration::from_hours(48) };

/// A database for one case, with an outbox and a ledger that handlers write to.
///
/// Harness calls panic on failure, because cases test the ports, not the harness.
#[async_trait]
pub trait Harness: Send + Sync {
    /// A member's handle to the inbox of one consumer.
    type Inbox: Inbox;
    /// An operator's handle to the whole database.
    type Operator: ConsumerOperator + ConsumerReplays;

    /// Opens a new, independent handle to this consumer's inbox, as another process would.
    async fn inbox(&self, consumer: &str) -> Self::Inbox {
        self.inbox_with_retention(consumer, RETENTION).await
    }

    /// Like `inbox`, with its own retention.
    async fn inbox_with_retention(&self, consumer: &str, retention: InboxRetention) -> Self::Inbox;

    /// Opens a new handle for an operator.
    async fn operator(&self) -> Self::Operator;

    /// The effect of a handler: writes a line into the ledger, in the handler's transaction.
    async fn effect(&self, transaction: &mut HandlerTransaction<Self>, line: &str);

    /// The committed lines of the ledger. Lines of transactions that ran one after the other are in that order.
    async fn effects(&self) -> Vec<String>;

    /// The ids of the committed messages in the outbox, in the order of emitting.
    async fn emitted(&self) -> Vec<MessageId>;

    /// Advances time for claims, retries and heartbeats. A harness waits, moves a clock, or makes the stored times
    /// earlier. Cases request minutes, but only a few seconds while a handler's transaction is open and holds row
    /// locks.
    async fn advance_time(&self, time: Duration);

    /// Makes everything that pruning checks older: handled messages, dead letters and last heartbeats of
    /// members. Claims and retries stay unchanged.
    async fn age_records(&self, time: Duration);

    /// Differences between stores. They determine what a case expects, never whether it runs.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
}

/// Differences between stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Only one transaction is open at a time. While a handler's transaction is open, every other call that writes
    /// waits for a short time. Then it reports that the database is busy, with an error if its result has no variant
    /// for that.
    pub single_writer: bool,
}
