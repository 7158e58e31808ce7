//! A broker that can be stopped and that rejects marked messages, so that the demo shows outages, parked keys and dead
//! letters.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use relevo_core::broker::{Broker, Capabilities, OutcomeReceiver, OutcomeSender, Publication};
use relevo_core::failure::Outcome;
use relevo_core::{Class, Failure, MessageId};

use super::state::{DemoState, KeyState};

/// The header that marks a message to reject.
pub(crate) const FAULT_HEADER: &str = "x-demo-fault";
/// Its value for a message that is rejected [`REJECTIONS`] times and then accepted.
pub(crate) const TRANSIENT: &str = "transient";
/// Its value for a message whose first publish is rejected as `poison`. It is accepted after a redrive.
pub(crate) const POISON: &str = "poison";
/// The number of times that a message with the value [`TRANSIENT`] is rejected.
const REJECTIONS: u32 = 2;

/// The failure of every call while the broker is stopped.
pub(crate) fn stopped() -> Failure {
    Failure::new(Class::Outage, "the broker of the demo is stopped")
}

/// While the broker runs, passes every message that it does not reject to `inner`.
#[derive(Debug)]
pub(crate) struct FaultyBroker<B> {
    inner: B,
    state: Arc<DemoState>,
    /// The number of rejections of each marked message.
    rejections: Mutex<HashMap<MessageId, u32>>,
}

impl<B> FaultyBroker<B> {
    pub(crate) fn new(inner: B, state: Arc<DemoState>) -> Self {
        Self { inner, state, rejections: Mutex::default() }
    }

    /// The failure with which this message is rejected now, or `None` if it is accepted.
    fn rejection(&self, publication: &Publication) -> Option<Failure> {
        let message = &publication.message;
        let fault = message.headers.get(FAULT_HEADER)?.as_str();
        let mut rejections = self.rejections();
        let count = rejections.entry(message.id).or_default();
        let max = if fault == POISON { 1 } else { REJECTIONS };
        if *count >= max {
            rejections.remove(&message.id);
            drop(rejections);
            self.state.set_key(&message.key, KeyState::Normal);
            return None;
        }
        *count += 1;
        let is_first = *count == 1;
        drop(rejections);
        if fault == POISON {
            self.state.set_key(&message.key, KeyState::Dead);
            return Some(Failure::new(Class::Poison, "the demo rejects this order for good"));
        }
        if is_first {
            self.state.set_key(&message.key, KeyState::Parked);
        }
        Some(Failure::new(Class::Transient, "the demo rejects this order for now"))
    }

    fn rejections(&self) -> MutexGuard<'_, HashMap<MessageId, u32>> {
        // No code panics while the lock is held.
        self.rejections.lock()
    }
}

#[async_trait]
impl<B: Broker> Broker for FaultyBroker<B> {
    fn capabilities(&self) -> Capabilities {
        // A rejected message does not make later ones of its key in the batch fail, so only one message of a key may be
        // in flight.
        Capabilities { ordered_in_flight: false }
    }

    fn is_unreachable(&self) -> bool {
        !self.state.is_broker_up() || self.inner.is_unreachable()
    }

    async fn publish(&self, batch: &[Publication], confirms: &OutcomeSender) {
        if !self.state.is_broker_up() {
            return confirms.report_all((0..batch.len()).map(|index| (index, Err(stopped()))));
        }
        let mut rejected: Vec<(usize, Outcome)> = Vec::new();
        let mut passed = Vec::with_capacity(batch.len());
        for (index, publication) in batch.iter().enumerate() {
            match self.rejection(publication) {
                Some(failure) => rejected.push((index, Err(failure))),
                None => passed.push(index),
            }
        }
        if rejected.is_empty() {
            return self.inner.publish(batch, confirms).await;
        }
        confirms.report_all(rejected);
        let rest: Vec<_> = passed.iter().map(|index| batch[*index].clone()).collect();
        // `inner` numbers the messages of its own batch from 0. Its outcomes are reported with the indexes of the relay's
        // batch.
        let reports = OutcomeReceiver::default();
        self.inner.publish(&rest, &reports.sender(0)).await;
        confirms.report_all(reports.take().into_iter().map(|(_, index, outcome)| (passed[index], outcome)));
    }
}
