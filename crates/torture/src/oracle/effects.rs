//! The oracle for effects. It knows the committed changes and the effects of a consumer.

use std::collections::BTreeMap;

use super::{Change, name};

/// One row of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The id of the message that caused it.
    pub id: String,
    /// The key of the message.
    pub key: String,
    /// The number of the change in its payload.
    pub number: i64,
}

/// The mark of a lane, and how many of its messages up to the mark the inbox knew at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneMark {
    /// The lane.
    pub lane: String,
    /// The broker's sequence number up to which everything is settled.
    pub mark: i64,
    /// Number of messages of the lane up to the mark that the inbox knew.
    pub known: i64,
}

/// The data of one consumer at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerState {
    /// Its ledger, in the order of the effects.
    pub effects: Vec<Effect>,
    /// Number of inbox rows by state.
    pub states: BTreeMap<String, i64>,
    /// Number of messages in its retry table.
    pub waiting: i64,
    /// Number of dead letters that wait for an operator.
    pub dead: i64,
    /// Number of redriven dead letters.
    pub redriven: i64,
    /// Sampled marks, each with the number of messages that the inbox knows up to the mark at the end.
    pub marks: Vec<(LaneMark, i64)>,
}

/// The result for one consumer. Everything except the counts should be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerFindings {
    /// The name of the consumer.
    pub consumer: String,
    /// Number of effects.
    pub effects: usize,
    /// Number of dead letters that were redriven during the run.
    pub redriven: i64,
    /// Number of sampled marks.
    pub marks: usize,
    /// Committed, but without an effect.
    pub lost: Vec<String>,
    /// Effects that happened more than once.
    pub repeated: Vec<String>,
    /// Effects without a committed change, or with the wrong key or change.
    pub uncommitted: Vec<String>,
    /// Effects before the effect of an earlier change of their key, if the consumer keeps order.
    pub out_of_order: Vec<String>,
    /// Marks beyond a message that the inbox recorded only later.
    pub ahead: Vec<String>,
    /// Unfinished work: waiting messages, dead letters, inbox rows that contradict the ledger.
    pub unfinished: Vec<String>,
}

