//! The port to the far side.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use crate::failure::Outcome;
use crate::headers::HeaderRules;
use crate::message::Message;

/// What a broker promises; the conformance suite holds it to every promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The broker itself keeps the order of one key's messages in flight: the first that fails fails its successors.
    /// Without it one message of a key is in flight at a time.
    pub fences_order: bool,
    /// The largest message it takes, in bytes.
    pub message_bytes_max: usize,
}

/// One message on its way to one address.
#[derive(Clone, Debug)]
pub struct Publication {
    /// What is sent.
    pub message: Arc<Message>,
    /// Where to: an exchange and routing key, a subject, a topic, a URL.
    pub address: Arc<str>,
    /// What its route changes in its headers.
    pub headers: Arc<HeaderRules>,
    /// The message's number in the outbox: a hint for receivers, who never drop by it.
    pub seq: i64,
    /// The lease under which it is sent.
    pub epoch: i64,
}

/// The far side.
#[async_trait]
pub trait Broker: Send + Sync {
    /// What this broker promises.
    fn capabilities(&self) -> Capabilities;

    /// Publishes a batch and reports one outcome a message, by its index, as soon as it is known.
    ///
    /// A message that was not reported when the future ends, or is dropped, may have arrived. The order of one key's
    /// messages within the batch is kept. Nothing is retried here: the relay decides.
    async fn publish(&self, batch: &[Publication], confirms: &Confirms);

    /// Whether nothing could pass at this moment, as far as is known without asking anybody: a connection that it keeps is
    /// lost, or could not be made. A broker without one to keep, or that has not tried yet, says no.
    fn is_away(&self) -> bool {
        false
    }
}

/// Where a broker reports outcomes. Cheap to clone; holds at most one outcome a message of its batch.
#[derive(Clone, Debug)]
pub struct Confirms {
    batch: u64,
    inner: Arc<Inbox>,
}

/// One reported outcome: which batch, which message of it, what became of it.
pub type Report = (u64, usize, Outcome);

#[derive(Debug, Default)]
struct Inbox {
    reports: Mutex<Vec<Report>>,
    waker: Mutex<Option<std::task::Waker>>,
}

impl Confirms {
    /// Reports what became of the batch's message `index`. Later reports of the same message are ignored.
    pub fn report(&self, index: usize, outcome: Outcome) {
        self.report_all([(index, outcome)]);
    }

    /// Reports several at once, at the price of one.
    pub fn report_all(&self, outcomes: impl IntoIterator<Item = (usize, Outcome)>) {
        let batch = self.batch;
        lock(&self.inner.reports).extend(outcomes.into_iter().map(|(index, outcome)| (batch, index, outcome)));
        if let Some(waker) = lock(&self.inner.waker).take() {
            waker.wake();
        }
    }
}

/// The relay's end of [`Confirms`].
#[derive(Debug, Default)]
pub struct Reports(Arc<Inbox>);

impl Reports {
    /// A handle for one batch.
    pub fn confirms(&self, batch: u64) -> Confirms {
        Confirms { batch, inner: Arc::clone(&self.0) }
    }

    /// Takes what has been reported since the last call.
    pub fn take(&self) -> Vec<Report> {
        std::mem::take(&mut *lock(&self.0.reports))
    }

    /// Ready when there is something to take.
    pub async fn ready(&self) {
        std::future::poll_fn(|context| {
            // The waker is stored before looking, so that a report in between is not missed.
            *lock(&self.0.waker) = Some(context.waker().clone());
            if lock(&self.0.reports).is_empty() { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
        })
        .await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing panics while it is held, and a list of outcomes is whole after every push.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
