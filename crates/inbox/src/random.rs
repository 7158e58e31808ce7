//! Random numbers that a simulation can repeat.

use relevo_core::Jitter;
use uuid::Uuid;

/// `SplitMix64`: small, quick, and good enough for jitter and for telling owners apart.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn jitter(&mut self) -> Jitter {
        Jitter::from_random((self.next() >> 32) as u32)
    }

    pub(crate) fn owner(&mut self) -> Uuid {
        uuid::Builder::from_random_bytes(((u128::from(self.next()) << 64) | u128::from(self.next())).to_be_bytes())
            .into_uuid()
    }
}
