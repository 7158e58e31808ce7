//! The oracle. It knows only what the database committed and what the broker stores.

mod effects;

use std::collections::{BTreeMap, BTreeSet};

pub use effects::{Effect, Findings, Left, Mark, judge_effects};

/// Maximum number of violations that a report names.
const NAMED: usize = 10;

/// One committed change: its number within its key, and the token in its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The number of the change among the committed changes of its key.
    pub number: i64,
    /// The token in the message's payload. It is unique per change, even if the transaction rolls back.
    pub token: String,
    /// The id of the message.
    pub id: String,
}

/// One message that the broker stores, in the order of acceptance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The key.
    pub key: String,
    /// The token in its payload.
    pub token: String,
}

/// The result. Everything except the counts should be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Number of committed changes.
    pub committed: usize,
    /// Number of messages that the broker stores.
    pub arrived: usize,
    /// Number of repeats among them.
    pub repeats: usize,
    /// Committed, but missing at the broker.
    pub lost: Vec<String>,
    /// At the broker, but never committed.
    pub ghosts: Vec<String>,
    /// First deliveries that came before an earlier change of their key.
    pub inverted: Vec<String>,
}

impl Judgement {
    /// Violations, by the name of the guarantee.
    pub fn offences(&self) -> [(&'static str, &[String]); 3] {
        [("lost", &self.lost), ("ghosts", &self.ghosts), ("inverted", &self.inverted)]
    }

    /// Whether all guarantees held.
    pub fn is_sound(&self) -> bool {
        self.offences().iter().all(|(_, offenders)| offenders.is_empty())
    }
}

/// Compares the committed changes with the messages at the broker.
pub fn judge(committed: &[Change], arrived: &[Arrival]) -> Judgement {
    let known: BTreeMap<&str, &Change> = committed.iter().map(|change| (change.token.as_str(), change)).collect();
    let mut seen = BTreeSet::new();
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    let mut judgement = Judgement { committed: committed.len(), arrived: arrived.len(), ..Judgement::default() };
    for arrival in arrived {
        let Some(change) = known.get(arrival.token.as_str()).filter(|change| change.key == arrival.key) else {
            name(&mut judgement.ghosts, format!("{} of {}", arrival.token, arrival.key));
            continue;
        };
        if !seen.insert(arrival.token.as_str()) {
            judgement.repeats += 1;
            continue;
        }
        let before = last.entry(change.key.as_str()).or_default();
        if change.number < *before {
            name(&mut judgement.inverted, format!("change {} of {} after change {before}", change.number, change.key));
        }
        *before = change.number.max(*before);
    }
    for change in committed.iter().filter(|change| !seen.contains(change.token.as_str())) {
        name(&mut judgement.lost, format!("change {} of {} ({})", change.number, change.key, change.token));
    }
    judgement
}

fn name(offenders: &mut Vec<String>, offender: String) {
    match offenders.len() {
        NAMED => offenders.push("and more".to_owned()),
        few if few < NAMED => offenders.push(offender),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(changes: &[(&str, i64)]) -> Vec<Change> {
        let change = |(key, number): &(&str, i64)| Change {
            key: (*key).to_owned(),
            number: *number,
            token: format!("{key}{number}"),
            id: String::new(),
        };
        changes.iter().map(change).collect()
    }

    fn arrived(tokens: &[(&str, &str)]) -> Vec<Arrival> {
        tokens.iter().map(|(key, token)| Arrival { key: (*key).to_owned(), token: (*token).to_owned() }).collect()
    }

    const CHANGES: [(&str, i64); 3] = [("a", 1), ("a", 2), ("b", 1)];

    #[test]
    fn everything_once_and_in_order_is_sound() {
        let judgement = judge(&committed(&CHANGES), &arrived(&[("a", "a1"), ("b", "b1"), ("a", "a2")]));
        assert!(judgement.is_sound(), "{judgement:?}");
        assert_eq!((judgement.committed, judgement.arrived, judgement.repeats), (3, 3, 0));
    }

    #[test]
    fn a_late_repeat_is_counted_and_breaks_nothing() {
        let judgement = judge(&committed(&CHANGES), &arrived(&[("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a1")]));
        assert!(judgement.is_sound(), "{judgement:?}");
        assert_eq!(judgement.repeats, 1);
    }

    #[test]
    fn what_is_lost_is_found() {
        let judgement = judge(&committed(&CHANGES), &arrived(&[("a", "a1"), ("b", "b1")]));
        assert_eq!(judgement.lost, ["change 2 of a (a2)"]);
    }

    #[test]
    fn what_never_committed_is_a_ghost_also_under_a_strange_key() {
        let judgement =
            judge(&committed(&CHANGES), &arrived(&[("a", "a1"), ("a", "a9"), ("b", "a2"), ("a", "a2"), ("b", "b1")]));
        assert_eq!(judgement.ghosts, ["a9 of a", "a2 of b"]);
    }

    #[test]
    fn a_first_appearance_in_the_wrong_place_is_an_inversion() {
        let judgement = judge(&committed(&CHANGES), &arrived(&[("a", "a2"), ("a", "a1"), ("b", "b1")]));
        assert_eq!(judgement.inverted, ["change 1 of a after change 2"]);
    }
}
