//! One call of `publish`, and the outcomes of its messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use lapin::{ConnectionState, ErrorKind};
use relevo_core::{Outcome, OutcomeSender};
use tokio::sync::Notify;

use super::encode::EncodedMessage;
use crate::classify::Error;

/// One call of `publish`. Several channels may publish its messages.
#[derive(Debug)]
pub(crate) struct PublishCall {
    confirms: OutcomeSender,
    unreported: AtomicUsize,
    all_reported: Notify,
    abandoned: AtomicBool,
    started_at: Instant,
}

/// A message of a call that was not sent yet.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub(crate) pending: PendingConfirm,
    pub(crate) message: EncodedMessage,
}

/// Identifies a message of a call. A value that is dropped without an outcome reports one: a call waits for all its
/// messages.
#[derive(Debug)]
pub(crate) struct PendingConfirm {
    call: Arc<PublishCall>,
    index: usize,
    sent: bool,
    reported: bool,
}

impl PendingConfirm {
    pub(crate) fn new(call: &Arc<PublishCall>, index: usize) -> Self {
        Self { call: Arc::clone(call), index, sent: false, reported: false }
    }

    pub(crate) fn call(&self) -> &PublishCall {
        &self.call
    }

    /// Marks the message as sent: it may arrive.
    pub(crate) fn mark_sent(&mut self) {
        self.sent = true;
    }
}

impl Drop for PendingConfirm {
    fn drop(&mut self) {
        if self.reported {
            return;
        }
        let error = if self.sent {
            Error::ConnectionLost(ErrorKind::InvalidConnectionState(ConnectionState::Closed).into())
        } else {
            Error::Closed
        };
        self.call.report(vec![(self.index, Err(error.into()))]);
    }
}

/// The outcome of a message.
pub(crate) type ConfirmResult = (PendingConfirm, Result<(), Error>);

impl PublishCall {
    /// `started_at` is the start of the caller's wait.
    pub(crate) fn new(confirms: &OutcomeSender, messages: usize, started_at: Instant) -> Arc<Self> {
        Arc::new(Self {
            confirms: confirms.clone(),
            unreported: AtomicUsize::new(messages),
            all_reported: Notify::new(),
            abandoned: AtomicBool::new(false),
            started_at,
        })
    }

    /// Whether the caller was cancelled: unsent messages must not be sent.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    pub(crate) const fn started_at(&self) -> Instant {
        self.started_at
    }

    /// Reports outcomes, and wakes the caller after the last one.
    pub(crate) fn report(&self, outcomes: Vec<(usize, Outcome)>) {
        let count = outcomes.len();
        if !self.is_abandoned() {
            self.confirms.report_all(outcomes);
        }
        if self.unreported.fetch_sub(count, Ordering::AcqRel) == count {
            self.all_reported.notify_one();
        }
    }

    /// Runs `enqueue`, and returns when every message has an outcome. If it is dropped before, the call sends and
    /// reports nothing more.
    pub(crate) async fn wait_for_outcomes(&self, enqueue: impl Future<Output = ()>) {
        let mut guard = AbandonOnDrop { call: self, finished: false };
        enqueue.await;
        while self.unreported.load(Ordering::Acquire) > 0 {
            self.all_reported.notified().await;
        }
        guard.finished = true;
    }
}

struct AbandonOnDrop<'a> {
    call: &'a PublishCall,
    finished: bool,
}

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.call.abandoned.store(true, Ordering::Release);
        }
    }
}

/// Reports outcomes, grouped by call.
pub(crate) fn report_all(results: Vec<ConfirmResult>) {
    let mut results = results.into_iter().peekable();
    while let Some((mut pending, outcome)) = results.next() {
        pending.reported = true;
        let mut outcomes = vec![(pending.index, outcome.map_err(Into::into))];
        while let Some((mut next, outcome)) = results.next_if(|(next, _)| Arc::ptr_eq(&next.call, &pending.call)) {
            next.reported = true;
            outcomes.push((next.index, outcome.map_err(Into::into)));
        }
        pending.call.report(outcomes);
    }
}

#[cfg(test)]
mod tests {
    use relevo_core::Class;
    use relevo_core::broker::OutcomeReceiver;

    use super::*;

    #[tokio::test]
    async fn a_dropped_message_does_not_block_its_caller() {
        let reports = OutcomeReceiver::default();
        let call = PublishCall::new(&reports.sender(1), 2, Instant::now());
        call.wait_for_outcomes(async {
            let mut sent = PendingConfirm::new(&call, 0);
            sent.mark_sent();
            drop((sent, PendingConfirm::new(&call, 1)));
        })
        .await;
        let classes: Vec<_> =
            reports.take().into_iter().map(|(_, _, outcome)| outcome.map_err(|failure| failure.class())).collect();
        assert_eq!(classes, [Err(Class::Unknown), Err(Class::Outage)]);
    }
}
