//! One call of `publish`, and the outcomes of its messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use lapin::{ConnectionState, ErrorKind};
use relevo_core::{Confirms, Outcome};
use tokio::sync::Notify;

use super::parcel::Parcel;
use crate::classify::Error;

/// One call of `publish`. Several channels may publish its messages.
#[derive(Debug)]
pub(crate) struct Call {
    confirms: Confirms,
    open: AtomicUsize,
    all_told: Notify,
    abandoned: AtomicBool,
    began: Instant,
}

/// A message of a call that was not sent yet.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) ticket: Ticket,
    pub(crate) parcel: Parcel,
}

/// Identifies a message of a call. A ticket that is dropped without an outcome reports one: a call waits for all its
/// messages.
#[derive(Debug)]
pub(crate) struct Ticket {
    call: Arc<Call>,
    index: usize,
    sent: bool,
    told: bool,
}

impl Ticket {
    pub(crate) fn new(call: &Arc<Call>, index: usize) -> Self {
        Self { call: Arc::clone(call), index, sent: false, told: false }
    }

    pub(crate) fn call(&self) -> &Call {
        &self.call
    }

    /// Marks the message as sent: it may arrive.
    pub(crate) fn sent(&mut self) {
        self.sent = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.told {
            return;
        }
        let why = if self.sent {
            Error::Broken(ErrorKind::InvalidConnectionState(ConnectionState::Closed).into())
        } else {
            Error::Closed
        };
        self.call.tell(vec![(self.index, Err(why.into()))]);
    }
}

/// The outcome of a message.
pub(crate) type Told = (Ticket, Result<(), Error>);

impl Call {
    /// `began` is the start of the caller's wait.
    pub(crate) fn new(confirms: &Confirms, messages: usize, began: Instant) -> Arc<Self> {
        Arc::new(Self {
            confirms: confirms.clone(),
            open: AtomicUsize::new(messages),
            all_told: Notify::new(),
            abandoned: AtomicBool::new(false),
            began,
        })
    }

    /// Whether the caller was cancelled: unsent messages must not be sent.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    pub(crate) const fn began(&self) -> Instant {
        self.began
    }

    /// Reports outcomes, and wakes the caller after the last one.
    pub(crate) fn tell(&self, outcomes: Vec<(usize, Outcome)>) {
        let told = outcomes.len();
        if !self.is_abandoned() {
            self.confirms.report_all(outcomes);
        }
        if self.open.fetch_sub(told, Ordering::AcqRel) == told {
            self.all_told.notify_one();
        }
    }

    /// Runs `hand_over`, and returns when every message has an outcome. If it is dropped before, the call sends and
    /// reports nothing more.
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

/// Reports outcomes, grouped by call.
pub(crate) fn tell_all(told: Vec<Told>) {
    let mut told = told.into_iter().peekable();
    while let Some((mut ticket, outcome)) = told.next() {
        ticket.told = true;
        let mut outcomes = vec![(ticket.index, outcome.map_err(Into::into))];
        while let Some((mut next, outcome)) = told.next_if(|(next, _)| Arc::ptr_eq(&next.call, &ticket.call)) {
            next.told = true;
            outcomes.push((next.index, outcome.map_err(Into::into)));
        }
        ticket.call.tell(outcomes);
    }
}

#[cfg(test)]
mod tests {
    use relevo_core::Class;
    use relevo_core::broker::Reports;

    use super::*;

    #[tokio::test]
    async fn a_message_that_is_forgotten_keeps_no_caller_waiting() {
        let reports = Reports::default();
        let call = Call::new(&reports.confirms(1), 2, Instant::now());
        call.finished_after(async {
            let mut sent = Ticket::new(&call, 0);
            sent.sent();
            drop((sent, Ticket::new(&call, 1)));
        })
        .await;
        let told: Vec<_> =
            reports.take().into_iter().map(|(_, _, outcome)| outcome.map_err(|why| why.class())).collect();
        assert_eq!(told, [Err(Class::Unknown), Err(Class::Outage)]);
    }
}
