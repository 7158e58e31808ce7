//! Matches returned messages, which no queue is bound for, to their confirms.
//!
//! The server sends a returned message before its confirm. The client library attaches each return to the confirm that
//! completes next, often that of another message. Returns are therefore matched by message id and routing key.
//!
//! A message can be in flight twice, after its first call was cancelled. One return then counts for both, because it is
//! unknown which one is meant. Publishing one of them again is only a duplicate.
//!
//! A confirm counts only when it is certain that no return for it is still unseen:
//!
//! - A confirm without a return completed when none was pending: a return for its message was attached to a confirm
//!   that completed earlier. Those are seen by the end of the next round at the latest.
//! - A confirm with a return may have left its own return pending. None is pending when a later confirm has no return,
//!   or when nothing is in flight. There are never more pending returns than returned and unconfirmed messages.

use std::collections::{HashMap, HashSet};

use lapin::types::ShortString;

/// Identifies a message in a return. The exchange is that of the channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReturnKey {
    pub(crate) id: ShortString,
    pub(crate) routing_key: ShortString,
}

/// A confirm that is not decided yet.
#[derive(Debug)]
struct UndecidedConfirm<T> {
    confirm: T,
    return_key: ReturnKey,
    serial: u64,
    carried_return: bool,
    round: u64,
}

/// The undecided confirms of one channel.
#[derive(Debug)]
pub(crate) struct ReturnMatcher<T> {
    /// The returned messages, each with the last serial sent by then: later messages are not meant.
    returned: HashMap<ReturnKey, u64>,
    /// The number of returns at which pruning is worthwhile.
    prune_at: usize,
    undecided: Vec<UndecidedConfirm<T>>,
    round: u64,
    /// The last round, before this one, in which a confirm had no return attached.
    last_round_without_return: u64,
    round_without_return: bool,
}

impl<T> Default for ReturnMatcher<T> {
    fn default() -> Self {
        Self {
            returned: HashMap::new(),
            prune_at: PRUNE_AT,
            undecided: Vec::new(),
            round: 2,
            last_round_without_return: 0,
            round_without_return: false,
        }
    }
}

impl<T> ReturnMatcher<T> {
    /// Records the confirm of a message and the return attached to it. `last` is the last serial that was sent.
    pub(crate) fn add_confirm(
        &mut self,
        confirm: T,
        (return_key, serial): (ReturnKey, u64),
        carried: Option<ReturnKey>,
        last: u64,
    ) {
        let carried_return = carried.is_some();
        if let Some(returned) = carried {
            self.returned.insert(returned, last);
        } else {
            self.round_without_return = true;
        }
        self.undecided.push(UndecidedConfirm { confirm, return_key, serial, carried_return, round: self.round });
    }

    /// Ends a round, which has seen everything that completed before it began. `idle`: no message is in flight.
    ///
    /// Returns the decided messages, each with its name if it was returned.
    pub(crate) fn end_round(&mut self, idle: bool) -> Vec<(T, Option<ReturnKey>)> {
        let mut decided = Vec::with_capacity(self.undecided.len());
        let mut open = Vec::new();
        for one in std::mem::take(&mut self.undecided) {
            if self.is_returned(&one) {
                decided.push((one.confirm, Some(one.return_key)));
            } else if idle || self.is_certain(&one) {
                decided.push((one.confirm, None));
            } else {
                open.push(one);
            }
        }
        self.undecided = open;
        if idle {
            self.returned.clear();
        }
        if self.round_without_return {
            self.last_round_without_return = self.round;
            self.round_without_return = false;
        }
        self.round += 1;
        decided
    }

    fn is_certain(&self, one: &UndecidedConfirm<T>) -> bool {
        if one.carried_return { self.last_round_without_return >= one.round + 2 } else { one.round < self.round }
    }

    fn is_returned(&self, one: &UndecidedConfirm<T>) -> bool {
        // The map is almost always empty.
        !self.returned.is_empty() && self.returned.get(&one.return_key).is_some_and(|last| one.serial <= *last)
    }

    /// Whether [`Self::prune`] should be called.
    pub(crate) fn should_prune(&self) -> bool {
        self.returned.len() >= self.prune_at
    }

    /// Removes returns, except those of messages in flight or not decided.
    pub(crate) fn prune(&mut self, in_flight: &HashSet<&ReturnKey>) {
        let undecided: HashSet<&ReturnKey> = self.undecided.iter().map(|one| &one.return_key).collect();
        self.returned.retain(|key, _| in_flight.contains(key) || undecided.contains(key));
        self.prune_at = PRUNE_AT.max(2 * self.returned.len());
    }

