//! Checks the guarantees: compares what the shop committed with what shipping applied.

use std::collections::BTreeMap;
use std::fmt;

use super::shipping::Shipment;

/// The result of a check, over all runs in the data directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) committed: u64,
    pub(crate) applied: u64,
    /// Committed, and not applied yet.
    pub(crate) missing: u64,
    /// Effects without a commit: a change was applied twice, or never committed.
    pub(crate) surplus: u64,
    /// Applied out of order.
    pub(crate) surprises: u64,
}

impl Check {
    /// Compares the tables of the two services.
    pub(crate) fn of(changes: &BTreeMap<u32, u64>, shipments: &BTreeMap<u32, Shipment>) -> Self {
        let mut check = Self::default();
        for (number, committed) in changes {
            let shipment = shipments.get(number).copied().unwrap_or_default();
            check.committed += committed;
            check.applied += shipment.effects;
            check.missing += committed.saturating_sub(shipment.change);
            // Changes are numbered from 1, so the last number is the expected number of effects.
            check.surplus += shipment.effects.saturating_sub(shipment.change);
            check.surplus += shipment.change.saturating_sub(*committed);
            check.surprises += shipment.surprises;
        }
        check
    }

    /// Whether no change was applied twice, without a commit or out of order. Missing changes may still arrive.
    pub(crate) fn is_sound(&self) -> bool {
        self.surplus == 0 && self.surprises == 0
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} changes committed, {} effects", self.committed, self.applied)?;
        match (self.is_sound(), self.missing) {
            (true, 0) => write!(f, ": nothing lost, nothing applied twice, every order in sequence"),
            (true, missing) => {
                write!(
                    f,
                    ": nothing applied twice, every order in sequence; {missing} in progress, the next start applies them"
                )
            }
            (false, _) => write!(f, ": {} too many, {} out of order", self.surplus, self.surprises),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(committed: u64, change: u64, effects: u64, surprises: u64) -> Check {
        Check::of(&BTreeMap::from([(1, committed)]), &BTreeMap::from([(1, Shipment { change, effects, surprises })]))
    }

    #[test]
    fn as_many_effects_as_changes_are_sound() {
        let check = check(5, 5, 5, 0);
        assert!(check.is_sound() && check.missing == 0, "{check}");
    }

    #[test]
    fn changes_in_progress_break_no_guarantee() {
        let check = check(5, 3, 3, 0);
        assert!(check.is_sound(), "{check}");
        assert_eq!(check.missing, 2);
    }

    #[test]
    fn an_effect_that_happened_twice_is_found() {
        assert!(!check(5, 4, 5, 1).is_sound());
        assert!(!check(5, 5, 6, 0).is_sound());
    }

    #[test]
    fn an_effect_of_a_rolled_back_change_is_found() {
        assert!(!check(5, 6, 6, 0).is_sound());
    }

    #[test]
    fn an_overtaken_change_is_found() {
        assert!(!check(5, 5, 5, 1).is_sound());
    }
}
