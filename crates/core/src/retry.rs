//! When a message is retried, and when it is dead-lettered.

use std::time::Duration;

use crate::failure::Class;

/// How the delay grows from one attempt to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// `base × factor^(n-1)`.
    Exponential {
        /// The growth from one attempt to the next.
        factor: u32,
    },
    /// `base × n`.
    Linear,
    /// The n-th delay of this list, then always the last one. No delay is shorter than `base`.
    Fixed(Vec<Duration>),
}

/// A random part of a delay, so that failed messages are not all retried at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter(f64);

impl Jitter {
    /// No jitter at all.
    pub const NONE: Self = Self(0.0);

    /// Creates jitter from a random number: 0 gives none, `u32::MAX` gives the policy's full share.
    pub fn from_random(random: u32) -> Self {
        Self(f64::from(random) / f64::from(u32::MAX))
    }
}

/// Delays that double from one attempt to the next, for reconnecting and for calls that are repeated until they
/// succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExponentialBackoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl ExponentialBackoff {
    /// Creates a backoff whose first delay is `min` and whose longest is `max`.
    pub fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min.min(max) }
    }

    /// Returns the next delay. Full jitter shortens it by half, so that clients do not return at the same time.
    pub fn next(&mut self, jitter: Jitter) -> Duration {
        let delay = self.next;
        self.next = delay.saturating_mul(2).min(self.max);
        delay.mul_f64(1.0 - jitter.0 / 2.0)
    }

    /// Begins again with the shortest delay, after a success.
    pub fn reset(&mut self) {
        self.next = self.min.min(self.max);
    }
}

/// When a route's messages are retried and dead-lettered.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// The first delay. No delay is shorter, unless `max` is.
    pub base: Duration,
    /// How delays grow.
    pub backoff: Backoff,
    /// The longest delay, including jitter.
    pub max: Duration,
    /// The maximum jitter, in percent of the delay.
    pub jitter_percent: u32,
    /// The maximum number of attempts per message.
    pub attempts_max: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            backoff: Backoff::Exponential { factor: 2 },
            max: Duration::from_mins(5),
            jitter_percent: 20,
            attempts_max: 10,
        }
    }
}

/// The next action for a message after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The broker is unreachable. Wait for it; no attempt is counted.
    WaitForBroker,
    /// The message may have arrived. Send it again soon with the same id; no attempt is counted.
    Resend,
    /// Park its key and retry after this delay.
    RetryAfter(Duration),
    /// Hold the address for this long, or until a probe succeeds. No attempt is counted.
    HoldAddress(Option<Duration>),
    /// Dead-letter the message.
    DeadLetter,
}

impl RetryPolicy {
    /// Creates a policy with exactly these delays and no jitter. It allows one attempt more than there are delays.
    pub fn with_delays(delays: Vec<Duration>) -> Self {
        Self {
            base: delays.iter().min().copied().unwrap_or_default(),
            max: delays.iter().max().copied().unwrap_or_default(),
            jitter_percent: 0,
            attempts_max: u32::try_from(delays.len()).unwrap_or(u32::MAX).saturating_add(1),
            backoff: Backoff::Fixed(delays),
        }
    }

    /// Decides after counted attempt number `attempt`, starting at 1.
    pub fn decide(&self, attempt: u32, class: Class, jitter: Jitter) -> Next {
        match class {
            Class::Outage => Next::WaitForBroker,
            Class::Unknown => Next::Resend,
            Class::Throttled(pause) => Next::HoldAddress(Some(pause)),
            Class::Blocked => Next::HoldAddress(None),
            Class::Transient if attempt < self.attempts_max => Next::RetryAfter(self.delay(attempt, jitter)),
            Class::Transient | Class::Poison => Next::DeadLetter,
        }
    }

    /// The delay after attempt number `attempt`, starting at 1.
    pub fn delay(&self, attempt: u32, jitter: Jitter) -> Duration {
        let plain = match &self.backoff {
            Backoff::Exponential { factor } => {
                factor.checked_pow(attempt.saturating_sub(1)).and_then(|times| self.base.checked_mul(times))
            }
            Backoff::Linear => self.base.checked_mul(attempt.max(1)),
            Backoff::Fixed(delays) => {
                let index = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
                let delay = delays.get(index).or_else(|| delays.last()).copied();
                Some(delay.unwrap_or(self.base).max(self.base))
            }
        };
        let plain = plain.unwrap_or(self.max).min(self.max);
        let share = f64::from(self.jitter_percent) / 100.0 * jitter.0;
        (plain + plain.mul_f64(share)).min(self.max)
    }

