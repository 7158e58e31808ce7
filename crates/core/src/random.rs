//! Seeded random numbers. The same seed gives the same numbers in every version, so that a simulated run can be
//! repeated.

use std::time::Duration;

use uuid::Uuid;

use crate::retry::Jitter;

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// `SplitMix64`: a generator with 64 bits of state. Use it for jitter, tokens and simulated faults, not for secrets.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates a generator from a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates a generator for one named part of a seed. More draws in one part do not change the numbers of another.
    pub fn for_part(seed: u64, part: &str, number: u64) -> Self {
        let mut generator = Self(seed);
        for byte in part.bytes() {
            generator = Self(generator.next_u64() ^ u64::from(byte));
        }
        Self(generator.next_u64() ^ number.wrapping_mul(GAMMA))
    }

    /// A generator whose numbers are independent of this one's.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self(self.next_u64())
    }

    /// The next 64 random bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u32) -> u32 {
        // The upper half of the product of 32 bits and the limit is below the limit.
        u32::try_from(((self.next_u64() >> 32) * u64::from(limit)) >> 32).expect("it is below a 32-bit limit")
    }

    /// True once in `times`, on average.
    pub fn one_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }

    /// True in `share` of a thousand cases, on average.
    pub const fn permille(&mut self, share: u64) -> bool {
        self.next_u64() % 1000 < share
    }

    /// A number from `low` to `high`, both included.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next_u64() % (high.saturating_sub(low) + 1)
    }

    /// A count from `low` to `high`, both included.
    pub fn count(&mut self, low: usize, high: usize) -> usize {
        usize::try_from(self.between(low as u64, high as u64)).unwrap_or(high)
    }

    /// An element of a non-empty list.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.count(0, list.len() - 1)]
    }

    /// A time from `low` to `high`, in whole milliseconds.
    pub fn time(&mut self, low: Duration, high: Duration) -> Duration {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.millis(millis(low), millis(high))
    }

    /// A time of `low` to `high` milliseconds.
    pub const fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.between(low, high))
    }

    /// Random jitter for a delay.
    pub fn jitter(&mut self) -> Jitter {
        Jitter::from_random((self.next_u64() >> 32) as u32)
    }

    /// A random UUID, for tokens and owners.
    pub fn uuid(&mut self) -> Uuid {
        let bits = (u128::from(self.next_u64()) << 64) | u128::from(self.next_u64());
        uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
    }

    /// The random part of a version 7 UUID.
    pub fn uuid_v7_bytes(&mut self) -> [u8; 10] {
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&self.next_u64().to_be_bytes());
        bytes[8..].copy_from_slice(&self.next_u64().to_be_bytes()[..2]);
        bytes
    }
}

/// The final mixing step of `SplitMix64`: every bit of the result depends on every bit of the value.
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the reference implementation. Different numbers would change every simulated run.
    #[test]
    fn a_seed_gives_the_published_sequence() {
        let mut random = SplitMix64::new(1_234_567);
        let numbers: [u64; 3] = std::array::from_fn(|_| random.next_u64());
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn every_number_below_the_limit_is_drawn_and_none_above() {
        let mut random = SplitMix64::new(1);
        let mut counts = [0; 7];
        for _ in 0..7000 {
            counts[random.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
