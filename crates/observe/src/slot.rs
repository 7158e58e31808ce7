//! Where a sample lies until the next one.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What was last sampled of something.
#[derive(Debug)]
pub struct Slot<T>(Mutex<Lying<T>>);

#[derive(Debug)]
struct Lying<T> {
    sampled: Option<T>,
    /// When there last was a sample, or nothing to sample, or since when there could have been one.
    since: Instant,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Mutex::new(Lying { sampled: None, since: Instant::now() }))
    }
}

impl<T: Clone> Slot<T> {
    /// `None` when it could not be sampled: no number is better than an old one.
    pub fn put(&self, sampled: Option<T>) {
        let mut lying = self.lock();
        if sampled.is_some() {
            lying.since = Instant::now();
        }
        lying.sampled = sampled;
    }

    /// There is nothing to sample yet, which is no failure: the age begins anew.
    pub fn nothing_yet(&self) {
        *self.lock() = Lying { sampled: None, since: Instant::now() };
    }

    /// What was last put there.
    pub fn get(&self) -> Option<T> {
        self.lock().sampled.clone()
    }

    /// How long ago the last sample was taken; counted from its own beginning while there was none.
    pub fn age(&self) -> Duration {
        self.lock().since.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Lying<T>> {
        // Nothing panics while it is held, and the value is whole after each change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sample_that_fails_makes_nothing_younger() {
        let (slot, second) = (Slot::default(), Duration::from_secs(1));
        tokio::time::advance(second).await;
        assert_eq!((slot.get(), slot.age()), (None, second), "there could have been one");
        slot.put(Some(5));
        tokio::time::advance(second).await;
        slot.put(None);
        tokio::time::advance(second).await;
        assert_eq!((slot.get(), slot.age()), (None, 2 * second));
        slot.put(Some(6));
        assert_eq!((slot.get(), slot.age()), (Some(6), Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_grows_old_where_there_is_nothing_to_sample() {
        let slot = Slot::<u32>::default();
        tokio::time::advance(Duration::from_mins(7)).await;
        slot.nothing_yet();
        assert_eq!((slot.get(), slot.age()), (None, Duration::ZERO));
    }
}
