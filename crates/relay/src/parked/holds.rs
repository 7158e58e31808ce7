//! Addresses that reject every message.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use relevo_core::Class;
use relevo_core::outbox::leases::HeldAddress;
use relevo_core::outbox::log::{ParkAction, PublishFailure};

use crate::buffer::BufferedMessage;

/// Why an address is held.
#[derive(Clone, Debug)]
pub(crate) struct HoldReason {
    pub(crate) class: &'static str,
    pub(crate) error: String,
    /// The time until the first probe. Zero for a hold that the store has recorded: if it was released meanwhile,
    /// the next message tests the address at once.
    pub(crate) probe_after: Duration,
}

impl HoldReason {
    /// The failure of a message to the held address.
    pub(crate) fn failure_of(&self, message: &BufferedMessage) -> PublishFailure {
        PublishFailure {
            action: ParkAction::HoldAddress { address: Arc::clone(&message.address), after: self.probe_after },
            attempts: message.attempts,
            class: self.class,
            error: self.error.clone(),
            route: message.route.name.as_str().into(),
        }
    }
}

/// The held address because of which a message was parked, if any.
pub(crate) fn held_address(failure: &PublishFailure) -> Option<&Arc<str>> {
    match &failure.action {
        ParkAction::HoldAddress { address, .. } => Some(address),
        ParkAction::Retry { .. } | ParkAction::Quarantine { .. } | ParkAction::DeadLetter(_) => None,
    }
}

/// Addresses that reject every message.
#[derive(Debug, Default)]
pub(crate) struct HeldAddresses {
    /// Holds recorded in the store. The store schedules their probes.
    stored: BTreeMap<String, HoldReason>,
    /// New holds of this relay, not yet recorded in the store.
    unsettled: BTreeMap<String, HoldReason>,
    /// Addresses that this relay released. The value is true once the store has recorded the release. Until then, the
    /// holds read from the store are outdated.
    released: BTreeMap<String, bool>,
}

impl HeldAddresses {
    /// Replaces the holds with those of the store.
    pub(crate) fn replace_stored(&mut self, holds: Vec<HeldAddress>) {
        let reason = |error| HoldReason { class: Class::Blocked.as_str(), error, probe_after: Duration::ZERO };
        self.stored = holds.into_iter().map(|hold| (hold.address, reason(hold.error))).collect();
        self.released.retain(|_, recorded| !*recorded);
    }

    pub(crate) fn add(&mut self, address: &str, reason: HoldReason) {
        self.released.remove(address);
        self.unsettled.insert(address.to_owned(), reason);
    }

    /// Marks these addresses as recorded in the store. Holds found during the settlement are not among them.
    pub(crate) fn mark_settled<'a>(&mut self, addresses: impl IntoIterator<Item = &'a str>) {
        for address in addresses {
            if let Some((address, reason)) = self.unsettled.remove_entry(address) {
                self.stored.insert(address, HoldReason { probe_after: Duration::ZERO, ..reason });
            }
        }
    }

    pub(crate) fn release(&mut self, address: &str) {
        self.stored.remove(address);
        self.unsettled.remove(address);
        self.released.insert(address.to_owned(), false);
    }

    /// The store has recorded the release of this address. From now on, the store's data is current.
    pub(crate) fn confirm_release(&mut self, address: &str) {
        if let Some(recorded) = self.released.get_mut(address) {
            *recorded = true;
        }
    }

    /// Returns why an address is held, or `None` if it is not.
    pub(crate) fn get(&self, address: &str) -> Option<&HoldReason> {
        if self.stored.is_empty() && self.unsettled.is_empty() {
            return None;
        }
        self.unsettled
            .get(address)
            .or_else(|| if self.released.contains_key(address) { None } else { self.stored.get(address) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored_holds() -> Vec<HeldAddress> {
        vec![HeldAddress { address: "x".to_owned(), error: "access refused".to_owned() }]
    }

    fn new_hold() -> HoldReason {
        HoldReason {
            class: Class::Blocked.as_str(),
            error: "access refused".to_owned(),
            probe_after: Duration::from_secs(30),
        }
    }

    #[test]
    fn a_released_address_stays_free_until_the_store_reports_it_again() {
        let mut holds = HeldAddresses::default();
        holds.replace_stored(stored_holds());
        assert!(holds.get("x").is_some());
        holds.release("x");
        // The store was read before it recorded the release.
        holds.replace_stored(stored_holds());
        assert!(holds.get("x").is_none());
        holds.confirm_release("x");
        assert!(holds.get("x").is_none());
        // Meanwhile another relay has found the address held.
        holds.replace_stored(stored_holds());
        assert!(holds.get("x").is_some());
    }

    #[test]
    fn only_an_unsettled_hold_has_a_probe_delay() {
        let mut holds = HeldAddresses::default();
        holds.add("x", new_hold());
        assert_eq!(holds.get("x").map(|reason| reason.probe_after), Some(Duration::from_secs(30)));
        holds.mark_settled(["x"]);
        assert_eq!(holds.get("x").map(|reason| reason.probe_after), Some(Duration::ZERO));
        holds.replace_stored(stored_holds());
        assert_eq!(holds.get("x").map(|reason| reason.probe_after), Some(Duration::ZERO));
    }

    #[test]
    fn an_address_that_is_found_during_a_settlement_stays_held() {
        let mut holds = HeldAddresses::default();
        holds.add("x", new_hold());
        // The settlement with `x` is in progress.
        holds.add("y", new_hold());
        holds.mark_settled(["x"]);
        holds.replace_stored(stored_holds());
        assert!(holds.get("x").is_some());
        assert_eq!(
            holds.get("y").map(|reason| reason.probe_after),
            Some(Duration::from_secs(30)),
            "the store does not know it yet"
        );
    }
}
