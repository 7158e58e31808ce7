//! The keys and addresses that wait, as far as the relay must know them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use relevo_core::Class;
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

/// Why an address is held.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) class: &'static str,
    pub(crate) error: String,
    /// From its finding to its first probe.
    pub(crate) after: Duration,
}

/// Addresses that nothing can pass to.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    /// What the store says; it knows when they are probed.
    known: BTreeMap<String, Held>,
    /// Found here and not yet settled, so that the store cannot know them.
    fresh: BTreeMap<String, Held>,
    /// Proven here to pass, though the store's last word was older.
    released: BTreeSet<String>,
}

impl Holds {
    pub(crate) fn learn(&mut self, holds: Vec<Hold>, probe: Duration) {
        let held = |error| Held { class: Class::Blocked.word(), error, after: probe };
        self.known = holds.into_iter().map(|hold| (hold.address, held(hold.error))).collect();
        self.released.clear();
    }

    pub(crate) fn add(&mut self, address: &str, held: Held) {
        self.released.remove(address);
        self.fresh.insert(address.to_owned(), held);
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

    /// Why an address is held, if it is.
    pub(crate) fn get(&self, address: &str) -> Option<&Held> {
        if self.known.is_empty() && self.fresh.is_empty() {
            return None;
        }
        self.fresh.get(address).or_else(|| if self.released.contains(address) { None } else { self.known.get(address) })
    }
}
