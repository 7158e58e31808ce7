//! A consumer that forgets to answer now and then, as a worker that dies after its commit: what it had comes again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::Failure;
use relevo_core::consume::{Answer, Consumer, Consuming, Delivery, Lane, Tag};

use relevo_core::random::SplitMix64;

/// One answer in so many is forgotten.
const FORGETS: u32 = 100;

/// Passes on to the consumer inside all but what it forgets.
pub(crate) struct Forgetful<C> {
    pub(crate) inner: C,
    pub(crate) random: Mutex<SplitMix64>,
}

#[async_trait]
impl<C: Consumer> Consumer for Forgetful<C> {
    fn capabilities(&self) -> Consuming {
        self.inner.capabilities()
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        self.inner.receive(limit).await
    }

    async fn settle(&self, answers: &[(Tag, Answer)]) -> Result<Vec<Tag>, Failure> {
        let mut answers = answers.to_vec();
        for (_, answer) in answers.iter_mut().filter(|(_, answer)| *answer == Answer::Acknowledge) {
            // Nothing panics while it is held.
            if self.random.lock().unwrap_or_else(PoisonError::into_inner).one_in(FORGETS) {
                *answer = Answer::RetryLater { after: Duration::ZERO };
            }
        }
        self.inner.settle(&answers).await
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
