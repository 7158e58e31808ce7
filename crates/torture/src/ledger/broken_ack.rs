//! Broker consumers that are broken on purpose. They are slow on purpose too: whether a kill shows the mistake must not
//! depend on how fast the machine is.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::{
    AckOutcome, BrokerConsumer, ConsumerCapabilities, DelayedRetry, Delivery, DeliveryTag, Failure, Lane,
};
use tokio::time::sleep;

/// How long messages are acknowledged and not handled, or handled and not acknowledged.
const DELAY: Duration = Duration::from_millis(300);

/// When a broken consumer acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AckMistake {
    /// When it receives messages. They are lost if its member dies.
    Early,
    /// A while after it handled them. They are handled again if its member dies and its inbox forgot them.
    Late,
}

pub(super) struct BrokenAck {
    pub(super) inner: Arc<dyn BrokerConsumer>,
    pub(super) mistake: AckMistake,
}

#[async_trait]
impl BrokerConsumer for BrokenAck {
    fn capabilities(&self) -> ConsumerCapabilities {
        self.inner.capabilities()
    }

    fn delayed_retry(&self) -> Option<&dyn DelayedRetry> {
        self.inner.delayed_retry()
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        let deliveries = self.inner.receive(limit).await?;
        if self.mistake == AckMistake::Early {
            let tags: Vec<DeliveryTag> = deliveries.iter().map(|delivery| delivery.tag).collect();
            // Messages whose acknowledgement fails are delivered again.
            drop(self.inner.acknowledge(&tags).await);
            sleep(DELAY).await;
        }
        Ok(deliveries)
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        match self.mistake {
            AckMistake::Early => vec![AckOutcome::Acknowledged; tags.len()],
            AckMistake::Late => {
                sleep(DELAY).await;
                self.inner.acknowledge(tags).await
            }
        }
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
