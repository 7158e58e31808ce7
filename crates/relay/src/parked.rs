//! Parked keys in the relay's memory.

pub(crate) mod batches;
pub(crate) mod holds;

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, DefaultHasher};

use sha2::{Digest, Sha256};

/// Parked keys as 128-bit hashes: 16 bytes per key of any length, and collisions are practically impossible.
#[derive(Debug, Default)]
pub(crate) struct ParkedKeySet(HashSet<[u8; 16], BuildHasherDefault<DefaultHasher>>);

impl ParkedKeySet {
    pub(crate) fn insert(&mut self, key: &str) {
        self.0.insert(fingerprint(key));
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.0.remove(&fingerprint(key));
    }

    pub(crate) fn contains(&self, key: &str) -> bool {
        !self.0.is_empty() && self.0.contains(&fingerprint(key))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

fn fingerprint(key: &str) -> [u8; 16] {
    let hash = Sha256::digest(key.as_bytes());
    let mut short = [0; 16];
    short.copy_from_slice(&hash[..16]);
    short
}
