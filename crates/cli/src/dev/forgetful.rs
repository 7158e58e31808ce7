//! A broker consumer that drops some acknowledgements, so that messages are delivered again. It simulates workers that
//! die after their commit.

use std::collections::{BTreeMap, VecDeque};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use relevo_core::Failure;
use relevo_core::broker_consumer::{AckOutcome, BrokerConsumer, ConsumerCapabilities, Delivery, DeliveryTag, Lane};
use relevo_core::random::SplitMix64;
use tokio::sync::Notify;

/// One in this number of acknowledgements is dropped.
const FORGETS: u32 = 100;

/// Passes every call to `inner`, except for the acknowledgements that it drops.
pub(crate) struct Forgetful<C> {
    inner: C,
    state: Mutex<State>,
    forgot: Notify,
}

struct State {
    random: SplitMix64,
    outstanding: BTreeMap<DeliveryTag, Delivery>,
    /// Deliveries whose acknowledgement was dropped. They are delivered again. For `inner` they are still outstanding.
    again: VecDeque<Delivery>,
}

impl<C> Forgetful<C> {
    pub(crate) fn new(inner: C, random: SplitMix64) -> Self {
        let state = State { random, outstanding: BTreeMap::new(), again: VecDeque::new() };
        Self { inner, state: Mutex::new(state), forgot: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while the lock is held.
        self.state.lock()
    }

    fn take_again(&self, limit: usize) -> Vec<Delivery> {
        let again = &mut self.state().again;
        again.drain(..again.len().min(limit)).collect()
    }

    /// Whether to drop the acknowledgement of this delivery. If so, the delivery is queued again.
    fn forgets(&self, tag: DeliveryTag) -> bool {
        let mut state = self.state();
        if !state.random.one_in(FORGETS) {
            state.outstanding.remove(&tag);
            return false;
        }
        let Some(delivery) = state.outstanding.get(&tag) else { return false };
        let repeat = Delivery { redelivered: true, ..delivery.clone() };
        state.again.push_back(repeat);
        true
    }
}

#[async_trait]
impl<C: BrokerConsumer> BrokerConsumer for Forgetful<C> {
    fn capabilities(&self) -> ConsumerCapabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        loop {
            let forgot = self.forgot.notified();
            let again = self.take_again(limit);
            if !again.is_empty() {
                return Ok(again);
            }
            tokio::select! {
                () = forgot => {}
                received = self.inner.receive(limit) => {
                    let deliveries = received?;
                    let copies = deliveries.iter().map(|delivery| (delivery.tag, delivery.clone()));
                    self.state().outstanding.extend(copies);
                    return Ok(deliveries);
                }
            }
        }
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        let forgotten: Vec<bool> = tags.iter().map(|tag| self.forgets(*tag)).collect();
        let rest: Vec<DeliveryTag> =
            tags.iter().zip(&forgotten).filter(|(_, forgotten)| !**forgotten).map(|(tag, _)| *tag).collect();
        let mut outcomes = self.inner.acknowledge(&rest).await.into_iter();
        self.forgot.notify_one();
        let outcome = |forgotten: bool| {
            if forgotten { AckOutcome::Acknowledged } else { outcomes.next().expect("one outcome per delivery") }
        };
        forgotten.into_iter().map(outcome).collect()
    }

    async fn pause(&self, lane: &Lane) -> Result<(), Failure> {
        self.inner.pause(lane).await
    }

    async fn resume(&self, lane: &Lane) -> Result<(), Failure> {
        self.inner.resume(lane).await
    }

    async fn close(&self) -> Result<(), Failure> {
        self.inner.close().await
    }
}
