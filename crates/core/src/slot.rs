//! Maps keys to slots, and slots to shards. The mapping never changes, because rows store the slot.

use sha2::{Digest, Sha256};

/// The number of slots. Every row stores its slot.
pub const SLOTS: u16 = 256;

/// The slot of a key: the first byte of its SHA-256.
///
/// Database hash functions are not used, because they may change between versions.
pub fn slot_of(key: &str) -> u16 {
    Sha256::digest(key.as_bytes())[0].into()
}

/// The shard of a slot when there are `shards` shards.
pub fn shard_of(slot: u16, shards: u16) -> u16 {
    slot % shards
}

/// The lane of a key when its address has `lanes` lanes.
pub fn lane_of(key: &str, lanes: u16) -> u16 {
    shard_of(slot_of(key), lanes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_never_change() {
        // Stored rows depend on these values.
        let keys = ["o-1", "o-2", "", "clave-ñ", "a much longer key than the others"];
        assert_eq!(keys.map(slot_of), [92, 43, 227, 217, 190]);
    }

    proptest! {
        #[test]
        fn every_slot_has_exactly_one_shard(slot in 0..SLOTS, shards in 1..=SLOTS) {
            prop_assert!(shard_of(slot, shards) < shards);
        }
    }
}
