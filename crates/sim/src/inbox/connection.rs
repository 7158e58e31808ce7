//! A member's link to the broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::store::StoreError;
use relevo_core::{
    AckOutcome, BrokerConsumer, Class, ConsumerCapabilities, DelayedRetry, Delivery, DeliveryTag, Failure, Lane,
};

use crate::inbox::broker::Group;
use crate::inbox::event::Event;
use crate::inbox::pause::PauseGate;
use crate::link::FaultyLink;

/// One member's connection.
pub struct Connection {
    group: Arc<Group>,
    number: u64,
    link: FaultyLink<Event>,
    pause_gate: PauseGate,
    /// Numbers the pause and resume calls. A late call is ignored, as in a client library.
    control_count: AtomicU64,
}

impl Connection {
    /// Creates the connection with this number behind a link.
    pub const fn new(group: Arc<Group>, number: u64, link: FaultyLink<Event>, pause_gate: PauseGate) -> Self {
        Self { group, number, link, pause_gate, control_count: AtomicU64::new(0) }
    }

    async fn call<T: Send + 'static>(
        &self,
        effect: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, Failure> {
        self.pause_gate.wait_while_paused().await;
        let reply = self.link.call(effect).await;
        self.pause_gate.wait_while_paused().await;
        reply.map_err(|error| Failure::new(Class::Outage, error))
    }
}

#[async_trait]
impl BrokerConsumer for Connection {
    fn capabilities(&self) -> ConsumerCapabilities {
        ConsumerCapabilities { ordered_lanes: !self.group.is_shared(), prefetch: self.group.prefetch() }
    }

    fn delayed_retry(&self) -> Option<&dyn DelayedRetry> {
        Some(self)
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        let (group, number) = (Arc::clone(&self.group), self.number);
        // Deliveries that arrive while the process is paused wait for it.
        Ok(self.call(group.receive(number, limit)).await?.take())
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        self.settle(tags.iter().map(|tag| (*tag, None)).collect()).await
    }

    async fn pause(&self, lane: &Lane) -> Result<(), Failure> {
        self.set_paused(lane, true).await
    }

    async fn resume(&self, lane: &Lane) -> Result<(), Failure> {
        self.set_paused(lane, false).await
    }

    async fn close(&self) -> Result<(), Failure> {
        let (group, number) = (Arc::clone(&self.group), self.number);
        self.call(async move {
            group.close(number);
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl DelayedRetry for Connection {
    async fn retry_later(&self, retries: &[(DeliveryTag, Duration)]) -> Vec<AckOutcome> {
        self.settle(retries.iter().map(|(tag, delay)| (*tag, Some(*delay))).collect()).await
    }
}

impl Connection {
    async fn settle(&self, deliveries: Vec<(DeliveryTag, Option<Duration>)>) -> Vec<AckOutcome> {
        let (group, number, count) = (Arc::clone(&self.group), self.number, deliveries.len());
        let settled = self.call(async move { Ok(group.settle(number, &deliveries)) }).await;
        settled.unwrap_or_else(|failure| AckOutcome::failed(failure, count))
    }

    async fn set_paused(&self, lane: &Lane, pause: bool) -> Result<(), Failure> {
        let (group, number, lane) = (Arc::clone(&self.group), self.number, lane.clone());
        let control = self.control_count.fetch_add(1, Ordering::Relaxed) + 1;
        self.call(async move {
            group.pause(number, control, &lane, pause);
            Ok(())
        })
        .await
    }
}
