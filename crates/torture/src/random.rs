//! A seeded random generator.

/// `SplitMix64`: a single number of state, and good enough to choose faults.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Creates an independent generator.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        // The upper half of the product of a 32-bit number and the limit is below the limit.
        u32::try_from(((self.next() >> 32) * u64::from(limit)) >> 32).expect("it is below a 32-bit limit")
    }

    /// True once in `times`, on average.
    pub(crate) fn one_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
