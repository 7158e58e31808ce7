//! A broker consumer that reports received and acknowledged messages to the member's behaviour.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use relevo_core::{
    AckOutcome, BrokerConsumer, ConsumerCapabilities, DelayedRetry, Delivery, DeliveryTag, Failure, Lane,
};

use super::behaviour::{Behaviour, Point, PointReached};
use super::handler::change_of;

pub(super) struct ObservedConsumer {
    inner: Arc<dyn BrokerConsumer>,
    behaviour: Arc<dyn Behaviour>,
    /// The change numbers of unsettled messages.
    out: Mutex<BTreeMap<DeliveryTag, i64>>,
}

impl ObservedConsumer {
    pub(super) fn new(inner: Arc<dyn BrokerConsumer>, behaviour: Arc<dyn Behaviour>) -> Self {
        Self { inner, behaviour, out: Mutex::default() }
    }

    fn out(&self) -> MutexGuard<'_, BTreeMap<DeliveryTag, i64>> {
        // No code panics while it holds the lock.
        self.out.lock()
    }

    /// At these two points, no handler can return a verdict.
    async fn at(&self, point: Point, change: i64) {
        self.behaviour.at(PointReached { point, change, incoming: None }).await.ok();
    }
}

#[async_trait]
impl BrokerConsumer for ObservedConsumer {
    fn capabilities(&self) -> ConsumerCapabilities {
        self.inner.capabilities()
    }

    fn delayed_retry(&self) -> Option<&dyn DelayedRetry> {
        self.inner.delayed_retry()
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        let deliveries = self.inner.receive(limit).await?;
        for delivery in &deliveries {
            let Some(change) = change_of(&delivery.raw.payload) else { continue };
            self.out().insert(delivery.tag, change);
            self.at(Point::Before, change).await;
        }
        Ok(deliveries)
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        for tag in tags {
            let change = self.out().get(tag).copied();
            if let Some(change) = change {
                self.at(Point::Committed, change).await;
            }
        }
        let outcomes = self.inner.acknowledge(tags).await;
        let mut out = self.out();
        for (tag, outcome) in tags.iter().zip(&outcomes) {
            if !matches!(outcome, AckOutcome::Failed(_)) {
                out.remove(tag);
            }
        }
        drop(out);
        outcomes
    }

    async fn pause(&self, lane: &Lane) -> Result<(), Failure> {
        self.inner.pause(lane).await
    }

    async fn resume(&self, lane: &Lane) -> Result<(), Failure> {
        self.inner.resume(lane).await
    }

    async fn lag(&self) -> Result<Vec<(Lane, u64)>, Failure> {
        self.inner.lag().await
    }

    async fn close(&self) -> Result<(), Failure> {
        self.inner.close().await
    }
}
