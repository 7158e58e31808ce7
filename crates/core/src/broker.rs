//! The broker port of the relay.

pub mod admin;
pub mod sample;

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::failure::Outcome;
use crate::header_rules::HeaderRules;
use crate::message::Message;

/// The guarantees of a broker. The conformance suite tests every guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The broker keeps the order of in-flight messages of one key: if one fails, its successors fail too. Without it,
    /// the relay keeps only one message of a key in flight.
    pub ordered_in_flight: bool,
}

/// One message with its target address.
#[derive(Clone, Debug)]
pub struct Publication {
    /// The message.
    pub message: Arc<Message>,
    /// The target: an exchange and routing key, a subject, a topic or a URL.
    pub address: Arc<str>,
    /// The header changes of its route.
    pub headers: Arc<HeaderRules>,
    /// The message's number in the outbox. Receivers may use it as a hint, but must not drop messages by it.
    pub seq: i64,
    /// The epoch of the lease under which it is sent.
    pub epoch: i64,
}

/// A message broker, as the relay uses it.
#[async_trait]
pub trait Broker: Send + Sync {
    /// The guarantees of this broker.
    fn capabilities(&self) -> Capabilities;

    /// Publishes a batch. Reports one outcome per message, by its index, as soon as it is known.
    ///
    /// A message without a reported outcome when the future ends or is dropped may have arrived. The broker keeps the
    /// order of one key's messages within the batch. It never retries: the relay decides.
    async fn publish(&self, batch: &[Publication], confirms: &OutcomeSender);

    /// Whether the broker is known to be unreachable now, without sending a request: its connection was lost or could
    /// not be opened. Returns `false` if the broker keeps no connection or has not tried to connect yet.
    fn is_unreachable(&self) -> bool {
        false
    }

    /// Closes its connections. Messages in flight may have been stored, and later calls fail. The default keeps no
    /// connections.
    async fn close(&self) {}
}

/// The sender of outcomes for one batch. Cheap to clone. Stores at most one outcome per message of the batch.
#[derive(Clone, Debug)]
pub struct OutcomeSender {
    batch: u64,
    queue: Arc<OutcomeQueue>,
}

/// One reported outcome: the batch, the index of the message, the outcome.
pub type ReportedOutcome = (u64, usize, Outcome);

#[derive(Debug, Default)]
struct OutcomeQueue {
    outcomes: Mutex<Vec<ReportedOutcome>>,
    waker: Mutex<Option<std::task::Waker>>,
}

impl OutcomeSender {
    /// Reports the outcome of the batch's message `index`. Later reports for the same message are ignored.
    pub fn report(&self, index: usize, outcome: Outcome) {
        self.report_all([(index, outcome)]);
    }

    /// Reports several outcomes under one lock.
    pub fn report_all(&self, outcomes: impl IntoIterator<Item = (usize, Outcome)>) {
        let batch = self.batch;
        self.queue.outcomes.lock().extend(outcomes.into_iter().map(|(index, outcome)| (batch, index, outcome)));
        if let Some(waker) = self.queue.waker.lock().take() {
            waker.wake();
        }
    }
}

/// The relay's receiving end of [`OutcomeSender`].
#[derive(Debug, Default)]
pub struct OutcomeReceiver(Arc<OutcomeQueue>);

impl OutcomeReceiver {
    /// Creates the sender for one batch.
    pub fn sender(&self, batch: u64) -> OutcomeSender {
        OutcomeSender { batch, queue: Arc::clone(&self.0) }
    }

    /// Takes the outcomes reported since the last call.
    pub fn take(&self) -> Vec<ReportedOutcome> {
        std::mem::take(&mut *self.0.outcomes.lock())
    }

    /// Waits until there are outcomes to take.
    pub async fn ready(&self) {
        std::future::poll_fn(|context| {
            // Store the waker before checking, so that a report in between is not missed.
            *self.0.waker.lock() = Some(context.waker().clone());
            if self.0.outcomes.lock().is_empty() { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
        })
        .await;
    }
}
