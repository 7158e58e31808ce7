//! The oracle for effects. It knows what the database committed and which effects a consumer wrote.

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
pub struct Mark {
    /// The lane.
    pub lane: String,
    /// The broker's sequence number up to which everything is settled.
    pub mark: i64,
    /// Number of messages of the lane up to the mark that the inbox knew.
    pub known: i64,
}

/// The data of one consumer at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
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
    pub marks: Vec<(Mark, i64)>,
}

/// The result for one consumer. Everything except the counts should be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
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
    pub twice: Vec<String>,
    /// Effects without a committed change, or with the wrong key or change.
    pub ghosts: Vec<String>,
    /// Effects before the effect of an earlier change of their key, if the consumer keeps order.
    pub inverted: Vec<String>,
    /// Marks beyond a message that the inbox recorded only later.
    pub ahead: Vec<String>,
    /// Unfinished work: waiting messages, dead letters, inbox rows that contradict the ledger.
    pub unfinished: Vec<String>,
}

impl Findings {
    /// Violations, by the name of the guarantee.
    pub fn offences(&self) -> [(&'static str, &[String]); 6] {
        [
            ("lost", &self.lost),
            ("twice", &self.twice),
            ("ghosts", &self.ghosts),
            ("inverted", &self.inverted),
            ("ahead", &self.ahead),
            ("unfinished", &self.unfinished),
        ]
    }

    /// Whether all guarantees held.
    pub fn is_sound(&self) -> bool {
        self.offences().iter().all(|(_, offenders)| offenders.is_empty())
    }
}

/// Compares the committed changes with the data of a consumer.
pub fn judge_effects(consumer: &str, ordered: bool, committed: &[Change], left: &Left) -> Findings {
    let mut found = Findings {
        consumer: consumer.to_owned(),
        effects: left.effects.len(),
        redriven: left.redriven,
        marks: left.marks.len(),
        ..Findings::default()
    };
    let known: BTreeMap<&str, &Change> = committed.iter().map(|change| (change.id.as_str(), change)).collect();
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    for Effect { id, key, number } in &left.effects {
        let is_same = |change: &&&Change| change.key == *key && change.number == *number;
        let Some(change) = known.get(id.as_str()).filter(is_same) else {
            name(&mut found.ghosts, format!("change {number} of {key} ({id})"));
            continue;
        };
        let times = seen.entry(id.as_str()).or_default();
        *times += 1;
        if *times > 1 {
            name(&mut found.twice, format!("change {number} of {key} for the {times}. time"));
            continue;
        }
        let before = last.entry(change.key.as_str()).or_default();
        if ordered && *number < *before {
            name(&mut found.inverted, format!("change {number} of {key} after change {before}"));
        }
        *before = (*number).max(*before);
    }
    for Change { key, number, id, .. } in committed.iter().filter(|change| !seen.contains_key(change.id.as_str())) {
        name(&mut found.lost, format!("change {number} of {key} ({id})"));
    }
    judge_inbox(committed.len(), left, &mut found);
    found
}

/// The inbox must agree with the ledger that all messages are done.
fn judge_inbox(committed: usize, left: &Left, found: &mut Findings) {
    let done = left.states.get("done").copied().unwrap_or_default();
    if usize::try_from(done) != Ok(committed) {
        name(&mut found.unfinished, format!("{done} messages are done, {committed} were committed"));
    }
    for (state, count) in left.states.iter().filter(|(state, _)| *state != "done") {
        name(&mut found.unfinished, format!("{count} messages are {state}"));
    }
    for (count, what) in [(left.waiting, "messages wait"), (left.dead, "dead letters wait for a person")] {
        if count != 0 {
            name(&mut found.unfinished, format!("{count} {what}"));
        }
    }
    for (Mark { lane, mark, known }, in_the_end) in left.marks.iter().filter(|(mark, end)| mark.known < *end) {
        let missed = in_the_end - known;
        name(&mut found.ahead, format!("lane {lane} said {mark}, and {missed} messages up to there came later"));
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

    fn left(of: &[(&str, i64)]) -> Left {
        Left { effects: effects(of), states: BTreeMap::from([("done".to_owned(), 3)]), ..Left::default() }
    }

    fn judged(left: &Left) -> Findings {
        judge_effects("orderly", true, &committed(), left)
    }

    #[test]
    fn one_effect_each_in_order_is_sound() {
        let found = judged(&left(&[("a", 1), ("b", 1), ("a", 2)]));
        assert!(found.is_sound(), "{found:?}");
        assert_eq!(found.effects, 3);
    }

    #[test]
    fn an_effect_without_dedupe_happens_twice_and_is_found() {
        let found = judged(&left(&[("a", 1), ("b", 1), ("a", 1), ("a", 2)]));
        assert_eq!(found.twice, ["change 1 of a for the 2. time"]);
        assert!(found.inverted.is_empty(), "a repeat is no inversion: {found:?}");
    }

    #[test]
    fn an_acknowledgement_before_the_commit_loses_an_effect_and_is_found() {
        let found = judged(&left(&[("a", 1), ("b", 1)]));
        assert_eq!(found.lost, ["change 2 of a (id of a2)"]);
        // If the inbox does not know the message either, the result reports that too.
        let states = BTreeMap::from([("done".to_owned(), 2)]);
        let found = judged(&Left { states, ..left(&[("a", 1), ("b", 1)]) });
        assert_eq!(found.unfinished, ["2 messages are done, 3 were committed"]);
    }

    #[test]
    fn an_effect_of_what_never_committed_is_a_ghost_also_under_a_strange_key_or_change() {
        let mut left = left(&[("a", 1), ("a", 2), ("b", 1), ("a", 3)]);
        left.effects.push(Effect { key: "b".to_owned(), ..left.effects[0].clone() });
        left.effects.push(Effect { number: 7, ..left.effects[0].clone() });
        let ghosts = ["change 3 of a (id of a3)", "change 1 of b (id of a1)", "change 7 of a (id of a1)"];
        assert_eq!(judged(&left).ghosts, ghosts);
    }

    #[test]
    fn an_inversion_is_found_where_order_is_kept() {
        let left = left(&[("a", 2), ("a", 1), ("b", 1)]);
        assert_eq!(judged(&left).inverted, ["change 1 of a after change 2"]);
        assert!(judge_effects("hasty", false, &committed(), &left).is_sound());
    }

    #[test]
    fn what_waits_and_what_is_dead_is_unfinished() {
        let states = BTreeMap::from([("done".to_owned(), 3), ("waiting".to_owned(), 1)]);
        let left = Left { states, waiting: 1, dead: 2, ..left(&CHANGES) };
        let told = ["1 messages are waiting", "1 messages wait", "2 dead letters wait for a person"];
        assert_eq!(judged(&left).unfinished, told);
    }

    #[test]
    fn a_mark_beyond_what_the_inbox_heard_of_is_ahead() {
        let mark = |mark, known| Mark { lane: "3".to_owned(), mark, known };
        let left = Left { marks: vec![(mark(10, 4), 4), (mark(20, 8), 9)], ..left(&CHANGES) };
        assert_eq!(judged(&left).ahead, ["lane 3 said 20, and 1 messages up to there came later"]);
    }
}
