//! The judge: it knows what the database committed and what the broker keeps, and nothing else.

mod effects;

use std::collections::{BTreeMap, BTreeSet};

pub use effects::{Effect, Findings, Left, Mark, judge_effects};

/// How many offenders a report names.
const NAMED: usize = 10;

/// One committed change: the key's how-many-th, and the token that its message carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which key.
    pub key: String,
    /// The how-many-th change of the key that committed.
    pub number: i64,
    /// What the message's payload says; no two transactions have the same, also if they roll back.
    pub token: String,
    /// The message's id.
    pub id: String,
}

/// One message that the broker keeps, in the order in which it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Which key.
    pub key: String,
    /// What its payload says.
    pub token: String,
}

/// What was found. Everything but the counts should be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Changes that committed.
    pub committed: usize,
    /// Messages that the broker keeps.
    pub arrived: usize,
    /// Of those, repeats.
    pub repeats: usize,
    /// Committed, and not there.
    pub lost: Vec<String>,
    /// There, and never committed.
    pub ghosts: Vec<String>,
    /// First appearances before an earlier change of their key.
    pub inverted: Vec<String>,
}

impl Judgement {
    /// What broke, by the name of the promise.
    pub fn offences(&self) -> [(&'static str, &[String]); 3] {
        [("lost", &self.lost), ("ghosts", &self.ghosts), ("inverted", &self.inverted)]
    }

    /// Whether every promise held.
    pub fn is_sound(&self) -> bool {
        self.offences().iter().all(|(_, offenders)| offenders.is_empty())
    }
}

/// Compares what was committed with what arrived.
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