impl ConsumerFindings {
    /// Violations, by the name of the guarantee.
    pub fn violations(&self) -> [(&'static str, &[String]); 6] {
        [
            ("lost", &self.lost),
            ("repeated", &self.repeated),
            ("uncommitted", &self.uncommitted),
            ("out of order", &self.out_of_order),
            ("ahead", &self.ahead),
            ("unfinished", &self.unfinished),
        ]
    }

    /// Whether all guarantees held.
    pub fn is_sound(&self) -> bool {
        self.violations().iter().all(|(_, violations)| violations.is_empty())
    }
}

/// Compares the committed changes with the data of a consumer.
pub fn check_effects(consumer: &str, ordered: bool, committed: &[Change], state: &ConsumerState) -> ConsumerFindings {
    let mut findings = ConsumerFindings {
        consumer: consumer.to_owned(),
        effects: state.effects.len(),
        redriven: state.redriven,
        marks: state.marks.len(),
        ..ConsumerFindings::default()
    };
    let known: BTreeMap<&str, &Change> = committed.iter().map(|change| (change.id.as_str(), change)).collect();
    let mut effects_by_id: BTreeMap<&str, u32> = BTreeMap::new();
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    for Effect { id, key, number } in &state.effects {
        let is_same = |change: &&&Change| change.key == *key && change.number == *number;
        let Some(change) = known.get(id.as_str()).filter(is_same) else {
            name(&mut findings.uncommitted, format!("change {number} of {key} ({id})"));
            continue;
        };
        let times = effects_by_id.entry(id.as_str()).or_default();
        *times += 1;
        if *times > 1 {
            name(&mut findings.repeated, format!("change {number} of {key} {times} times"));
            continue;
        }
        let before = last.entry(change.key.as_str()).or_default();
        if ordered && *number < *before {
            name(&mut findings.out_of_order, format!("change {number} of {key} after change {before}"));
        }
        *before = (*number).max(*before);
    }
    for Change { key, number, id, .. } in
        committed.iter().filter(|change| !effects_by_id.contains_key(change.id.as_str()))
    {
        name(&mut findings.lost, format!("change {number} of {key} ({id})"));
    }
    check_inbox(committed.len(), state, &mut findings);
    findings
}

/// The inbox must agree with the ledger that all messages are done.
fn check_inbox(committed: usize, state: &ConsumerState, findings: &mut ConsumerFindings) {
    let done = state.states.get("done").copied().unwrap_or_default();
    if usize::try_from(done) != Ok(committed) {
        name(&mut findings.unfinished, format!("{done} messages are done, {committed} were committed"));
    }
    for (state, count) in state.states.iter().filter(|(state, _)| *state != "done") {
        name(&mut findings.unfinished, format!("{count} messages are {state}"));
    }
    for (count, text) in [(state.waiting, "messages wait"), (state.dead, "dead letters wait for an operator")] {
        if count != 0 {
            name(&mut findings.unfinished, format!("{count} {text}"));
        }
    }
    for (LaneMark { lane, mark, known }, at_end) in state.marks.iter().filter(|(mark, end)| mark.known < *end) {
        let missed = at_end - known;
        name(
            &mut findings.ahead,
            format!("lane {lane} reported {mark}, but {missed} messages up to it were recorded later"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGES: [(&str, i64); 3] = [("a", 1), ("a", 2), ("b", 1)];

    fn committed() -> Vec<Change> {
        let change = |(key, number): (&str, i64)| Change {
            key: key.to_owned(),
            number,
            id: format!("id of {key}{number}"),
            token: String::new(),
        };
        CHANGES.map(change).to_vec()
    }

    fn effects(of: &[(&str, i64)]) -> Vec<Effect> {
        let effect = |(key, number): &(&str, i64)| Effect {
            id: format!("id of {key}{number}"),
            key: (*key).to_owned(),
            number: *number,
        };
        of.iter().map(effect).collect()
    }

    fn state(of: &[(&str, i64)]) -> ConsumerState {
        ConsumerState {
            effects: effects(of),
            states: BTreeMap::from([("done".to_owned(), 3)]),
            ..ConsumerState::default()
        }
    }

    fn checked(state: &ConsumerState) -> ConsumerFindings {
        check_effects("ordered", true, &committed(), state)
    }

    #[test]
    fn one_effect_each_in_order_is_sound() {
        let findings = checked(&state(&[("a", 1), ("b", 1), ("a", 2)]));
        assert!(findings.is_sound(), "{findings:?}");
        assert_eq!(findings.effects, 3);
    }

    #[test]
    fn a_repeated_effect_is_found() {
        let findings = checked(&state(&[("a", 1), ("b", 1), ("a", 1), ("a", 2)]));
        assert_eq!(findings.repeated, ["change 1 of a 2 times"]);
        assert!(findings.out_of_order.is_empty(), "a repeat is not out of order: {findings:?}");
    }

    #[test]
    fn a_lost_effect_is_found() {
        let findings = checked(&state(&[("a", 1), ("b", 1)]));
        assert_eq!(findings.lost, ["change 2 of a (id of a2)"]);
        // If the inbox does not know the message either, the result reports that too.
        let states = BTreeMap::from([("done".to_owned(), 2)]);
        let findings = checked(&ConsumerState { states, ..state(&[("a", 1), ("b", 1)]) });
        assert_eq!(findings.unfinished, ["2 messages are done, 3 were committed"]);
    }

    #[test]
    fn an_effect_without_a_commit_is_found_also_under_another_key_or_change() {
        let mut state = state(&[("a", 1), ("a", 2), ("b", 1), ("a", 3)]);
        state.effects.push(Effect { key: "b".to_owned(), ..state.effects[0].clone() });
        state.effects.push(Effect { number: 7, ..state.effects[0].clone() });
        let uncommitted = ["change 3 of a (id of a3)", "change 1 of b (id of a1)", "change 7 of a (id of a1)"];
        assert_eq!(checked(&state).uncommitted, uncommitted);
    }

    #[test]
    fn a_wrong_order_is_found_if_the_consumer_keeps_order() {
        let state = state(&[("a", 2), ("a", 1), ("b", 1)]);
        assert_eq!(checked(&state).out_of_order, ["change 1 of a after change 2"]);
        assert!(check_effects("unordered", false, &committed(), &state).is_sound());
    }

    #[test]
    fn waiting_and_dead_messages_are_unfinished() {
        let states = BTreeMap::from([("done".to_owned(), 3), ("waiting".to_owned(), 1)]);
        let state = ConsumerState { states, waiting: 1, dead: 2, ..state(&CHANGES) };
        let expected = ["1 messages are waiting", "1 messages wait", "2 dead letters wait for an operator"];
        assert_eq!(checked(&state).unfinished, expected);
    }

    #[test]
    fn a_mark_beyond_the_recorded_messages_is_ahead() {
        let mark = |mark, known| LaneMark { lane: "3".to_owned(), mark, known };
        let state = ConsumerState { marks: vec![(mark(10, 4), 4), (mark(20, 8), 9)], ..state(&CHANGES) };
        assert_eq!(checked(&state).ahead, ["lane 3 reported 20, but 1 messages up to it were recorded later"]);
    }
}
