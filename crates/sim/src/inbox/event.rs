//! Events between a broker and its consumers.

use std::fmt;

use bytestring::ByteString;
use relevo_core::inbox::LaneLease;
use uuid::Uuid;

use crate::history::{self, MessageName, SimEvent};

/// The history of a run of this world.
pub type History = history::History<Event>;

/// A message at one consumer, under one replay number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Case {
    /// The consumer's number.
    pub consumer: usize,
    /// Zero, or the number of the replay.
    pub replay: u32,
    /// The message.
    pub name: MessageName,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The broker accepted a new message.
    Published {
        /// The message.
        name: MessageName,
        /// Its type.
        kind: ByteString,
        /// A hash of headers and payload.
        bytes: u64,
    },
    /// The broker accepted a repeat of it.
    PublishedAgain(MessageName),
    /// The broker delivered it to a member.
    Delivered {
        /// The message.
        case: Case,
        /// The connection.
        to: u64,
        /// The number of deliveries so far.
        count: u32,
    },
    /// A handler started.
    AttemptStarted(Case),
    /// A handler returned.
    HandlerReturned {
        /// The message.
        case: Case,
        /// The result.
        result: &'static str,
    },
    /// An external service was called.
    CallStarted {
        /// The message.
        case: Case,
        /// The id of the call.
        id: Uuid,
    },
    /// That call ended, with or without a response.
    CallEnded(Case),
    /// Its effect was committed.
    Effect(Case),
    /// It was committed as skipped.
    Skipped(Case),
    /// It waits behind others of its key.
    QueuedBehind(Case),
    /// It was not handled, and was stored.
    FailureRecorded {
        /// The message.
        case: Case,
        /// The class of the error.
        class: &'static str,
        /// Counted attempts.
        attempts: u32,
        /// The treatment of its queue, if it was dead-lettered.
        dead: Option<Dead>,
    },
    /// The broker recorded its acknowledgement.
    Acknowledged(Case),
    /// The broker delays it.
    RetryScheduled(Case),
    /// An operator redrove it.
    Redriven(Case),
    /// An operator archived it.
    Discarded(Case),
    /// A replay added it to the retry table.
    ReplayEnqueued(Case),
    /// A replay was stopped, and its messages that were not started were removed.
    ReplayStopped {
        /// The consumer's number.
        consumer: usize,
        /// The replay's number.
        replay: u32,
    },
    /// A stopped replay was resumed.
    ReplayResumed {
        /// The consumer's number.
        consumer: usize,
        /// The replay's number.
        replay: u32,
    },
    /// A member acquired a lane.
    LaneAcquired(LaneRef),
    /// A member wrote something under a lane.
    WroteInLane(LaneRef, &'static str),
    /// A member claimed a queue of the retry table.
    QueueClaimed(ClaimRef),
    /// A member wrote something under the claim of a queue.
    WroteInQueue(ClaimRef, &'static str),
    /// An event in the life cycle of a member.
    Member {
        /// The consumer's number.
        consumer: usize,
        /// The member's number.
        member: usize,
        /// Its new state.
        text: &'static str,
    },
    /// An operator sent a command.
    ControlSet {
        /// The consumer's number.
        consumer: usize,
        /// The command.
        text: &'static str,
    },
    /// The store returned an unexpected reply.
    StoreError(String),
    /// A network or server fault.
    Fault(&'static str),
    /// All faults end here.
    FaultsEnded,
}

/// The treatment of the queue of a dead-lettered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dead {
    /// The queue waits.
    Hold,
    /// The queue continues.
    Continue,
}

/// A lane in the history.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LaneRef {
    /// The consumer's number.
    pub consumer: usize,
    /// The lane.
    pub lane: String,
    /// Increases with every change of owner.
    pub epoch: i64,
    /// The member that owns it.
    pub owner: Uuid,
}

impl LaneRef {
    /// The lane that a consumer's member owns.
    pub fn of(consumer: usize, lease: &LaneLease) -> Self {
        Self { consumer, lane: lease.lane.name().to_owned(), epoch: lease.epoch, owner: lease.owner }
    }
}

/// A claim of a queue in the history.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimRef {
    /// The consumer's number.
    pub consumer: usize,
    /// The queue.
    pub queue: ByteString,
    /// A random token, new for each claim.
    pub token: Uuid,
}

