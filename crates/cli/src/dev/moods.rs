//! A broker with moods: it refuses on purpose what asks for it, so that parking and dead letters are seen.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use relevo_core::broker::{Broker, Capabilities, OutcomeReceiver, OutcomeSender, Publication};
use relevo_core::failure::Outcome;
use relevo_core::{Class, Failure, MessageId};

use super::flow::{Flow, Trouble};

/// The header by which a message asks for trouble.
pub(crate) const MOOD: &str = "x-demo-mood";
/// Its value for a message that is refused [`REFUSALS`] times and then taken.
pub(crate) const GRUMPY: &str = "grumpy";
/// Its value for a message that is refused for good when it first comes.
pub(crate) const POISON: &str = "poison";
/// How often a grumpy broker refuses.
const REFUSALS: u32 = 2;

/// Passes on to the broker inside what it does not refuse.
#[derive(Debug)]
pub(crate) struct Moods<B> {
    inner: B,
    flow: Arc<Flow>,
    /// How often each message in trouble was refused.
    refused: Mutex<HashMap<MessageId, u32>>,
}

impl<B> Moods<B> {
    pub(crate) fn new(inner: B, flow: Arc<Flow>) -> Self {
        Self { inner, flow, refused: Mutex::default() }
    }

    /// The refusal that this message gets now, if it gets one.
    fn refusal(&self, publication: &Publication) -> Option<Failure> {
        let message = &publication.message;
        let mood = message.headers.get(MOOD)?.as_str();
        let mut refused = self.refused();
        let times = refused.entry(message.id).or_default();
        let most = if mood == POISON { 1 } else { REFUSALS };
        if *times >= most {
            refused.remove(&message.id);
            drop(refused);
            self.flow.trouble(&message.key, Trouble::Over);
            return None;
        }
        *times += 1;
        let first = *times == 1;
        drop(refused);
        if mood == POISON {
            self.flow.trouble(&message.key, Trouble::Dead);
            return Some(Failure::new(Class::Poison, "this order cannot be shipped, on purpose"));
        }
        if first {
            self.flow.trouble(&message.key, Trouble::Parked);
        }
        Some(Failure::new(Class::Transient, "not now, on purpose"))
    }

    fn refused(&self) -> MutexGuard<'_, HashMap<MessageId, u32>> {
        // Nothing panics while it is held.
        self.refused.lock()
    }
}

#[async_trait]
impl<B: Broker> Broker for Moods<B> {
    fn capabilities(&self) -> Capabilities {
        // A refused message does not fail its successors in the same batch: one of a key at a time.
        Capabilities { ordered_in_flight: false }
    }

    fn is_unreachable(&self) -> bool {
        self.inner.is_unreachable()
    }

    async fn publish(&self, batch: &[Publication], confirms: &OutcomeSender) {
        let mut refused: Vec<(usize, Outcome)> = Vec::new();
        let mut passed = Vec::with_capacity(batch.len());
        for (index, publication) in batch.iter().enumerate() {
            match self.refusal(publication) {
                Some(failure) => refused.push((index, Err(failure))),
                None => passed.push(index),
            }
        }
        if refused.is_empty() {
            return self.inner.publish(batch, confirms).await;
        }
        confirms.report_all(refused);
        let rest: Vec<_> = passed.iter().map(|index| batch[*index].clone()).collect();
        // The broker inside counts from nought; its outcomes are told under the places that the relay knows.
        let reports = OutcomeReceiver::default();
        self.inner.publish(&rest, &reports.sender(0)).await;
        confirms.report_all(reports.take().into_iter().map(|(_, index, outcome)| (passed[index], outcome)));
    }
}
