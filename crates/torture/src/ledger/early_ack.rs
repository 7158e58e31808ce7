//! A broker consumer that is broken on purpose: it acknowledges messages when it receives them. They are lost if its
//! member dies.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::{
    AckOutcome, BrokerConsumer, ConsumerCapabilities, DelayedRetry, Delivery, DeliveryTag, Failure, Lane,
};

/// How long acknowledged messages are only in memory before they are handled.
const HELD_FOR: Duration = Duration::from_millis(200);

pub(super) struct EarlyAck(pub(super) Arc<dyn BrokerConsumer>);

#[async_trait]
impl BrokerConsumer for EarlyAck {
    fn capabilities(&self) -> ConsumerCapabilities {
        self.0.capabilities()
    }

    fn delayed_retry(&self) -> Option<&dyn DelayedRetry> {
        self.0.delayed_retry()
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        let deliveries = self.0.receive(limit).await?;
        let tags: Vec<DeliveryTag> = deliveries.iter().map(|delivery| delivery.tag).collect();
        // Messages whose acknowledgement fails are delivered again.
        drop(self.0.acknowledge(&tags).await);
        // A consumer that is faster than the writers has no message in memory most of the time, and a kill would miss.
        tokio::time::sleep(HELD_FOR).await;
        Ok(deliveries)
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        vec![AckOutcome::Acknowledged; tags.len()]
    }

    async fn pause(&self, lane: &Lane) -> Result<(), Failure> {
        self.0.pause(lane).await
    }

    async fn resume(&self, lane: &Lane) -> Result<(), Failure> {
        self.0.resume(lane).await
    }

    async fn lag(&self) -> Result<Vec<(Lane, u64)>, Failure> {
        self.0.lag().await
    }

    async fn close(&self) -> Result<(), Failure> {
        self.0.close().await
    }
}
