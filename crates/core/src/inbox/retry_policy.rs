//! When a consumer retries a message, and when it dead-letters it.

use std::time::Duration;

use jiff::Timestamp;

use crate::retry::{Backoff, Jitter, RetryPolicy};

/// Retry settings of a consumer. Retries first happen in memory, while a worker keeps the message. Later retries are
/// durable: the message waits in the retry table or at the broker.
#[derive(Clone, Debug, PartialEq)]
pub struct HandlerRetryPolicy {
    /// The delays of the in-memory retries, one per retry. Their sum must be shorter than the broker's acknowledgement
    /// timeout.
    pub in_memory: Vec<Duration>,
    /// The delays of the durable retries. `attempts_max` counts all attempts, including the first one and those in
    /// memory.
    pub durable: RetryPolicy,
}

impl Default for HandlerRetryPolicy {
    fn default() -> Self {
        Self {
            in_memory: [1, 2, 5].map(Duration::from_secs).to_vec(),
            durable: RetryPolicy {
                base: Duration::from_secs(15),
                backoff: Backoff::Exponential { factor: 3 },
                max: Duration::from_mins(15),
                ..RetryPolicy::default()
            },
        }
    }
}

/// What happens to a message after a counted failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryStep {
    /// The worker tries it again after this delay.
    InMemory(Duration),
    /// It waits durably for this time, so a restart does not lose it.
    Durable(Duration),
    /// It is dead-lettered.
    DeadLetter,
}

impl HandlerRetryPolicy {
    /// Removes the in-memory retries: every failure waits durably.
    #[must_use]
    pub fn without_in_memory(self) -> Self {
        Self { in_memory: Vec::new(), ..self }
    }

    /// Decides after the `attempt`-th counted failure (1 for the first).
    pub fn decide(&self, attempt: u32, jitter: Jitter) -> RetryStep {
        if attempt >= self.durable.attempts_max {
            return RetryStep::DeadLetter;
        }
        let tries = u32::try_from(self.in_memory.len()).unwrap_or(u32::MAX);
        match usize::try_from(attempt.saturating_sub(1)).ok().and_then(|index| self.in_memory.get(index)) {
            Some(pause) => RetryStep::InMemory(*pause),
            None => RetryStep::Durable(self.durable.delay(attempt - tries, jitter)),
        }
    }

    /// The number of attempts before this delivery, when the broker keeps the message between durable retries.
    ///
    /// All in-memory attempts happened before the first wait at the broker, and one attempt before each later wait. The
    /// delivery count is no measure: prefetched messages that went back were not tried.
    pub fn attempts_after_broker_retries(&self, retries: u32) -> u32 {
        match retries {
            0 => 0,
            some => u32::try_from(self.in_memory.len()).unwrap_or(u32::MAX).saturating_add(some),
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
    fn in_memory_retries_come_before_durable_retries_and_a_dead_letter() {
        let retries = HandlerRetryPolicy {
            durable: RetryPolicy { attempts_max: 6, ..HandlerRetryPolicy::default().durable },
            ..HandlerRetryPolicy::default()
        };
        let steps: Vec<RetryStep> = (1..=6).map(|attempt| retries.decide(attempt, Jitter::NONE)).collect();
        let expected = [
            RetryStep::InMemory(secs(1)),
            RetryStep::InMemory(secs(2)),
            RetryStep::InMemory(secs(5)),
            RetryStep::Durable(secs(15)),
            RetryStep::Durable(secs(45)),
            RetryStep::DeadLetter,
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn broker_retries_are_counted_after_in_memory_retries() {
        let retries = HandlerRetryPolicy::default();
        let behind: Vec<u32> = (0..=3).map(|waits| retries.attempts_after_broker_retries(waits)).collect();
        assert_eq!(behind, [0, 4, 5, 6]);
        assert_eq!(retries.without_in_memory().attempts_after_broker_retries(1), 1);
    }

    #[test]
    fn a_message_is_expired_once_it_is_older_than_the_retention() {
        let made = Timestamp::UNIX_EPOCH;
        assert!(!is_expired(made, made + secs(10), secs(10)));
        assert!(is_expired(made, made + secs(11), secs(10)));
        assert!(!is_expired(made + secs(60), made, secs(10)), "a clock that is behind expires nothing");
    }

    proptest! {
        #[test]
        fn every_message_ends(attempts_max in 1u32..50, tries in 0usize..60, random: u32) {
            let in_memory = vec![secs(1); tries];
            let retries = HandlerRetryPolicy { in_memory, durable: RetryPolicy { attempts_max, ..RetryPolicy::default() } };
            prop_assert_eq!(retries.decide(attempts_max, Jitter::from_random(random)), RetryStep::DeadLetter);
            for attempt in 1..attempts_max {
                prop_assert_ne!(retries.decide(attempt, Jitter::from_random(random)), RetryStep::DeadLetter);
            }
        }
    }
}
