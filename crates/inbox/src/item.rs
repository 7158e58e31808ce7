//! A delivery on its way through this process.

use std::time::Duration;

use bytestring::ByteString;
use relevo_core::DeliveryTag;
use relevo_core::inbox::{Arrival, Claim, Setback};
use relevo_core::store::StoreError;
use relevo_core::trace::Open;

use crate::incoming::Incoming;

/// A delivery on its way through this process.
#[derive(Debug)]
pub(crate) struct Item {
    /// What an acknowledgement names it by.
    pub(crate) tag: DeliveryTag,
    /// It may have been delivered before.
    pub(crate) redelivered: bool,
    pub(crate) arrival: Arrival,
    /// What its handler sees, or why there is nothing to see.
    pub(crate) incoming: Result<Incoming, String>,
    /// Counted tries so far.
    pub(crate) attempts: u32,
    /// Whether it may share a transaction with others.
    pub(crate) shares: bool,
    /// Its handling was noted in the store, and is to be noted as ended before it is begun again.
    pub(crate) noted: Option<Noted>,
    /// It came after a later one of its key, maybe because it comes again: the inbox knows.
    pub(crate) inverted: bool,
    /// How often the database refused a call about it.
    pub(crate) refused: u32,
    /// What was decided of it and is not written down yet: it is not handled again.
    pub(crate) decided: Option<Decided>,
    /// Tells that it waits for a worker.
    pub(crate) span: Option<Open>,
}

/// What the store knows of a handling that was begun.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Noted {
    /// That it was begun.
    Started,
    /// That the far side is called for it.
    Called(Claim),
}

/// A decision that the store is to keep.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) setback: Setback,
    /// The claim that its call had.
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

/// What became of an item at one worker.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It is acknowledged.
    Acknowledge,
    /// The broker delivers it again after this delay.
    RetryLater(Duration),
    /// It failed, and is tried again in memory after this pause.
    Again(Duration),
    /// What its handler needs is away; no attempt was counted. Not before this pause, should the breaker be closed.
    Away(Duration),
    /// Another worker has it in hand: no attempt, only a delay.
    Busy(Duration),
    /// The lane is another's now.
    Lost,
    /// It shared a transaction that was rolled back, maybe because of another.
    Alone,
    /// The database did not do it.
    Store(StoreError),
}
