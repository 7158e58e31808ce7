//! Chance that can be repeated: everything random in a run comes from its seed.

use std::time::Duration;

/// `SplitMix64`. Each part of the world has its own, so that one more draw in one of them moves no other.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator of one part of a seed's world.
    pub fn of(seed: u64, part: &str, number: u64) -> Self {
        let mut mixed = Self(seed);
        for byte in part.bytes() {
            mixed = Self(mixed.draw() ^ u64::from(byte));
        }
        Self(mixed.draw() ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high.saturating_sub(low) + 1)
    }

    /// The same for counts.
    pub fn count(&mut self, low: usize, high: usize) -> usize {
        usize::try_from(self.between(low as u64, high as u64)).unwrap_or(high)
    }

    /// One of a list that is not empty.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.count(0, list.len() - 1)]
    }

    /// True in so many of a thousand cases.
    pub fn permille(&mut self, share: u64) -> bool {
        self.draw() % 1000 < share
    }

    /// A time between two others, in whole milliseconds.
    pub fn time(&mut self, low: Duration, high: Duration) -> Duration {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.between(millis(low), millis(high)))
    }

    /// A time in milliseconds.
    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.between(low, high))
    }
}