    /// Removes the undecided confirms, which can no longer be decided.
    pub(crate) fn drain_undecided(&mut self) -> impl Iterator<Item = (T, ReturnKey)> + use<'_, T> {
        self.undecided.drain(..).map(|one| (one.confirm, one.return_key))
    }

    /// Whether everything is decided.
    pub(crate) fn is_empty(&self) -> bool {
        self.undecided.is_empty()
    }

    /// Whether another round can decide more.
    pub(crate) fn needs_round(&self) -> bool {
        self.undecided.iter().any(|one| !one.carried_return)
    }
}

const PRUNE_AT: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    fn return_key(number: u32) -> ReturnKey {
        ReturnKey { id: number.to_string().into(), routing_key: "k".into() }
    }

    fn add_confirm(returns: &mut ReturnMatcher<u32>, number: u32, carried: Option<u32>) {
        returns.add_confirm(number, (return_key(number), number.into()), carried.map(return_key), 100);
    }

    /// Ends a round. Returns the decided messages, and whether each was returned.
    fn end_round(returns: &mut ReturnMatcher<u32>, idle: bool) -> Vec<(u32, bool)> {
        returns.end_round(idle).into_iter().map(|(what, name)| (what, name.is_some())).collect()
    }

    #[test]
    fn a_confirm_is_decided_by_the_round_that_follows_it() {
        let mut returns = ReturnMatcher::default();
        add_confirm(&mut returns, 1, None);
        assert_eq!(end_round(&mut returns, false), []);
        assert!(returns.needs_round());
        assert_eq!(end_round(&mut returns, false), [(1, false)]);
    }

    #[test]
    fn a_return_is_matched_to_its_message_whichever_confirm_carried_it() {
        let mut returns = ReturnMatcher::default();
        add_confirm(&mut returns, 2, None);
        assert_eq!(end_round(&mut returns, false), []);
        add_confirm(&mut returns, 1, Some(2));
        assert_eq!(end_round(&mut returns, false), [(2, true)]);
        // The return for 1 may still be pending until a confirm has none attached.
        for _ in 0..3 {
            assert_eq!(end_round(&mut returns, false), []);
        }
        add_confirm(&mut returns, 3, None);
        assert_eq!(end_round(&mut returns, false), []);
        assert_eq!(end_round(&mut returns, false), [(1, false), (3, false)]);
    }

    #[test]
    fn confirms_that_carry_each_others_returns_are_both_unroutable() {
        let mut returns = ReturnMatcher::default();
        add_confirm(&mut returns, 1, Some(2));
        assert_eq!(end_round(&mut returns, false), []);
        add_confirm(&mut returns, 2, Some(1));
        assert_eq!(end_round(&mut returns, false), [(1, true), (2, true)]);
    }

    #[test]
    fn every_confirm_is_decided_when_none_is_in_flight() {
        let mut returns = ReturnMatcher::default();
        add_confirm(&mut returns, 1, Some(9));
        assert_eq!(end_round(&mut returns, true), [(1, false)]);
    }

    #[test]
    fn duplicates_of_a_message_are_distinguished_by_routing_key() {
        let mut returns = ReturnMatcher::default();
        let other = ReturnKey { id: "1".into(), routing_key: "other".into() };
        returns.add_confirm(10, (return_key(1), 1), Some(other.clone()), 2);
        returns.add_confirm(11, (other, 2), None, 2);
        assert_eq!(end_round(&mut returns, true), [(10, false), (11, true)]);
    }

    #[test]
    fn a_return_applies_to_every_duplicate_sent_before_it() {
        let mut returns = ReturnMatcher::default();
        // The first was cancelled, and its confirm arrives between the return and the confirm of the second.
        returns.add_confirm(1, (return_key(7), 1), None, 3);
        add_confirm(&mut returns, 3, None);
        returns.add_confirm(4, (return_key(4), 3), Some(return_key(7)), 3);
        assert_eq!(end_round(&mut returns, false), [(1, true)]);
        returns.add_confirm(2, (return_key(7), 2), None, 3);
        assert_eq!(end_round(&mut returns, false), [(3, false), (2, true)]);
        // Published again after a queue was bound.
        returns.add_confirm(5, (return_key(7), 4), None, 4);
        assert_eq!(end_round(&mut returns, true), [(4, false), (5, false)]);
    }

    #[test]
    fn returns_do_not_accumulate() {
        let mut returns = ReturnMatcher::default();
        for number in 0..2_000 {
            returns.add_confirm(number, (return_key(number), number.into()), Some(return_key(number)), number.into());
            end_round(&mut returns, false);
            if returns.should_prune() {
                returns.prune(&HashSet::from([&return_key(3)]));
            }
        }
        assert!(returns.returned.len() < 2_000 && returns.returned.contains_key(&return_key(3)));
    }
}
