//! Where a sample lies until the next one.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How old a sample may grow while later ones fail. The alert `RelevoSamplingStopped` looks from then on, so that no other
/// alert ends before it can begin.
const KEPT: Duration = Duration::from_mins(1);

/// What was last sampled of something.
#[derive(Debug)]
pub struct Slot<T>(Mutex<Lying<T>>);

#[derive(Debug)]
struct Lying<T> {
    sampled: Option<T>,
    /// Whether it was to be sampled again since, and could not be.
    failed: bool,
    /// When there last was a sample, or nothing to sample, or since when there could have been one.
    since: Instant,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Mutex::new(Lying { sampled: None, failed: false, since: Instant::now() }))
    }
}

impl<T: Clone> Slot<T> {
    /// `None` when it could not be sampled.
    pub fn put(&self, sampled: Option<T>) {
        let mut lying = self.lock();
        if sampled.is_some() {
            *lying = Lying { sampled, failed: false, since: Instant::now() };
        } else {
            lying.failed = true;
        }
    }

    /// There is nothing to sample yet, which is no failure: the age begins anew.
    pub fn nothing_yet(&self) {
        *self.lock() = Lying { sampled: None, failed: false, since: Instant::now() };
    }

    /// What was last put there; `None` when that could not be sampled. For those who decide by it what they do now.
    pub fn get(&self) -> Option<T> {
        let lying = self.lock();
        if lying.failed { None } else { lying.sampled.clone() }
    }

    /// The last sample that there was, though it could not be sampled since, until it is a minute old. For those who watch: one
    /// failure must not end an alert, and no number is better than an old one.
    pub fn last(&self) -> Option<T> {
        let lying = self.lock();
        if lying.failed && lying.since.elapsed() >= KEPT { None } else { lying.sampled.clone() }
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
    async fn those_who_watch_see_the_last_sample_until_it_is_a_minute_old() {
        let (slot, second) = (Slot::default(), Duration::from_secs(1));
        slot.put(None);
        assert_eq!(slot.last(), None, "there was none yet");
        slot.put(Some(5));
        for _ in 0..59 {
            tokio::time::advance(second).await;
            slot.put(None);
            assert_eq!((slot.get(), slot.last()), (None, Some(5)), "{:?} old", slot.age());
        }
        tokio::time::advance(second).await;
        assert_eq!((slot.last(), slot.age()), (None, 60 * second), "nobody need ask for it to be gone");
        slot.put(Some(6));
        assert_eq!((slot.get(), slot.last()), (Some(6), Some(6)));
        tokio::time::advance(2 * KEPT).await;
        assert_eq!(slot.last(), Some(6), "where somebody samples that seldom, nothing has failed");
        slot.nothing_yet();
        assert_eq!(slot.last(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_grows_old_where_there_is_nothing_to_sample() {
        let slot = Slot::<u32>::default();
        tokio::time::advance(Duration::from_mins(7)).await;
        slot.nothing_yet();
        assert_eq!((slot.get(), slot.age()), (None, Duration::ZERO));
    }
}
