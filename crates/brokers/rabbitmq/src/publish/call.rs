//! One call of `publish`, and what its messages became.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use relevo_core::{Confirms, Outcome};
use tokio::sync::Notify;

use super::parcel::Parcel;
use crate::classify::Error;

/// One call of `publish`. Several channels may work for it.
#[derive(Debug)]
pub(crate) struct Call {
    confirms: Confirms,
    open: AtomicUsize,
    all_told: Notify,
    abandoned: AtomicBool,
    began: Instant,
}

/// One message of a call, not sent yet.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) ticket: Ticket,
    pub(crate) parcel: Parcel,
}

/// Which message of which call.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    pub(crate) call: Arc<Call>,
    pub(crate) index: usize,
}

/// What became of which message.
pub(crate) type Told = (Ticket, Result<(), Error>);

impl Call {
    pub(crate) fn new(confirms: &Confirms, messages: usize) -> Arc<Self> {
        Arc::new(Self {
            confirms: confirms.clone(),
            open: AtomicUsize::new(messages),
            all_told: Notify::new(),
            abandoned: AtomicBool::new(false),
            began: Instant::now(),
        })
    }

    /// Whether nobody waits any more: what is not sent must not be.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    pub(crate) const fn began(&self) -> Instant {
        self.began
    }

    /// Reports outcomes, and wakes the caller after the last.
    pub(crate) fn tell(&self, outcomes: Vec<(usize, Outcome)>) {
        let told = outcomes.len();
        if !self.is_abandoned() {
            self.confirms.report_all(outcomes);
        }
        if self.open.fetch_sub(told, Ordering::AcqRel) == told {
            self.all_told.notify_one();
        }
    }

    /// Hands the messages over, and returns when every one has its outcome. Dropped before, nothing more of the call is sent
    /// or reported.
    pub(crate) async fn finished_after(&self, hand_over: impl Future<Output = ()>) {
        let mut leaving = Leaving { call: self, finished: false };
        hand_over.await;
        while self.open.load(Ordering::Acquire) > 0 {
            self.all_told.notified().await;
        }
        leaving.finished = true;
    }
}

struct Leaving<'a> {
    call: &'a Call,
    finished: bool,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.call.abandoned.store(true, Ordering::Release);
        }
    }
}

/// Reports many outcomes, those of one call together.
pub(crate) fn tell_all(told: Vec<Told>) {
    let mut told = told.into_iter().peekable();
    while let Some((ticket, outcome)) = told.next() {
        let mut outcomes = vec![(ticket.index, outcome.map_err(Into::into))];
        while let Some((next, outcome)) = told.next_if(|(next, _)| Arc::ptr_eq(&next.call, &ticket.call)) {
            outcomes.push((next.index, outcome.map_err(Into::into)));
        }
        ticket.call.tell(outcomes);
    }
}
