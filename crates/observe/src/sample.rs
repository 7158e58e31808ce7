//! The last sample of a value that is sampled periodically.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum age of a sample while later ones fail. The alert `RelevoSamplingStopped` starts at this age, so that no
/// other alert ends before it can start.
const AGE_MAX: Duration = Duration::from_mins(1);

/// The last sample of a value.
#[derive(Debug)]
pub struct LastSample<T>(Mutex<SampleState<T>>);

#[derive(Debug)]
struct SampleState<T> {
    sample: Option<T>,
    /// Whether a later attempt to sample failed.
    failed: bool,
    /// Whether there was an attempt to sample at all.
    attempted: bool,
    /// The time of the last sample, or of the last report that there is nothing to sample. Initially the creation time.
    since: Instant,
}

impl<T> Default for LastSample<T> {
    fn default() -> Self {
        Self(Mutex::new(SampleState { sample: None, failed: false, attempted: false, since: Instant::now() }))
    }
}

impl<T: Clone> LastSample<T> {
    /// Stores a sample. `None` means that sampling failed.
    pub fn set(&self, sample: Option<T>) {
        let mut state = self.0.lock();
        if sample.is_some() {
            *state = SampleState { sample, failed: false, attempted: true, since: Instant::now() };
        } else {
            (state.failed, state.attempted) = (true, true);
        }
    }

    /// Records that there is nothing to sample yet, which is not a failure: the age starts again.
    pub fn clear(&self) {
        *self.0.lock() = SampleState { sample: None, failed: false, attempted: true, since: Instant::now() };
    }

    /// The result of the last attempt: `None` if it failed. For callers that act on the current state.
    pub fn fresh(&self) -> Option<T> {
        let state = self.0.lock();
        if state.failed { None } else { state.sample.clone() }
    }

    /// The last successful sample, for up to a minute even if later attempts failed. For monitoring: a single failure
    /// must not end an alert, but no value is better than a stale one.
    pub fn recent(&self) -> Option<T> {
        let state = self.0.lock();
        if state.failed && state.since.elapsed() >= AGE_MAX { None } else { state.sample.clone() }
    }

    /// Time since the last sample, or since creation if every attempt failed. `None` before the first attempt.
    pub fn age(&self) -> Option<Duration> {
        let state = self.0.lock();
        state.attempted.then(|| state.since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failed_sample_does_not_reset_the_age() {
        let (last, second) = (LastSample::default(), Duration::from_secs(1));
        tokio::time::advance(second).await;
        assert_eq!((last.fresh(), last.age()), (None, None), "no attempt yet");
        last.set(None);
        assert_eq!((last.fresh(), last.age()), (None, Some(second)), "no sample since creation");
        last.set(Some(5));
        tokio::time::advance(second).await;
        last.set(None);
        tokio::time::advance(second).await;
        assert_eq!((last.fresh(), last.age()), (None, Some(2 * second)));
        last.set(Some(6));
        assert_eq!((last.fresh(), last.age()), (Some(6), Some(Duration::ZERO)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_sample_is_exported_for_a_minute_while_later_ones_fail() {
        let (last, second) = (LastSample::default(), Duration::from_secs(1));
        last.set(None);
        assert_eq!(last.recent(), None, "no sample yet");
        last.set(Some(5));
        for _ in 0..59 {
            tokio::time::advance(second).await;
            last.set(None);
            assert_eq!((last.fresh(), last.recent()), (None, Some(5)), "{:?} old", last.age());
        }
        tokio::time::advance(second).await;
        assert_eq!((last.recent(), last.age()), (None, Some(60 * second)), "it expires without another attempt");
        last.set(Some(6));
        assert_eq!((last.fresh(), last.recent()), (Some(6), Some(6)));
        tokio::time::advance(2 * AGE_MAX).await;
        assert_eq!(last.recent(), Some(6), "a sample without a later failure does not expire");
        last.clear();
        assert_eq!(last.recent(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_age_starts_again_while_there_is_nothing_to_sample() {
        let last = LastSample::<u32>::default();
        tokio::time::advance(Duration::from_mins(7)).await;
        last.clear();
        assert_eq!((last.fresh(), last.age()), (None, Some(Duration::ZERO)));
    }
}
