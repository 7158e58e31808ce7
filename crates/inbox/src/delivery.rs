//! A delivery while this process handles it.

use std::time::Duration;

use bytestring::ByteString;
use relevo_core::DeliveryTag;
use relevo_core::inbox::InboxMessage;
use relevo_core::inbox::attempts::CallClaim;
use relevo_core::inbox::retries::InboxFailure;
use relevo_core::retry::ExponentialBackoff;
use relevo_core::store::StoreError;
use relevo_core::trace::ActiveSpan;

use crate::incoming::Incoming;

/// A delivery while this process handles it.
#[derive(Debug)]
pub(crate) struct PendingDelivery {
    /// Identifies the delivery in its acknowledgement.
    pub(crate) tag: DeliveryTag,
    /// It may have been delivered before.
    pub(crate) redelivered: bool,
    pub(crate) message: InboxMessage,
    /// The message for its handler, or why it cannot be decoded.
    pub(crate) incoming: Result<Incoming, String>,
    /// Whether it may share a transaction with others.
    pub(crate) can_batch: bool,
    /// Its start is recorded in the store, and its end must be recorded before the next start.
    pub(crate) start_record: Option<StartRecord>,
    /// It came after a later message of its key. It may be a duplicate; only the inbox knows.
    pub(crate) out_of_order: bool,
    /// Pauses after database errors in calls about it.
    pub(crate) store_backoff: ExponentialBackoff,
    /// A decision about it that is not stored yet. Until then it is not handled again.
    pub(crate) unrecorded_failure: Option<UnrecordedFailure>,
    /// Span of the time it waits for a worker.
    pub(crate) span: Option<ActiveSpan>,
}

/// What the store has recorded about a started attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StartRecord {
    /// The attempt was started.
    Counted,
    /// An external call was claimed.
    Claimed(CallClaim),
}

/// A decision that the store must record.
#[derive(Clone, Debug)]
pub(crate) struct UnrecordedFailure {
    pub(crate) failure: InboxFailure,
    /// The claim of its call.
    pub(crate) claim: Option<CallClaim>,
}

impl PendingDelivery {
    pub(crate) const fn queue(&self) -> &ByteString {
        &self.message.queue
    }

    /// The claim of its call.
    pub(crate) const fn claim(&self) -> Option<CallClaim> {
        match self.start_record {
            Some(StartRecord::Claimed(claim)) => Some(claim),
            Some(StartRecord::Counted) | None => None,
        }
    }
}

/// The result of one delivery after a worker had it.
#[derive(Debug)]
pub(crate) enum DeliveryResult {
    /// It is acknowledged.
    Acknowledge,
    /// The broker delivers it again after this delay.
    RetryLater(Duration),
    /// It failed and is retried after this pause: in memory, or in the retry table, which stores this failure.
    RetryIn(Duration, InboxFailure),
    /// A service that its handler needs is down; no attempt was counted. It waits at least this pause, even if the
    /// breaker closes earlier.
    Unavailable(Duration),
    /// Another worker has the message: it waits, and no attempt is counted.
    Busy(Duration),
    /// Another member holds the lane lease now.
    Fenced,
    /// It returns to its queue: it shared a transaction that was rolled back, or was not begun.
    HandleAlone,
    /// A store call failed.
    Store(StoreError),
}