    /// The maximum sum of all delays until the last attempt.
    pub fn total_delay_max(&self) -> Duration {
        let (mut sum, mut last) = (Duration::ZERO, Duration::ZERO);
        // In a list, a long delay may follow a short one.
        let listed = match &self.backoff {
            Backoff::Fixed(delays) => u32::try_from(delays.len()).unwrap_or(u32::MAX),
            Backoff::Exponential { .. } | Backoff::Linear => 0,
        };
        for attempt in 1..self.attempts_max {
            let delay = self.delay(attempt, Jitter::from_random(u32::MAX));
            if attempt > listed && delay <= last {
                // The delay has reached its maximum.
                return sum.saturating_add(delay.saturating_mul(self.attempts_max - attempt));
            }
            sum = sum.saturating_add(delay);
            last = delay;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_the_longest_and_begin_again_after_a_reset() {
        let (min, max) = (Duration::from_millis(100), Duration::from_millis(350));
        let mut backoff = ExponentialBackoff::new(min, max);
        let delays: Vec<Duration> = (0..4).map(|_| backoff.next(Jitter::NONE)).collect();
        assert_eq!(delays, [min, min * 2, max, max]);
        assert_eq!(backoff.next(Jitter::from_random(u32::MAX)), max / 2, "full jitter halves a delay");
        backoff.reset();
        assert_eq!(backoff.next(Jitter::NONE), min);
    }
    use proptest::prelude::*;

    #[test]
    fn the_total_delay_sums_every_delay_with_its_jitter() {
        let policy = RetryPolicy { jitter_percent: 0, ..RetryPolicy::default() };
        // 1 + 2 + … + 256 s: nine delays between ten attempts.
        assert_eq!(policy.total_delay_max(), Duration::from_secs(511));
        let flat = RetryPolicy { backoff: Backoff::Exponential { factor: 1 }, attempts_max: u32::MAX, ..policy };
        assert_eq!(flat.total_delay_max(), Duration::from_secs(u64::from(u32::MAX) - 1));
    }

    #[test]
    fn fixed_delays_are_used_as_given_and_the_last_one_repeats() {
        let ms = Duration::from_millis;
        let policy = RetryPolicy::with_delays([1_000, 5_000, 60_000, 2_000].map(ms).to_vec());
        let all = Jitter::from_random(u32::MAX);
        let delays: Vec<Duration> = (1..=6).map(|attempt| policy.delay(attempt, all)).collect();
        assert_eq!(delays, [1_000, 5_000, 60_000, 2_000, 2_000, 2_000].map(ms));
        assert_eq!((policy.attempts_max, policy.total_delay_max()), (5, ms(68_000)));
        assert_eq!(RetryPolicy { attempts_max: 8, ..policy }.total_delay_max(), ms(74_000));
        assert_eq!(RetryPolicy::with_delays(Vec::new()).decide(1, Class::Transient, Jitter::NONE), Next::DeadLetter);
    }

    fn policies() -> impl Strategy<Value = RetryPolicy> {
        let listed = proptest::collection::vec(0u64..100_000, 0..5);
        // A listed delay may shrink. This strategy generates only growing delays.
        let sorted = listed.prop_map(|mut delays| {
            delays.sort_unstable();
            Backoff::Fixed(delays.into_iter().map(Duration::from_millis).collect())
        });
        let growing = (1u32..5).prop_map(|factor| Backoff::Exponential { factor });
        let backoff = prop_oneof![growing, Just(Backoff::Linear), sorted];
        (1u64..10_000, backoff, 1u64..1_000_000, 0u32..100, 1u32..50).prop_map(
            |(base, backoff, max, jitter_percent, attempts_max)| RetryPolicy {
                base: Duration::from_millis(base),
                backoff,
                max: Duration::from_millis(max),
                jitter_percent,
                attempts_max,
            },
        )
    }

    proptest! {
        #[test]
        fn a_delay_stays_between_base_and_max(
            policy in policies(), attempt in 1u32..1000, random: u32,
        ) {
            let delay = policy.delay(attempt, Jitter::from_random(random));
            prop_assert!(delay >= policy.base.min(policy.max));
            prop_assert!(delay <= policy.max);
        }

        #[test]
        fn delays_without_jitter_never_shrink(policy in policies(), attempt in 1u32..200) {
            prop_assert!(policy.delay(attempt + 1, Jitter::NONE) >= policy.delay(attempt, Jitter::NONE));
        }

        #[test]
        fn only_counted_failures_are_dead_lettered(policy in policies(), attempt in 1u32..1000, random: u32) {
            for class in [Class::Outage, Class::Unknown, Class::Throttled(Duration::ZERO), Class::Blocked] {
                let next = policy.decide(attempt, class, Jitter::from_random(random));
                prop_assert!(!matches!(next, Next::DeadLetter | Next::RetryAfter(_)), "{class:?} became {next:?}");
            }
        }
    }

    #[test]
    fn the_defaults_double_up_to_five_minutes() {
        let policy = RetryPolicy::default();
        let seconds: Vec<u64> = (1..=10).map(|attempt| policy.delay(attempt, Jitter::NONE).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(policy.delay(1, Jitter::from_random(u32::MAX)), Duration::from_millis(1200));
    }

    #[test]
    fn linear_delays_are_multiples_of_the_base() {
        let policy = RetryPolicy { backoff: Backoff::Linear, base: Duration::from_secs(5), ..RetryPolicy::default() };
        let seconds: Vec<u64> = (1..=4).map(|attempt| policy.delay(attempt, Jitter::NONE).as_secs()).collect();
        assert_eq!(seconds, [5, 10, 15, 20]);
    }

    #[test]
    fn the_last_attempt_and_poison_are_dead_lettered() {
        let policy = RetryPolicy { attempts_max: 3, ..RetryPolicy::default() };
        assert_eq!(policy.decide(2, Class::Transient, Jitter::NONE), Next::RetryAfter(Duration::from_secs(2)));
        assert_eq!(policy.decide(3, Class::Transient, Jitter::NONE), Next::DeadLetter);
        assert_eq!(policy.decide(1, Class::Poison, Jitter::NONE), Next::DeadLetter);
    }
}
