//! What can happen between a broker and the consumers of its messages.

use std::fmt;

use bytestring::ByteString;
use relevo_core::inbox::Held;
use uuid::Uuid;

use crate::history::{self, Happening, Name};

/// What happened so far.
pub type History = history::History<Event>;

/// A message at one consumer, under one replay number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Case {
    /// The consumer's number.
    pub consumer: usize,
    /// Zero, but for messages that are handled again on purpose.
    pub replay: u32,
    /// The message.
    pub name: Name,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The broker took a message that it did not have before.
    Published {
        /// Which.
        name: Name,
        /// Its type.
        kind: ByteString,
        /// A fingerprint of headers and payload.
        bytes: u64,
    },
    /// The broker took it once more.
    PublishedAgain(Name),
    /// The broker handed it to a member.
    Delivered {
        /// Which.
        case: Case,
        /// The connection.
        to: u64,
        /// How often it was handed over by then.
        count: u32,
    },
    /// A handler began with it.
    Tried(Case),
    /// What its handler said.
    Said {
        /// Of which.
        case: Case,
        /// What.
        what: &'static str,
    },
    /// The far side was called.
    Called {
        /// For which.
        case: Case,
        /// Under which id.
        id: Uuid,
    },
    /// That call ended, with or without an answer.
    CallEnded(Case),
    /// Its effect was committed.
    Effect(Case),
    /// It was committed that there was nothing to do.
    Skipped(Case),
    /// It waits behind others of its key.
    Waits(Case),
    /// It was not handled, and kept.
    SetBack {
        /// Which.
        case: Case,
        /// Why.
        class: &'static str,
        /// Counted attempts.
        attempts: u32,
        /// It was given up, and this becomes of its queue.
        dead: Option<Dead>,
    },
    /// The broker forgets it.
    Acknowledged(Case),
    /// The broker keeps it for later.
    PutOff(Case),
    /// An operator redrove it.
    Redriven(Case),
    /// An operator put it aside.
    Archived(Case),
    /// It was fed to a replay.
    Fed(Case),
    /// A replay was stopped, and what of it was not begun is taken out.
    ReplayStopped {
        /// The consumer's number.
        consumer: usize,
        /// The replay's.
        replay: u32,
    },
    /// A replay that was stopped goes on.
    ReplayResumed {
        /// The consumer's number.
        consumer: usize,
        /// The replay's.
        replay: u32,
    },
    /// A member has a lane.
    Granted(Grant),
    /// Something was written under a lane.
    Wrote(Grant, &'static str),
    /// A member has a queue of the retry table.
    Claimed(Claim),
    /// Something was written under a claim of a queue.
    WroteClaimed(Claim, &'static str),
    /// Something of a member's life.
    Member {
        /// The consumer's number.
        consumer: usize,
        /// The member's.
        member: usize,
        /// What.
        what: &'static str,
    },
    /// A person ordered something.
    Ordered {
        /// The consumer's number.
        consumer: usize,
        /// What.
        what: &'static str,
    },
    /// The store answered something that should not happen.
    Broken(String),
    /// The network or a server misbehaved.
    Fault(&'static str),
    /// All faults end here.
    Quiet,
}

/// What became of the queue of a message that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dead {
    /// It waits.
    Hold,
    /// It goes on.
    Continue,
}

/// A lane, as the history keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The consumer's number.
    pub consumer: usize,
    /// Which lane.
    pub lane: String,
    /// Rises with every change of owner.
    pub epoch: i64,
    /// The member that has it.
    pub owner: Uuid,
}

impl Grant {
    /// What a consumer's member holds.
    pub fn of(consumer: usize, held: &Held) -> Self {
        Self { consumer, lane: held.lane.name().to_owned(), epoch: held.epoch, owner: held.owner }
    }
}

/// A claim of a queue, as the history keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The consumer's number.
    pub consumer: usize,
    /// Which queue.
    pub queue: ByteString,
    /// Random for each claim.
    pub token: Uuid,
}

impl Event {
    /// The message at the consumer that it is about.
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
