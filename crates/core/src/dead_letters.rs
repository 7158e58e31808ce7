//! Called by operators: dead letters of destinations and of consumers.

use async_trait::async_trait;
use jiff::Timestamp;

use crate::inbox::InboxMessage;
use crate::message::{Message, MessageId};
use crate::store::StoreError;

crate::text_enum! {
    /// The state of a dead letter.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum DeadLetterState {
        /// It waits for an operator.
        Dead = "dead",
        /// An operator marked it for redrive, and the relay has not applied the mark yet.
        Redriving = "redriving",
        /// An operator marked it for discarding, and the relay has not applied the mark yet.
        Discarding = "discarding",
        /// It was redriven.
        Redriven = "redriven",
        /// It was discarded.
        Discarded = "discarded",
    }
}

impl DeadLetterState {
    /// The states in which a dead letter is not finished.
    pub const OPEN: [Self; 3] = [Self::Dead, Self::Redriving, Self::Discarding];

    /// The mark that the relay has not applied yet.
    pub const fn unapplied_mark(self) -> Option<MarkAction> {
        match self {
            Self::Redriving => Some(MarkAction::Redrive),
            Self::Discarding => Some(MarkAction::Discard),
            Self::Dead | Self::Redriven | Self::Discarded => None,
        }
    }
}

/// Whose dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadLetterOwner {
    /// Those of this destination.
    Destination(String),
    /// Those of this consumer.
    Consumer(String),
    /// Those of all consumers.
    AnyConsumer,
}

/// Selects dead letters. All set fields must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Whose they are.
    pub owner: DeadLetterOwner,
    /// Only these ids. Empty means any id.
    pub ids: Vec<MessageId>,
    /// With this key. For a consumer, the name of the retry queue: the key, or the message id without order.
    pub key: Option<String>,
    /// With this topic. Only for a destination.
    pub topic: Option<String>,
    /// With this type. Only for a destination.
    pub kind: Option<String>,
    /// With this route. Only for a destination.
    pub route: Option<String>,
    /// With an error of this class.
    pub class: Option<String>,
    /// With an error that contains this text, in upper or lower case.
    pub error: Option<String>,
    /// In one of these states. Empty means any state.
    pub states: Vec<DeadLetterState>,
    /// Dead-lettered at this time or later.
    pub since: Option<Timestamp>,
    /// Dead-lettered before this time.
    pub until: Option<Timestamp>,
}

impl DeadLetterFilter {
    /// All dead letters of an owner.
    pub const fn of(owner: DeadLetterOwner) -> Self {
        Self {
            owner,
            ids: Vec::new(),
            key: None,
            topic: None,
            kind: None,
            route: None,
            class: None,
            error: None,
            states: Vec::new(),
            since: None,
            until: None,
        }
    }

    /// All dead letters of a destination.
    pub fn of_destination(name: impl Into<String>) -> Self {
        Self::of(DeadLetterOwner::Destination(name.into()))
    }

    /// All dead letters of a consumer.
    pub fn of_consumer(name: impl Into<String>) -> Self {
        Self::of(DeadLetterOwner::Consumer(name.into()))
    }

    /// The name of the destination or consumer. `None` for all consumers.
    pub fn owner_name(&self) -> Option<&str> {
        match &self.owner {
            DeadLetterOwner::Destination(name) | DeadLetterOwner::Consumer(name) => Some(name),
            DeadLetterOwner::AnyConsumer => None,
        }
    }

    /// Returns an error if a field is set that consumers do not have. Stores call it before they read an inbox.
    pub fn check_for_consumer(&self) -> Result<(), StoreError> {
        let fields = [("topic", &self.topic), ("type", &self.kind), ("route", &self.route)];
        match fields.into_iter().find(|(_, value)| value.is_some()) {
            Some((name, _)) => Err(refused(format!("dead letters of consumers are not selected by {name}"))),
            None => Ok(()),
        }
    }