impl Event {
    /// The message and consumer of the event, if it has them.
    pub const fn case(&self) -> Option<&Case> {
        match self {
            Self::Delivered { case, .. }
            | Self::AttemptStarted(case)
            | Self::HandlerReturned { case, .. }
            | Self::CallStarted { case, .. }
            | Self::CallEnded(case)
            | Self::Effect(case)
            | Self::Skipped(case)
            | Self::QueuedBehind(case)
            | Self::FailureRecorded { case, .. }
            | Self::Acknowledged(case)
            | Self::RetryScheduled(case)
            | Self::Redriven(case)
            | Self::Discarded(case)
            | Self::ReplayEnqueued(case) => Some(case),
            Self::Published { .. }
            | Self::PublishedAgain(_)
            | Self::ReplayStopped { .. }
            | Self::ReplayResumed { .. }
            | Self::LaneAcquired(_)
            | Self::WroteInLane(..)
            | Self::QueueClaimed(_)
            | Self::WroteInQueue(..)
            | Self::Member { .. }
            | Self::ControlSet { .. }
            | Self::StoreError(_)
            | Self::Fault(_)
            | Self::FaultsEnded => None,
        }
    }
}

impl SimEvent for Event {
    fn fault(text: &'static str) -> Self {
        Self::Fault(text)
    }

    fn store_error(text: String) -> Self {
        Self::StoreError(text)
    }

    fn name(&self) -> Option<&MessageName> {
        match self {
            Self::Published { name, .. } | Self::PublishedAgain(name) => Some(name),
            _ => self.case().map(|case| &case.name),
        }
    }

    fn is_message(&self) -> bool {
        matches!(self, Self::Published { .. })
    }

    fn is_fault(&self) -> bool {
        match self {
            Self::Fault(_) | Self::Member { .. } | Self::ControlSet { .. } | Self::PublishedAgain(_) => true,
            Self::HandlerReturned { result: text, .. } => !matches!(*text, "done" | "skip"),
            _ => false,
        }
    }

    fn is_lifecycle(&self) -> bool {
        matches!(self, Self::Member { .. } | Self::ControlSet { .. })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Published { name, kind, .. } => write!(f, "published {name} ({kind})"),
            Self::PublishedAgain(name) => write!(f, "published again {name}"),
            Self::Delivered { case, to, count } => write!(f, "delivered {case} to connection {to} (count {count})"),
            Self::AttemptStarted(case) => write!(f, "started {case}"),
            Self::HandlerReturned { case, result: text } => write!(f, "the handler of {case} returned {text}"),
            Self::CallStarted { case, id } => write!(f, "called for {case} as {}", &id.to_string()[..6]),
            Self::CallEnded(case) => write!(f, "the call for {case} ended"),
            Self::Effect(case) => write!(f, "EFFECT of {case}"),
            Self::Skipped(case) => write!(f, "skipped {case}"),
            Self::QueuedBehind(case) => write!(f, "waits behind others {case}"),
            Self::FailureRecorded { case, class, attempts, dead } => {
                let action = match dead {
                    None => "stored for a retry",
                    Some(Dead::Hold) => "dead-lettered, queue held:",
                    Some(Dead::Continue) => "dead-lettered, queue continues:",
                };
                write!(f, "{action} {case}, {class}, {attempts} attempts")
            }
            Self::Acknowledged(case) => write!(f, "acknowledged {case}"),
            Self::RetryScheduled(case) => write!(f, "delayed at the broker {case}"),
            Self::Redriven(case) => write!(f, "redriven {case}"),
            Self::Discarded(case) => write!(f, "archived {case}"),
            Self::ReplayEnqueued(case) => write!(f, "enqueued for replay {case}"),
            Self::ReplayStopped { consumer, replay } => write!(f, "replay {replay} of c{consumer} is stopped"),
            Self::ReplayResumed { consumer, replay } => write!(f, "replay {replay} of c{consumer} is resumed"),
            Self::LaneAcquired(lane) => write!(f, "acquired {lane}"),
            Self::WroteInLane(lane, text) => write!(f, "{text} under {lane}"),
            Self::QueueClaimed(claim) => write!(f, "claimed {claim}"),
            Self::WroteInQueue(claim, text) => write!(f, "{text} under {claim}"),
            Self::Member { consumer, member, text } => write!(f, "member {member} of c{consumer} {text}"),
            Self::ControlSet { consumer, text } => write!(f, "operator command for c{consumer}: {text}"),
            Self::StoreError(text) => write!(f, "unexpected reply of the store: {text}"),
            Self::Fault(text) => write!(f, "fault: {text}"),
            Self::FaultsEnded => write!(f, "all faults end"),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at c{}", self.name, self.consumer)?;
        if self.replay > 0 { write!(f, " in replay {}", self.replay) } else { Ok(()) }
    }
}

impl fmt::Display for LaneRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.owner.as_u128() >> 112;
        write!(f, "lane {} of c{}, epoch {}, owner {owner:04x}", self.lane, self.consumer, self.epoch)
    }
}

impl fmt::Display for ClaimRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_u128() >> 112;
        write!(f, "queue {} of c{}, token {token:04x}", self.queue, self.consumer)
    }
}
