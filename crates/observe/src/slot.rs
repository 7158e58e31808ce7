//! Stores a sample until the next one.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum age of a sample while later ones fail. The alert `RelevoSamplingStopped` starts at this age, so that no
/// other alert ends before it can start.
const AGE_MAX: Duration = Duration::from_mins(1);

/// The last sample of something.
#[derive(Debug)]
pub struct Slot<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    sampled: Option<T>,
    /// Whether a later attempt to sample failed.
    failed: bool,
    /// The time of the last sample, or of the last report that there is nothing to sample. Initially the creation time.
    since: Instant,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Mutex::new(State { sampled: None, failed: false, since: Instant::now() }))
    }
}

impl<T: Clone> Slot<T> {
    /// Stores a sample. `None` means that sampling failed.
    pub fn put(&self, sampled: Option<T>) {
        let mut state = self.0.lock();
        if sampled.is_some() {
            *state = State { sampled, failed: false, since: Instant::now() };
        } else {
            state.failed = true;
        }
    }

    /// There is nothing to sample yet, which is not a failure: the age starts again.
    pub fn nothing_yet(&self) {
        *self.0.lock() = State { sampled: None, failed: false, since: Instant::now() };
    }

    /// The result of the last attempt: `None` if it failed. For callers that act on the current state.
    pub fn get(&self) -> Option<T> {
        let state = self.0.lock();
        if state.failed { None } else { state.sampled.clone() }
    }

    /// The last successful sample, for up to a minute even if later attempts failed. For monitoring: a single failure
    /// must not end an alert, but no value is better than a stale one.
    pub fn last(&self) -> Option<T> {
        let state = self.0.lock();
        if state.failed && state.since.elapsed() >= AGE_MAX { None } else { state.sampled.clone() }
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
    async fn a_failed_sample_does_not_reset_the_age() {
        let (slot, second) = (Slot::default(), Duration::from_secs(1));
        tokio::time::advance(second).await;
        assert_eq!((slot.get(), slot.age()), (None, second), "no sample yet");
        slot.put(Some(5));
        tokio::time::advance(second).await;
        slot.put(None);
        tokio::time::advance(second).await;
        assert_eq!((slot.get(), slot.age()), (None, 2 * second));
        slot.put(Some(6));
        assert_eq!((slot.get(), slot.age()), (Some(6), Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_sample_is_exported_for_a_minute_while_later_ones_fail() {
        let (slot, second) = (Slot::default(), Duration::from_secs(1));
        slot.put(None);
        assert_eq!(slot.last(), None, "no sample yet");
        slot.put(Some(5));
        for _ in 0..59 {
            tokio::time::advance(second).await;
            slot.put(None);
            assert_eq!((slot.get(), slot.last()), (None, Some(5)), "{:?} old", slot.age());
        }
        tokio::time::advance(second).await;
        assert_eq!((slot.last(), slot.age()), (None, 60 * second), "it expires without another attempt");
        slot.put(Some(6));
        assert_eq!((slot.get(), slot.last()), (Some(6), Some(6)));
        tokio::time::advance(2 * AGE_MAX).await;
        assert_eq!(slot.last(), Some(6), "a sample without a later failure does not expire");
        slot.nothing_yet();
        assert_eq!(slot.last(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_age_starts_again_while_there_is_nothing_to_sample() {
        let slot = Slot::<u32>::default();
        tokio::time::advance(Duration::from_mins(7)).await;
        slot.nothing_yet();
        assert_eq!((slot.get(), slot.age()), (None, Duration::ZERO));
    }
}
