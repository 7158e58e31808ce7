//! Claims for calls to external services, which run outside of any transaction.

use std::time::Duration;

use uuid::Uuid;

use super::InboxState;

/// The right to call an external service for one message, until the claim expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallClaim {
    /// A random token, new for each claim.
    pub token: Uuid,
    /// How often handling of the message has started, including this time.
    pub unfinished_starts: u32,
}

/// The result of a claim request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The caller owns the claim and may make the call.
    Claimed(CallClaim),
    /// It was entered before. Only acknowledge it.
    Duplicate(InboxState),
    /// Its queue waits in the retry table, and the message now waits there too.
    QueuedBehind,
    /// Another worker's call may still run, at most for this long.
    Busy(Duration),
    /// Another member owns the lane now. Nothing was changed.
    Fenced,
}
