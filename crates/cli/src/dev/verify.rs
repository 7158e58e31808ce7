//! Checks the guarantees: compares what the shop committed with what shipping applied.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;
use serde::Serialize;
use sqlx::SqliteConnection;

use super::data_dir::DataDir;
use super::orders;
use super::shipping::{self, Shipment};

/// Reads the tables of both services. It keeps its connections, because the demo checks once a second.
#[derive(Debug)]
pub(crate) struct Verifier {
    orders: SqliteConnection,
    shipping: SqliteConnection,
}

impl Verifier {
    /// Opens the tables of both services.
    pub(crate) async fn open(data: &DataDir) -> Result<Self> {
        Ok(Self { orders: data.orders().await?, shipping: data.shipping().await? })
    }

    /// The committed changes of each order, and the check of all of them since the directory was created. Reads the
    /// effects first: a change that is applied was committed before.
    pub(crate) async fn totals(&mut self) -> Result<(BTreeMap<u32, u64>, Consistency)> {
        let shipments = shipping::shipments(&mut self.shipping).await?;
        let changes = orders::changes(&mut self.orders).await?;
        let consistency = Consistency::of(&changes, &shipments);
        Ok((changes, consistency))
    }

    /// Checks that these changes are applied. Changes that were committed later are not counted.
    pub(crate) async fn check(&mut self, changes: &BTreeMap<u32, u64>) -> Result<Consistency> {
        let shipments = shipping::shipments(&mut self.shipping).await?;
        Ok(Consistency::of(changes, &shipments))
    }
}

/// The result of a check, over all runs in the data directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Consistency {
    pub(crate) committed: u64,
    pub(crate) applied: u64,
    /// Committed, and not applied yet.
    pub(crate) missing: u64,
    /// Skipped: a later change of the same order is applied.
    pub(crate) lost: u64,
    /// Effects without a commit: a change was applied twice, or never committed.
    pub(crate) duplicated: u64,
    /// Changes that did not follow the one before.
    pub(crate) out_of_order: u64,
}

impl Consistency {
    /// Compares the tables of the two services. The changes of an order are numbered from 1, so the highest applied number
    /// is the expected number of effects.
    pub(crate) fn of(changes: &BTreeMap<u32, u64>, shipments: &BTreeMap<u32, Shipment>) -> Self {
        let mut result = Self::default();
        for (number, committed) in changes {
            let shipment = shipments.get(number).copied().unwrap_or_default();
            result.committed += committed;
            result.applied += shipment.effects;
            result.missing += committed.saturating_sub(shipment.change);
            result.lost += shipment.change.saturating_sub(shipment.effects);
            result.duplicated += shipment.effects.saturating_sub(shipment.change);
            result.duplicated += shipment.change.saturating_sub(*committed);
            result.out_of_order += shipment.out_of_order;
        }
        result
    }

    /// Whether no change was skipped, applied twice, applied without a commit or applied out of order. Missing changes may
    /// still arrive.
    pub(crate) fn is_sound(&self) -> bool {
        self.lost == 0 && self.duplicated == 0 && self.out_of_order == 0
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} changes committed, {} applied: ", self.committed, self.applied)?;
        match (self.is_sound(), self.missing) {
            (true, 0) => write!(f, "0 lost, 0 doubled, 0 out of order"),
            (true, missing) => {
                write!(f, "0 doubled, 0 out of order; {missing} in progress, the next start applies them")
            }
            (false, _) => {
                write!(f, "{} lost, {} doubled, {} out of order", self.lost, self.duplicated, self.out_of_order)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(committed: u64, change: u64, effects: u64, out_of_order: u64) -> Consistency {
        let shipment = Shipment { change, effects, out_of_order };
        Consistency::of(&BTreeMap::from([(1, committed)]), &BTreeMap::from([(1, shipment)]))
    }

    #[test]
    fn as_many_effects_as_changes_are_sound() {
        let result = check(5, 5, 5, 0);
        assert!(result.is_sound() && result.missing == 0, "{result}");
    }

    #[test]
    fn changes_in_progress_break_no_guarantee() {
        let result = check(5, 3, 3, 0);
        assert!(result.is_sound(), "{result}");
        assert_eq!(result.missing, 2);
    }

    #[test]
    fn a_skipped_change_is_lost() {
        let result = check(5, 4, 3, 1);
        assert!(!result.is_sound(), "{result}");
        assert_eq!((result.lost, result.missing), (1, 1));
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
