//! A broker that rejects marked messages, so that the demo shows parked keys and dead letters.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use relevo_core::broker::{Broker, Capabilities, OutcomeReceiver, OutcomeSender, Publication};
use relevo_core::failure::Outcome;
use relevo_core::{Class, Failure, MessageId};

use super::flow::{Flow, Trouble};

/// The header that marks a message to reject.
pub(crate) const MOOD: &str = "x-demo-mood";
/// Its value for a message that is rejected [`REFUSALS`] times and then accepted.
pub(crate) const GRUMPY: &str = "grumpy";
/// Its value for a message whose first publish is rejected as `poison`. It is accepted after a redrive.
pub(crate) const POISON: &str = "poison";
/// How often a message with the value [`GRUMPY`] is rejected.
const REFUSALS: u32 = 2;

/// Passes every message that it does not reject to `inner`.
#[derive(Debug)]
pub(crate) struct Moods<B> {
    inner: B,
    flow: Arc<Flow>,
    /// How often each marked message was rejected.
    refused: Mutex<HashMap<MessageId, u32>>,
}

impl<B> Moods<B> {
    pub(crate) fn new(inner: B, flow: Arc<Flow>) -> Self {
        Self { inner, flow, refused: Mutex::default() }
    }

    /// The failure with which this message is rejected now, or `None` if it is accepted.
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
            return Some(Failure::new(Class::Poison, "the demo rejects this order for good"));
        }
        if first {
            self.flow.trouble(&message.key, Trouble::Parked);
        }
        Some(Failure::new(Class::Transient, "the demo rejects this order for now"))
    }

    fn refused(&self) -> MutexGuard<'_, HashMap<MessageId, u32>> {
        // No code panics while the lock is held.
        self.refused.lock()
    }
}

#[async_trait]
impl<B: Broker> Broker for Moods<B> {
    fn capabilities(&self) -> Capabilities {
        // A rejected message does not make later ones of its key in the batch fail, so only one message of a key may be
        // in flight.
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
        // `inner` numbers the messages of its own batch from 0. Its outcomes are reported with the indexes of the relay's
        // batch.
        let reports = OutcomeReceiver::default();
        self.inner.publish(&rest, &reports.sender(0)).await;
        confirms.report_all(reports.take().into_iter().map(|(_, index, outcome)| (passed[index], outcome)));
    }
}
