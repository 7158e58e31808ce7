//! Events between a broker and its consumers.

use std::fmt;

use bytestring::ByteString;
use relevo_core::inbox::Held;
use uuid::Uuid;

use crate::history::{self, Happening, Name};

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
    pub name: Name,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The broker accepted a new message.
    Published {
        /// The message.
        name: Name,
        /// Its type.
        kind: ByteString,
        /// A hash of headers and payload.
        bytes: u64,
    },
    /// The broker accepted a repeat of it.
    PublishedAgain(Name),
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
    Tried(Case),
    /// A handler returned.
    Said {
        /// The message.
        case: Case,
        /// The result.
        what: &'static str,
    },
    /// An external service was called.
    Called {
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
    Waits(Case),
    /// It was not handled, and was stored.
    SetBack {
        /// The message.
        case: Case,
        /// The class of the error.
        class: &'static str,
        /// Counted attempts.
        attempts: u32,
        /// What happens to its queue, if it was dead-lettered.
        dead: Option<Dead>,
    },
    /// The broker recorded its acknowledgement.
    Acknowledged(Case),
    /// The broker delays it.
    PutOff(Case),
    /// An operator redrove it.
    Redriven(Case),
    /// An operator archived it.
    Archived(Case),
    /// A replay added it to the retry table.
    Fed(Case),
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
    Granted(Grant),
    /// A member wrote something under a lane.
    Wrote(Grant, &'static str),
    /// A member claimed a queue of the retry table.
    Claimed(Claim),
    /// A member wrote something under the claim of a queue.
    WroteClaimed(Claim, &'static str),
    /// An event in the life cycle of a member.
    Member {
        /// The consumer's number.
        consumer: usize,
        /// The member's number.
        member: usize,
        /// What happened.
        what: &'static str,
    },
    /// An operator sent a command.
    Ordered {
        /// The consumer's number.
        consumer: usize,
        /// The command.
        what: &'static str,
    },
    /// The store returned an unexpected reply.
    Broken(String),
    /// A network or server fault.
    Fault(&'static str),
    /// All faults end here.
    Quiet,
}

/// What happens to the queue of a dead-lettered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dead {
    /// The queue waits.
    Hold,
    /// The queue continues.
    Continue,
}

/// A lane in the history.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The consumer's number.
    pub consumer: usize,
    /// The lane.
    pub lane: String,
    /// Increases with every change of owner.
    pub epoch: i64,
    /// The member that owns it.
    pub owner: Uuid,
}

impl Grant {
    /// The lane that a consumer's member owns.
    pub fn of(consumer: usize, held: &Held) -> Self {
        Self { consumer, lane: held.lane.name().to_owned(), epoch: held.epoch, owner: held.owner }
    }
}

/// A claim of a queue in the history.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
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
            | Self::Tried(case)
            | Self::Said { case, .. }
            | Self::Called { case, .. }
            | Self::CallEnded(case)
            | Self::Effect(case)
            | Self::Skipped(case)
            | Self::Waits(case)
            | Self::SetBack { case, .. }
            | Self::Acknowledged(case)
            | Self::PutOff(case)
            | Self::Redriven(case)
            | Self::Archived(case)
            | Self::Fed(case) => Some(case),
            Self::Published { .. }
            | Self::PublishedAgain(_)
            | Self::ReplayStopped { .. }
            | Self::ReplayResumed { .. }
            | Self::Granted(_)
            | Self::Wrote(..)
            | Self::Claimed(_)
            | Self::WroteClaimed(..)
            | Self::Member { .. }
            | Self::Ordered { .. }
            | Self::Broken(_)
            | Self::Fault(_)
            | Self::Quiet => None,
        }
    }
}

impl Happening for Event {
    fn fault(what: &'static str) -> Self {
        Self::Fault(what)
    }

    fn broken(what: String) -> Self {
        Self::Broken(what)
    }

    fn name(&self) -> Option<&Name> {
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
            Self::Fault(_) | Self::Member { .. } | Self::Ordered { .. } | Self::PublishedAgain(_) => true,
            Self::Said { what, .. } => !matches!(*what, "done" | "skip"),
            _ => false,
        }
    }

    fn is_life(&self) -> bool {
        matches!(self, Self::Member { .. } | Self::Ordered { .. })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Published { name, kind, .. } => write!(f, "published {name} ({kind})"),
            Self::PublishedAgain(name) => write!(f, "published again {name}"),
            Self::Delivered { case, to, count } => write!(f, "delivered {case} to connection {to} (count {count})"),
            Self::Tried(case) => write!(f, "tried {case}"),
            Self::Said { case, what } => write!(f, "the handler of {case} says {what}"),
            Self::Called { case, id } => write!(f, "called for {case} as {}", &id.to_string()[..6]),
            Self::CallEnded(case) => write!(f, "the call for {case} ended"),
            Self::Effect(case) => write!(f, "EFFECT of {case}"),
            Self::Skipped(case) => write!(f, "skipped {case}"),
            Self::Waits(case) => write!(f, "waits behind others {case}"),
            Self::SetBack { case, class, attempts, dead } => {
                let how = match dead {
                    None => "kept for a retry",
                    Some(Dead::Hold) => "buried, its queue held,",
                    Some(Dead::Continue) => "buried, its queue going on,",
                };
                write!(f, "{how} {case}: {class}, {attempts} attempts")
            }
            Self::Acknowledged(case) => write!(f, "acknowledged {case}"),
            Self::PutOff(case) => write!(f, "put off at the broker {case}"),
            Self::Redriven(case) => write!(f, "redriven {case}"),
            Self::Archived(case) => write!(f, "archived {case}"),
            Self::Fed(case) => write!(f, "fed {case}"),
            Self::ReplayStopped { consumer, replay } => write!(f, "replay {replay} of c{consumer} is stopped"),
            Self::ReplayResumed { consumer, replay } => write!(f, "replay {replay} of c{consumer} goes on"),
            Self::Granted(grant) => write!(f, "granted {grant}"),
            Self::Wrote(grant, what) => write!(f, "{what} under {grant}"),
            Self::Claimed(claim) => write!(f, "claimed {claim}"),
            Self::WroteClaimed(claim, what) => write!(f, "{what} under {claim}"),
            Self::Member { consumer, member, what } => write!(f, "member {member} of c{consumer} {what}"),
            Self::Ordered { consumer, what } => write!(f, "a person orders of c{consumer}: {what}"),
            Self::Broken(what) => write!(f, "the store is broken: {what}"),
            Self::Fault(what) => write!(f, "fault: {what}"),
            Self::Quiet => write!(f, "all faults end"),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at c{}", self.name, self.consumer)?;
        if self.replay > 0 { write!(f, " in replay {}", self.replay) } else { Ok(()) }
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.owner.as_u128() >> 112;
        write!(f, "lane {} of c{}, epoch {}, owner {owner:04x}", self.lane, self.consumer, self.epoch)
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_u128() >> 112;
        write!(f, "queue {} of c{}, token {token:04x}", self.queue, self.consumer)
    }
}
