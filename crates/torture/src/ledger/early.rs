//! A broker consumer that is broken on purpose: it acknowledges messages when it receives them. They are lost if its
//! member dies.

use std::sync::Arc;

use async_trait::async_trait;
use relevo_core::{Answer, Consumer, Consuming, Delivery, Failure, Lane, Tag};

pub(super) struct Early(pub(super) Arc<dyn Consumer>);

#[async_trait]
impl Consumer for Early {
    fn capabilities(&self) -> Consuming {
        self.0.capabilities()
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        let deliveries = self.0.receive(limit).await?;
        let answers: Vec<_> = deliveries.iter().map(|delivery| (delivery.tag, Answer::Acknowledge)).collect();
        self.0.settle(&answers).await?;
        Ok(deliveries)
    }

    async fn settle(&self, _answers: &[(Tag, Answer)]) -> Result<Vec<Tag>, Failure> {
        Ok(Vec::new())
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
