//! The keys and addresses that wait, as far as the relay must know them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};

use relevo_core::store::Hold;
use sha2::{Digest, Sha256};

/// Parked keys by a hash of 128 bits: sixteen bytes each however long the keys, and no two keys share one.
#[derive(Debug, Default)]
pub(crate) struct ParkedKeys(HashSet<[u8; 16], BuildHasherDefault<DefaultHasher>>);

impl ParkedKeys {
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

/// Addresses that nothing can pass to.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    /// What the store says, with the error.
    known: BTreeMap<String, String>,
    /// Found here and not yet settled, so that the store cannot know them.
    fresh: BTreeMap<String, String>,
    /// Proven here to pass, though the store's last word was older.
    released: BTreeSet<String>,
}

impl Holds {
    pub(crate) fn learn(&mut self, holds: Vec<Hold>) {
        self.known = holds.into_iter().map(|hold| (hold.address, hold.error)).collect();
        self.released.clear();
    }

    pub(crate) fn add(&mut self, address: &str, error: &str) {
        self.released.remove(address);
        self.fresh.insert(address.to_owned(), error.to_owned());
    }

    /// Everything found here is settled.
    pub(crate) fn settled(&mut self) {
        self.known.append(&mut self.fresh);
    }

    pub(crate) fn release(&mut self, address: &str) {
        self.known.remove(address);
        self.fresh.remove(address);
        self.released.insert(address.to_owned());
    }

    /// The error for which an address is held.
    pub(crate) fn error(&self, address: &str) -> Option<&str> {
        if self.known.is_empty() && self.fresh.is_empty() {
            return None;
        }
        self.fresh
            .get(address)
            .or_else(|| if self.released.contains(address) { None } else { self.known.get(address) })
            .map(String::as_str)
    }
}