    /// Whether a dead letter matches, for stores that have no query language. The owner is not compared.
    pub fn matches(&self, letter: &DeadLetterSummary) -> bool {
        let is = |wanted: &Option<String>, value: Option<&str>| wanted.is_none() || wanted.as_deref() == value;
        (self.ids.is_empty() || self.ids.contains(&letter.id))
            && is(&self.key, Some(&letter.key))
            && is(&self.topic, letter.topic.as_deref())
            && is(&self.kind, letter.kind.as_deref())
            && is(&self.route, letter.route.as_deref())
            && is(&self.class, Some(&letter.class))
            && self.error.as_ref().is_none_or(|part| letter.error.to_lowercase().contains(&part.to_lowercase()))
            && (self.states.is_empty() || self.states.contains(&letter.state))
            && self.since.is_none_or(|since| letter.dead_at >= since)
            && self.until.is_none_or(|until| letter.dead_at < until)
    }
}

crate::text_enum! {
    /// An operator's decision about dead letters.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MarkAction {
        /// They are processed again, before everything that waits behind them.
        Redrive = "redrive",
        /// They are not processed again, and their keys continue without them.
        Discard = "discard",
    }
}

impl MarkAction {
    /// The state of a dead letter of a destination until the relay applies the mark.
    pub const fn pending_state(self) -> DeadLetterState {
        match self {
            Self::Redrive => DeadLetterState::Redriving,
            Self::Discard => DeadLetterState::Discarding,
        }
    }

    /// The state of a dead letter once the mark is applied.
    pub const fn final_state(self) -> DeadLetterState {
        match self {
            Self::Redrive => DeadLetterState::Redriven,
            Self::Discard => DeadLetterState::Discarded,
        }
    }
}

/// A redrive or discard request. Its author and reason are stored with the dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRequest {
    /// Selects the dead letters. Only those in state [`DeadLetterState::Dead`] are changed.
    pub filter: DeadLetterFilter,
    /// What happens to them.
    pub action: MarkAction,
    /// Only counts the dead letters that would be changed.
    pub dry_run: bool,
    /// The number of messages to redrive per second. `None` redrives all at once. Only for consumers.
    pub rate_per_second: Option<u32>,
    /// The operator who requested it.
    pub by: String,
    /// The reason for it.
    pub reason: String,
}

impl MarkRequest {
    /// Returns an error if the author or the reason is missing, or if a destination's redrive has a rate: its relay sends
    /// the messages at its own pace.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.by.is_empty() || self.reason.is_empty() {
            return Err(refused("the requester and the reason of a mark are required".to_owned()));
        }
        match self.filter.owner {
            DeadLetterOwner::Destination(_) if self.rate_per_second.is_some() => {
                Err(refused("dead letters of a destination are redriven without a rate".to_owned()))
            }
            DeadLetterOwner::Destination(_) => Ok(()),
            DeadLetterOwner::Consumer(_) | DeadLetterOwner::AnyConsumer => self.filter.check_for_consumer(),
        }
    }
}

/// The result of a mark request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkReport {
    /// The number of dead letters that were changed, or would be.
    pub count: u64,
    /// The store stopped before it changed all. The same request continues.
    pub more: bool,
}

impl MarkReport {
    /// All matching dead letters were changed.
    pub const fn complete(count: u64) -> Self {
        Self { count, more: false }
    }
}

/// An operator's mark on a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorMark {
    /// The time of the request.
    pub at: Timestamp,
    /// The operator who requested it.
    pub by: String,
    /// The reason for it.
    pub reason: String,
}

