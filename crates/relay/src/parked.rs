//! Parked keys and held addresses in the relay's memory.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use relevo_core::Class;
use relevo_core::store::Hold;
use sha2::{Digest, Sha256};

/// Parked keys as 128-bit hashes: 16 bytes per key of any length, and collisions are practically impossible.
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
    /// The time until the first probe. Zero for a hold that the store knows: if the store has released it meanwhile,
    /// the next message tests the address at once.
    pub(crate) after: Duration,
}

/// Addresses that reject every message.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    /// Holds recorded in the store. The store schedules their probes.
    known: BTreeMap<String, Held>,
    /// Holds found by this relay and not settled yet, so the store does not know them.
    fresh: BTreeMap<String, Held>,
    /// Addresses that this relay found to accept messages again. The flag is whether the store has recorded it; until
    /// then the store's data is older.
    released: BTreeMap<String, bool>,
}

impl Holds {
    /// Replaces the holds with those of the store.
    pub(crate) fn learn(&mut self, holds: Vec<Hold>) {
        let held = |error| Held { class: Class::Blocked.word(), error, after: Duration::ZERO };
        self.known = holds.into_iter().map(|hold| (hold.address, held(hold.error))).collect();
        self.released.retain(|_, told| !*told);
    }

    pub(crate) fn add(&mut self, address: &str, held: Held) {
        self.released.remove(address);
        self.fresh.insert(address.to_owned(), held);
    }

    /// Marks these addresses as recorded in the store. Holds found during the settlement are not among them.
    pub(crate) fn settled<'a>(&mut self, addresses: impl IntoIterator<Item = &'a str>) {
        for address in addresses {
            if let Some((address, held)) = self.fresh.remove_entry(address) {
                self.known.insert(address, Held { after: Duration::ZERO, ..held });
            }
        }
    }

    pub(crate) fn release(&mut self, address: &str) {
        self.known.remove(address);
        self.fresh.remove(address);
        self.released.insert(address.to_owned(), false);
    }

    /// The store has recorded the release of this address. From now on, the store's data is current.
    pub(crate) fn told(&mut self, address: &str) {
        if let Some(told) = self.released.get_mut(address) {
            *told = true;
        }
    }

    /// Returns why an address is held, or `None` if it is not.
    pub(crate) fn get(&self, address: &str) -> Option<&Held> {
        if self.known.is_empty() && self.fresh.is_empty() {
            return None;
        }
        self.fresh
            .get(address)
            .or_else(|| if self.released.contains_key(address) { None } else { self.known.get(address) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> Vec<Hold> {
        vec![Hold { address: "x".to_owned(), error: "it was refused".to_owned() }]
    }

    fn found() -> Held {
        Held { class: Class::Blocked.word(), error: "it was refused".to_owned(), after: Duration::from_secs(30) }
    }

    #[test]
    fn an_address_that_passed_is_free_until_the_store_was_told_and_says_otherwise() {
        let mut holds = Holds::default();
        holds.learn(said());
        assert!(holds.get("x").is_some());
        holds.release("x");
        // The store was read before it recorded the release.
        holds.learn(said());
        assert!(holds.get("x").is_none());
        holds.told("x");
        assert!(holds.get("x").is_none());
        // Meanwhile another relay has found the address held.
        holds.learn(said());
        assert!(holds.get("x").is_some());
    }

    #[test]
    fn only_what_is_found_here_says_when_it_is_probed() {
        let mut holds = Holds::default();
        holds.add("x", found());
        assert_eq!(holds.get("x").map(|held| held.after), Some(Duration::from_secs(30)));
        holds.settled(["x"]);
        assert_eq!(holds.get("x").map(|held| held.after), Some(Duration::ZERO));
        holds.learn(said());
        assert_eq!(holds.get("x").map(|held| held.after), Some(Duration::ZERO));
    }

    #[test]
    fn an_address_that_is_found_during_a_settlement_stays_held() {
        let mut holds = Holds::default();
        holds.add("x", found());
        // The settlement with `x` is in progress.
        holds.add("y", found());
        holds.settled(["x"]);
        holds.learn(said());
        assert!(holds.get("x").is_some());
        assert_eq!(
            holds.get("y").map(|held| held.after),
            Some(Duration::from_secs(30)),
            "the store does not know it yet"
        );
    }
}
