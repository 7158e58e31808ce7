//! Started attempts, and claims for calls to external services, which run outside of any transaction.

use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::{DedupId, InboxMessage, InboxState, LaneLease};
use crate::store::StoreError;

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

/// Records of attempts, outside of any transaction.
#[async_trait]
pub trait InboxAttempts: Send + Sync {
    /// Records that handling of a redelivered message starts. Returns how often it has started, so that a message that
    /// crashes the process each time is detected.
    async fn record_start(&self, message: &InboxMessage) -> Result<u32, StoreError>;

    /// Claims a message for a call to an external service outside of any transaction. The claim expires after `ttl`.
    async fn claim_call(
        &self,
        message: &InboxMessage,
        lane: Option<&LaneLease>,
        ttl: Duration,
    ) -> Result<ClaimOutcome, StoreError>;

    /// Records that handling ended without a result while the process is alive, so that the message is tried again.
    /// Resets the number of starts to zero. Ends the claim, so that the next call can claim: the state returns to
    /// [`InboxState::Started`]. Changes nothing if the message has ended, waits, was never recorded, or has a claim of another
    /// worker.
    async fn end_attempt(&self, id: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError>;
}
