//! A broker consumer that reports received and acknowledged messages to the member's conduct.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use relevo_core::{Answer, Consumer, Consuming, Delivery, Failure, Lane, Tag};

use super::conduct::{Conduct, Point, Reached};
use super::handler::change_of;

pub(super) struct Watched {
    inner: Arc<dyn Consumer>,
    conduct: Arc<dyn Conduct>,
    /// The change numbers of unsettled messages.
    out: Mutex<BTreeMap<Tag, i64>>,
}

impl Watched {
    pub(super) fn new(inner: Arc<dyn Consumer>, conduct: Arc<dyn Conduct>) -> Self {
        Self { inner, conduct, out: Mutex::default() }
    }

    fn out(&self) -> MutexGuard<'_, BTreeMap<Tag, i64>> {
        // No code panics while it holds the lock.
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At these two points, no handler can return a verdict.
    async fn at(&self, point: Point, change: i64) {
        self.conduct.at(Reached { point, change, incoming: None }).await.ok();
    }
}

#[async_trait]
impl Consumer for Watched {
    fn capabilities(&self) -> Consuming {
        self.inner.capabilities()
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

    async fn settle(&self, answers: &[(Tag, Answer)]) -> Result<Vec<Tag>, Failure> {
        for (tag, answer) in answers {
            let change = self.out().get(tag).copied();
            if let (Some(change), Answer::Acknowledge) = (change, answer) {
                self.at(Point::Committed, change).await;
            }
        }
        let settled = self.inner.settle(answers).await;
        if settled.is_ok() {
            let mut out = self.out();
            for (tag, _) in answers {
                out.remove(tag);
            }
        }
        settled
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
