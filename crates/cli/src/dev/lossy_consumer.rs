//! A broker consumer that drops some acknowledgements, so that messages are delivered again. It simulates workers that
//! die after their commit. While the broker is stopped, every call fails.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use relevo_core::broker_consumer::{AckOutcome, BrokerConsumer, ConsumerCapabilities, Delivery, DeliveryTag, Lane};
use relevo_core::random::SplitMix64;
use relevo_core::{Failure, MessageId};
use tokio::sync::Notify;

use super::faulty_broker::stopped;
use super::state::DemoState;

/// One in this number of acknowledgements is dropped.
const LOST_ACK_ONE_IN: u32 = 100;

/// Passes every call to `inner`, except for the acknowledgements that it drops.
pub(crate) struct LossyConsumer<C> {
    inner: C,
    state: Arc<DemoState>,
    deliveries: Mutex<Deliveries>,
    dropped: Notify,
}

struct Deliveries {
    random: SplitMix64,
    outstanding: BTreeMap<DeliveryTag, Delivery>,
    /// Deliveries whose acknowledgement was dropped. They are delivered again. For `inner` they are still outstanding.
    repeats: VecDeque<Delivery>,
}

impl<C> LossyConsumer<C> {
    pub(crate) fn new(inner: C, state: Arc<DemoState>, random: SplitMix64) -> Self {
        let deliveries = Deliveries { random, outstanding: BTreeMap::new(), repeats: VecDeque::new() };
        Self { inner, state, deliveries: Mutex::new(deliveries), dropped: Notify::new() }
    }

    fn deliveries(&self) -> MutexGuard<'_, Deliveries> {
        // No code panics while the lock is held.
        self.deliveries.lock()
    }

    fn take_repeats(&self, limit: usize) -> Vec<Delivery> {
        let repeats = &mut self.deliveries().repeats;
        repeats.drain(..repeats.len().min(limit)).collect()
    }

    /// Whether to drop the acknowledgement of this delivery. If so, the delivery is queued again.
    fn drops(&self, tag: DeliveryTag) -> bool {
        let mut guard = self.deliveries();
        let Deliveries { random, outstanding, repeats } = &mut *guard;
        if !random.one_in(LOST_ACK_ONE_IN) {
            outstanding.remove(&tag);
            return false;
        }
        let Some(delivery) = outstanding.get(&tag) else { return false };
        repeats.push_back(Delivery { redelivered: true, ..delivery.clone() });
        true
    }

    /// Shipping acknowledges after its commit, so the messages of these deliveries are applied.
    fn report_applied(&self, tags: &[DeliveryTag]) {
        let deliveries = self.deliveries();
        let acknowledged = tags.iter().filter_map(|tag| deliveries.outstanding.get(tag));
        self.state.applied(acknowledged.filter_map(message_id));
    }
}

/// The id of a message that the relay published.
fn message_id(delivery: &Delivery) -> Option<MessageId> {
    let (_, id) = delivery.raw.headers.iter().find(|(name, _)| name == "ce-id")?;
    std::str::from_utf8(id).ok()?.parse().ok()
}

#[async_trait]
impl<C: BrokerConsumer> BrokerConsumer for LossyConsumer<C> {
    fn capabilities(&self) -> ConsumerCapabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        loop {
            let dropped = self.dropped.notified();
            if !self.state.is_broker_up() {
                return Err(stopped());
            }
            let repeats = self.take_repeats(limit);
            if !repeats.is_empty() {
                return Ok(repeats);
            }
            tokio::select! {
                () = self.state.broker_stopped() => return Err(stopped()),
                () = dropped => {}
                received = self.inner.receive(limit) => {
                    let deliveries = received?;
                    let copies = deliveries.iter().map(|delivery| (delivery.tag, delivery.clone()));
                    self.deliveries().outstanding.extend(copies);
                    return Ok(deliveries);
                }
            }
        }
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        self.report_applied(tags);
        if !self.state.is_broker_up() {
            return AckOutcome::failed(stopped(), tags.len());
        }
        let dropped: Vec<bool> = tags.iter().map(|tag| self.drops(*tag)).collect();
        let rest: Vec<DeliveryTag> =
            tags.iter().zip(&dropped).filter(|(_, dropped)| !**dropped).map(|(tag, _)| *tag).collect();
        let mut outcomes = self.inner.acknowledge(&rest).await.into_iter();
        self.dropped.notify_one();
        let outcome = |dropped: bool| {
            if dropped { AckOutcome::Acknowledged } else { outcomes.next().expect("one outcome per delivery") }
        };
        dropped.into_iter().map(outcome).collect()
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