/// A dead letter in a list, without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterSummary {
    /// The name of the destination or consumer.
    pub owner: String,
    /// The message.
    pub id: MessageId,
    /// The number of the replay, or zero. Always zero for a destination.
    pub replay: u32,
    /// The topic. `None` if the consumer cannot read it.
    pub topic: Option<String>,
    /// The key. For a consumer, the name of the retry queue.
    pub key: String,
    /// The type. `None` if the consumer cannot read it.
    pub kind: Option<String>,
    /// The route that chose its address. `None` for a consumer.
    pub route: Option<String>,
    /// The class of the error.
    pub class: String,
    /// The error that dead-lettered it.
    pub error: String,
    /// Counted attempts.
    pub attempts: u32,
    /// When the message was emitted, or when the consumer first received it.
    pub entered_at: Timestamp,
    /// When it was dead-lettered. If it failed again after a redrive, the last time.
    pub dead_at: Timestamp,
    /// How often it was redriven.
    pub redrives: u32,
    /// Its state.
    pub state: DeadLetterState,
    /// The last mark of an operator.
    pub mark: Option<OperatorMark>,
}

/// A dead letter with its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its summary.
    pub summary: DeadLetterSummary,
    /// The message.
    pub content: DeadLetterContent,
}

/// The message of a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadLetterContent {
    /// Of a destination: the message, with its original bytes.
    Outbox(Message),
    /// Of a consumer.
    Inbox {
        /// The message, with its original headers and bytes.
        message: InboxMessage,
        /// The backtrace, if the handler panicked.
        backtrace: Option<String>,
    },
}

impl DeadLetterContent {
    /// The message of a destination's dead letter.
    pub const fn outbox_message(&self) -> Option<&Message> {
        match self {
            Self::Outbox(message) => Some(message),
            Self::Inbox { .. } => None,
        }
    }

    /// The message of a consumer's dead letter.
    pub const fn inbox_message(&self) -> Option<&InboxMessage> {
        match self {
            Self::Outbox(_) => None,
            Self::Inbox { message, .. } => Some(message),
        }
    }
}

/// One page of dead letters, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterPage {
    /// The dead letters.
    pub letters: Vec<DeadLetterSummary>,
    /// Where the next page continues, in a format that only the store parses. `None` if this is the last page.
    pub next: Option<String>,
}

/// Operator access to dead letters. A filter is applied by the store, before any limit.
#[async_trait]
pub trait DeadLetterAdmin: Send + Sync {
    /// Lists dead letters, oldest first. Continues at `after`, a [`DeadLetterPage::next`] of the same filter.
    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DeadLetterPage, StoreError>;

    /// The oldest matching dead letters with their messages.
    async fn get_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError>;

    /// Redrives or discards dead letters. For a destination this only marks them; the relay that holds the lease of the
    /// shard acts. For a consumer it acts at once: those of one queue keep their order and go before all that waits in it.
    ///
    /// Only dead letters without a mark are selected, so a repeated request changes nothing.
    async fn mark_dead_letters(&self, request: &MarkRequest) -> Result<MarkReport, StoreError>;
}

fn refused(reason: String) -> StoreError {
    StoreError::Refused { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_unapplied_in_its_pending_state_only() {
        for mark in [MarkAction::Redrive, MarkAction::Discard] {
            assert_eq!(mark.pending_state().unapplied_mark(), Some(mark));
            assert_eq!(mark.final_state().unapplied_mark(), None);
        }
        assert_eq!(DeadLetterState::Dead.unapplied_mark(), None);
    }

    #[test]
    fn a_mark_needs_an_author_and_a_reason_and_fields_of_its_owner() {
        let request = MarkRequest {
            filter: DeadLetterFilter::of_destination("main"),
            action: MarkAction::Redrive,
            dry_run: false,
            rate_per_second: None,
            by: "ann".to_owned(),
            reason: "fixed".to_owned(),
        };
        assert!(request.check().is_ok());
        assert!(MarkRequest { by: String::new(), ..request.clone() }.check().is_err());
        assert!(MarkRequest { rate_per_second: Some(1), ..request.clone() }.check().is_err());
        let routed = DeadLetterFilter { route: Some("slow".to_owned()), ..DeadLetterFilter::of_consumer("billing") };
        assert!(MarkRequest { filter: routed, ..request }.check().is_err());
    }
}
