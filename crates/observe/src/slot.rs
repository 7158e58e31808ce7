//! Stores a sample until the next one.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum age of a sample while later ones fail. The alert `RelevoSamplingStopped` starts at this age, so that no
/// other alert ends before it can start.
const KEPT: Duration = Duration::from_mins(1);

/// The last sample of something.
#[derive(Debug)]
pub struct Slot<T>(Mutex<Lying<T>>);

#[derive(Debug)]
struct Lying<T> {
    sampled: Option<T>,
    /// Whether a later attempt to sample failed.
    failed: bool,
    /// The time of the last sample, or of the last report that there is nothing to sample. Initially the creation time.
    since: Instant,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Mutex::new(Lying { sampled: None, failed: false, since: Instant::now() }))
    }
}

impl<T: Clone> Slot<T> {
    /// Stores a sample. `None` means that sampling failed.
    pub fn put(&self, sampled: Option<T>) {
        let mut lying = self.0.lock();
        if sampled.is_some() {
            *lying = Lying { sampled, failed: false, since: Instant::now() };
        } else {
            lying.failed = true;
        }
    }

    /// There is nothing to sample yet, which is not a failure: the age starts again.
    pub fn nothing_yet(&self) {
        *self.0.lock() = Lying { sampled: None, failed: false, since: Instant::now() };
    }

    /// The result of the last attempt: `None` if it failed. For callers that act on the current state.
    pub fn get(&self) -> Option<T> {
        let lying = self.0.lock();
        if lying.failed { None } else { lying.sampled.clone() }
    }

    /// The last successful sample, for up to a minute even if later attempts failed. For monitoring: a single failure
    /// must not end an alert, but no value is better than a stale one.
    pub fn last(&self) -> Option<T> {
        let lying = self.0.lock();
        if lying.failed && lying.since.elapsed() >= KEPT { None } else { lying.sampled.clone() }
    }

    /// Time since the last sample, or since creation if there was none.
    pub fn age(&self) -> Duration {
        self.0.lock().since.elapsed()
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
