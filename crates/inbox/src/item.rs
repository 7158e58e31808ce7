//! A delivery while this process handles it.

use std::time::Duration;

use bytestring::ByteString;
use relevo_core::DeliveryTag;
use relevo_core::inbox::{Arrival, Claim, Setback};
use relevo_core::store::StoreError;
use relevo_core::trace::Open;

use crate::incoming::Incoming;

/// A delivery while this process handles it.
#[derive(Debug)]
pub(crate) struct Item {
    /// Identifies the delivery in its acknowledgement.
    pub(crate) tag: DeliveryTag,
    /// It may have been delivered before.
    pub(crate) redelivered: bool,
    pub(crate) arrival: Arrival,
    /// The message for its handler, or why it cannot be decoded.
    pub(crate) incoming: Result<Incoming, String>,
    /// Attempts counted so far.
    pub(crate) attempts: u32,
    /// Whether it may share a transaction with others.
    pub(crate) shares: bool,
    /// Its start is recorded in the store, and its end must be recorded before the next start.
    pub(crate) noted: Option<Noted>,
    /// It came after a later message of its key. It may be a duplicate; only the inbox can tell.
    pub(crate) inverted: bool,
    /// Number of database errors in calls about it.
    pub(crate) refused: u32,
    /// A decision about it that is not stored yet. Until then it is not handled again.
    pub(crate) decided: Option<Decided>,
    /// Span of the time it waits for a worker.
    pub(crate) span: Option<Open>,
}

/// What the store has recorded about a started attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Noted {
    /// The attempt was started.
    Started,
    /// An external call was claimed.
    Called(Claim),
}

/// A decision that the store must record.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) setback: Setback,
    /// The claim of its call.
    pub(crate) claim: Option<Claim>,
}

impl Item {
    pub(crate) const fn queue(&self) -> &ByteString {
        &self.arrival.queue
    }

    /// The claim of its call.
    pub(crate) const fn claim(&self) -> Option<Claim> {
        match self.noted {
            Some(Noted::Called(claim)) => Some(claim),
            Some(Noted::Started) | None => None,
        }
    }
}

/// The result of one item after a worker had it.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It is acknowledged.
    Acknowledge,
    /// The broker delivers it again after this delay.
    RetryLater(Duration),
    /// It failed and is retried in memory after this pause.
    Again(Duration),
    /// A service that its handler needs is down; no attempt was counted. It waits at least this pause, even if the
    /// breaker closes earlier.
    Away(Duration),
    /// Another worker has the message: it waits, and no attempt is counted.
    Busy(Duration),
    /// Another member holds the lane lease now.
    Lost,
    /// It returns to its queue: it shared a transaction that was rolled back, or was not begun.
    Alone,
    /// A store call failed.
    Store(StoreError),
}
