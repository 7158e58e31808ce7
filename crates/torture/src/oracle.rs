//! The oracle. It knows only the committed changes and the messages at the broker.

mod effects;

use std::collections::{BTreeMap, BTreeSet};

pub use effects::{ConsumerFindings, ConsumerState, Effect, LaneMark, check_effects};

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
pub struct StoredMessage {
    /// The key.
    pub key: String,
    /// The token in its payload.
    pub token: String,
}

/// The result. Everything except the counts should be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerFindings {
    /// Number of committed changes.
    pub committed: usize,
    /// Number of messages that the broker stores.
    pub arrived: usize,
    /// Number of repeats among them.
    pub repeats: usize,
    /// Committed, but missing at the broker.
    pub lost: Vec<String>,
    /// At the broker, but never committed.
    pub uncommitted: Vec<String>,
    /// First deliveries before an earlier change of their key.
    pub out_of_order: Vec<String>,
}

impl BrokerFindings {
    /// Violations, by the name of the guarantee.
    pub fn violations(&self) -> [(&'static str, &[String]); 3] {
        [("lost", &self.lost), ("uncommitted", &self.uncommitted), ("out of order", &self.out_of_order)]
    }

    /// Whether all guarantees held.
    pub fn is_sound(&self) -> bool {
        self.violations().iter().all(|(_, violations)| violations.is_empty())
    }
}

/// Compares the committed changes with the messages at the broker.
pub fn check_deliveries(committed: &[Change], arrived: &[StoredMessage]) -> BrokerFindings {
    let known: BTreeMap<&str, &Change> = committed.iter().map(|change| (change.token.as_str(), change)).collect();
    let mut tokens_seen = BTreeSet::new();
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    let mut broker_findings =
        BrokerFindings { committed: committed.len(), arrived: arrived.len(), ..BrokerFindings::default() };
    for stored_message in arrived {
        let Some(change) = known.get(stored_message.token.as_str()).filter(|change| change.key == stored_message.key)
        else {
            name(&mut broker_findings.uncommitted, format!("{} of {}", stored_message.token, stored_message.key));
            continue;
        };
        if !tokens_seen.insert(stored_message.token.as_str()) {
            broker_findings.repeats += 1;
            continue;
        }
        let before = last.entry(change.key.as_str()).or_default();
        if change.number < *before {
            name(
                &mut broker_findings.out_of_order,
                format!("change {} of {} after change {before}", change.number, change.key),
            );
        }
        *before = change.number.max(*before);
    }
    for change in committed.iter().filter(|change| !tokens_seen.contains(change.token.as_str())) {
        name(&mut broker_findings.lost, format!("change {} of {} ({})", change.number, change.key, change.token));
    }
    broker_findings
}

fn name(violations: &mut Vec<String>, violation: String) {
    match violations.len() {
        NAMED => violations.push("and more".to_owned()),
        few if few < NAMED => violations.push(violation),
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

    fn arrived(tokens: &[(&str, &str)]) -> Vec<StoredMessage> {
        tokens.iter().map(|(key, token)| StoredMessage { key: (*key).to_owned(), token: (*token).to_owned() }).collect()
    }

    const CHANGES: [(&str, i64); 3] = [("a", 1), ("a", 2), ("b", 1)];

    #[test]
    fn everything_once_and_in_order_is_sound() {
        let broker_findings =
            check_deliveries(&committed(&CHANGES), &arrived(&[("a", "a1"), ("b", "b1"), ("a", "a2")]));
        assert!(broker_findings.is_sound(), "{broker_findings:?}");
        assert_eq!((broker_findings.committed, broker_findings.arrived, broker_findings.repeats), (3, 3, 0));
    }

    #[test]
    fn a_late_repeat_is_counted_and_breaks_nothing() {
        let broker_findings =
            check_deliveries(&committed(&CHANGES), &arrived(&[("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a1")]));
        assert!(broker_findings.is_sound(), "{broker_findings:?}");
        assert_eq!(broker_findings.repeats, 1);
    }

    #[test]
    fn a_lost_message_is_found() {
        let broker_findings = check_deliveries(&committed(&CHANGES), &arrived(&[("a", "a1"), ("b", "b1")]));
        assert_eq!(broker_findings.lost, ["change 2 of a (a2)"]);
    }

    #[test]
    fn an_uncommitted_message_is_found_also_under_another_key() {
        let broker_findings = check_deliveries(
            &committed(&CHANGES),
            &arrived(&[("a", "a1"), ("a", "a9"), ("b", "a2"), ("a", "a2"), ("b", "b1")]),
        );
        assert_eq!(broker_findings.uncommitted, ["a9 of a", "a2 of b"]);
    }

    #[test]
    fn a_first_delivery_before_an_earlier_change_is_out_of_order() {
        let broker_findings =
            check_deliveries(&committed(&CHANGES), &arrived(&[("a", "a2"), ("a", "a1"), ("b", "b1")]));
        assert_eq!(broker_findings.out_of_order, ["change 1 of a after change 2"]);
    }
}
