//! When a consumer retries a message, and when it dead-letters it.

use std::time::Duration;

use jiff::Timestamp;

use crate::retry::{Backoff, Jitter, Policy};

/// Retry settings of a consumer. Retries first happen in memory, while a worker keeps the message. Later retries are
/// durable: the message waits in the retry table or at the broker.
#[derive(Clone, Debug, PartialEq)]
pub struct Retries {
    /// The delays of the in-memory retries, one per retry. Their sum must be shorter than the broker's acknowledgement
    /// timeout.
    pub memory: Vec<Duration>,
    /// The delays of the durable retries. `attempts_max` counts all attempts, including the first one and those in
    /// memory.
    pub durable: Policy,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            memory: [1, 2, 5].map(Duration::from_secs).to_vec(),
            durable: Policy {
                base: Duration::from_secs(15),
                backoff: Backoff::Exponential { factor: 3 },
                ceiling: Duration::from_mins(15),
                ..Policy::default()
            },
        }
    }
}

/// What happens to a message after a counted failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The worker tries it again after this delay.
    Again(Duration),
    /// It waits durably for this time, so a restart does not lose it.
    Later(Duration),
    /// It is dead-lettered.
    Bury,
}

impl Retries {
    /// Removes the in-memory retries: every failure waits durably.
    #[must_use]
    pub fn durable_only(self) -> Self {
        Self { memory: Vec::new(), ..self }
    }

    /// Sets `tries` in-memory retries. Each delay is twice the previous one, up to the ceiling.
    #[must_use]
    pub fn growing(self, first: Duration, ceiling: Duration, tries: u32) -> Self {
        let policy = Policy {
            base: first,
            backoff: Backoff::Exponential { factor: 2 },
            ceiling,
            jitter_percent: 0,
            attempts_max: u32::MAX,
        };
        Self { memory: (1..=tries).map(|attempt| policy.pause(attempt, Jitter::NONE)).collect(), ..self }
    }

    /// Decides after the `attempt`-th counted failure (1 for the first).
    pub fn after(&self, attempt: u32, jitter: Jitter) -> Step {
        if attempt >= self.durable.attempts_max {
            return Step::Bury;
        }
        let tries = u32::try_from(self.memory.len()).unwrap_or(u32::MAX);
        match usize::try_from(attempt.saturating_sub(1)).ok().and_then(|index| self.memory.get(index)) {
            Some(pause) => Step::Again(*pause),
            None => Step::Later(self.durable.pause(attempt - tries, jitter)),
        }
    }

    /// The number of attempts before this delivery, when the broker keeps the message between durable retries.
    ///
    /// All in-memory attempts happened before the first wait at the broker, and one attempt before each later wait. The
    /// delivery count is no measure: prefetched messages that went back were not tried.
    pub fn attempts_before(&self, retries: u32) -> u32 {
        match retries {
            0 => 0,
            some => u32::try_from(self.memory.len()).unwrap_or(u32::MAX).saturating_add(some),
        }
    }
}

/// Whether a message entered the log longer ago than the inbox remembers. Such a message may have been handled and
/// forgotten.
pub fn is_expired(created_at: Timestamp, now: Timestamp, remembered: Duration) -> bool {
    u128::try_from(now.duration_since(created_at).as_millis()).is_ok_and(|age| age > remembered.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn tries_in_memory_come_first_then_durable_ones_then_the_end() {
        let retries =
            Retries { durable: Policy { attempts_max: 6, ..Retries::default().durable }, ..Retries::default() };
        let steps: Vec<Step> = (1..=6).map(|attempt| retries.after(attempt, Jitter::NONE)).collect();
        let expected = [
            Step::Again(secs(1)),
            Step::Again(secs(2)),
            Step::Again(secs(5)),
            Step::Later(secs(15)),
            Step::Later(secs(45)),
            Step::Bury,
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn pauses_in_memory_grow_up_to_their_ceiling() {
        let retries = Retries::default().growing(secs(1), secs(5), 4);
        assert_eq!(retries.memory, [1, 2, 4, 5].map(secs));
    }

    #[test]
    fn waits_at_the_broker_go_on_where_the_tries_in_memory_ended() {
        let retries = Retries::default();
        let behind: Vec<u32> = (0..=3).map(|waits| retries.attempts_before(waits)).collect();
        assert_eq!(behind, [0, 4, 5, 6]);
        assert_eq!(retries.durable_only().attempts_before(1), 1);
    }

    #[test]
    fn a_message_is_expired_once_it_is_older_than_the_memory() {
        let made = Timestamp::UNIX_EPOCH;
        assert!(!is_expired(made, made + secs(10), secs(10)));
        assert!(is_expired(made, made + secs(11), secs(10)));
        assert!(!is_expired(made + secs(60), made, secs(10)), "a clock that is behind expires nothing");
    }

    proptest! {
        #[test]
        fn every_message_ends(attempts_max in 1u32..50, tries in 0usize..60, random: u32) {
            let memory = vec![secs(1); tries];
            let retries = Retries { memory, durable: Policy { attempts_max, ..Policy::default() } };
            prop_assert_eq!(retries.after(attempts_max, Jitter::from_random(random)), Step::Bury);
            for attempt in 1..attempts_max {
                prop_assert_ne!(retries.after(attempt, Jitter::from_random(random)), Step::Bury);
            }
        }
    }
}
