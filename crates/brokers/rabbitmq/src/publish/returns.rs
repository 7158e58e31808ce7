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
pub(crate) struct Name {
    pub(crate) id: ShortString,
    pub(crate) key: ShortString,
}

/// A confirm that is not decided yet.
#[derive(Debug)]
struct Landed<T> {
    what: T,
    name: Name,
    serial: u64,
    carried: bool,
    round: u64,
}

/// The undecided confirms of one channel.
#[derive(Debug)]
pub(crate) struct Returns<T> {
    /// The returned messages, each with the last serial sent by then: later messages are not meant.
    announced: HashMap<Name, u64>,
    /// The number of returns at which pruning is worthwhile.
    crowded_at: usize,
    landed: Vec<Landed<T>>,
    round: u64,
    /// The last round, before this one, in which a confirm had no return attached.
    carried_none: u64,
    carries_none: bool,
}

impl<T> Default for Returns<T> {
    fn default() -> Self {
        Self {
            announced: HashMap::new(),
            crowded_at: CROWD,
            landed: Vec::new(),
            round: 2,
            carried_none: 0,
            carries_none: false,
        }
    }
}

impl<T> Returns<T> {
    /// Records the confirm of a message and the return attached to it. `last` is the last serial that was sent.
    pub(crate) fn land(&mut self, what: T, (name, serial): (Name, u64), carried: Option<Name>, last: u64) {
        let some = carried.is_some();
        if let Some(announced) = carried {
            self.announced.insert(announced, last);
        } else {
            self.carries_none = true;
        }
        self.landed.push(Landed { what, name, serial, carried: some, round: self.round });
    }

    /// Ends a round, which has seen everything that completed before it began. `idle`: no message is in flight.
    ///
    /// Returns the decided messages, each with its name if it was returned.
    pub(crate) fn end_round(&mut self, idle: bool) -> Vec<(T, Option<Name>)> {
        let mut decided = Vec::with_capacity(self.landed.len());
        let mut open = Vec::new();
        for landed in std::mem::take(&mut self.landed) {
            if self.is_announced(&landed) {
                decided.push((landed.what, Some(landed.name)));
            } else if idle || self.is_certain(&landed) {
                decided.push((landed.what, None));
            } else {
                open.push(landed);
            }
        }
        self.landed = open;
        if idle {
            self.announced.clear();
        }
        if self.carries_none {
            self.carried_none = self.round;
            self.carries_none = false;
        }
        self.round += 1;
        decided
    }

    fn is_certain(&self, landed: &Landed<T>) -> bool {
        if landed.carried { self.carried_none >= landed.round + 2 } else { landed.round < self.round }
    }

    fn is_announced(&self, landed: &Landed<T>) -> bool {
        // The map is almost always empty.
        !self.announced.is_empty() && self.announced.get(&landed.name).is_some_and(|last| landed.serial <= *last)
    }

    /// Whether [`Self::forget`] should be called.
    pub(crate) fn is_crowded(&self) -> bool {
        self.announced.len() >= self.crowded_at
    }

    /// Removes returns, except those of messages in flight or not decided.
    pub(crate) fn forget(&mut self, in_flight: &HashSet<&Name>) {
        let landed: HashSet<&Name> = self.landed.iter().map(|landed| &landed.name).collect();
        self.announced.retain(|name, _| in_flight.contains(name) || landed.contains(name));
        self.crowded_at = CROWD.max(2 * self.announced.len());
    }

    /// Removes the undecided confirms, which can no longer be decided.
    pub(crate) fn give_up(&mut self) -> impl Iterator<Item = (T, Name)> + use<'_, T> {
        self.landed.drain(..).map(|landed| (landed.what, landed.name))
    }

    /// Whether everything is decided.
    pub(crate) fn is_empty(&self) -> bool {
        self.landed.is_empty()
    }

    /// Whether another round can decide more.
    pub(crate) fn is_open(&self) -> bool {
        self.landed.iter().any(|landed| !landed.carried)
    }
}

const CROWD: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u32) -> Name {
        Name { id: number.to_string().into(), key: "k".into() }
    }

    fn land(returns: &mut Returns<u32>, number: u32, carried: Option<u32>) {
        returns.land(number, (name(number), number.into()), carried.map(name), 100);
    }

    /// Ends a round. Returns the decided messages, and whether each was returned.
    fn end_round(returns: &mut Returns<u32>, idle: bool) -> Vec<(u32, bool)> {
        returns.end_round(idle).into_iter().map(|(what, name)| (what, name.is_some())).collect()
    }

    #[test]
    fn a_confirm_counts_after_the_round_that_follows_it() {
        let mut returns = Returns::default();
        land(&mut returns, 1, None);
        assert_eq!(end_round(&mut returns, false), []);
        assert!(returns.is_open());
        assert_eq!(end_round(&mut returns, false), [(1, false)]);
    }

    #[test]
    fn an_announcement_finds_its_message_whoever_carried_it() {
        let mut returns = Returns::default();
        land(&mut returns, 2, None);
        assert_eq!(end_round(&mut returns, false), []);
        land(&mut returns, 1, Some(2));
        assert_eq!(end_round(&mut returns, false), [(2, true)]);
        // The return for 1 may still be pending until a confirm has none attached.
        for _ in 0..3 {
            assert_eq!(end_round(&mut returns, false), []);
        }
        land(&mut returns, 3, None);
        assert_eq!(end_round(&mut returns, false), []);
        assert_eq!(end_round(&mut returns, false), [(1, false), (3, false)]);
    }

    #[test]
    fn two_that_carry_each_others_are_both_unroutable() {
        let mut returns = Returns::default();
        land(&mut returns, 1, Some(2));
        assert_eq!(end_round(&mut returns, false), []);
        land(&mut returns, 2, Some(1));
        assert_eq!(end_round(&mut returns, false), [(1, true), (2, true)]);
    }

    #[test]
    fn with_nothing_in_flight_everything_is_decided() {
        let mut returns = Returns::default();
        land(&mut returns, 1, Some(9));
        assert_eq!(end_round(&mut returns, true), [(1, false)]);
    }

    #[test]
    fn the_same_message_twice_is_told_by_its_routing_key_and_counted() {
        let mut returns = Returns::default();
        let other = Name { id: "1".into(), key: "other".into() };
        returns.land(10, (name(1), 1), Some(other.clone()), 2);
        returns.land(11, (other, 2), None, 2);
        assert_eq!(end_round(&mut returns, true), [(10, false), (11, true)]);
    }

    #[test]
    fn an_announcement_counts_for_every_twin_that_was_sent_by_then() {
        let mut returns = Returns::default();
        // The first was cancelled, and its confirm arrives between the return and the confirm of the second.
        returns.land(1, (name(7), 1), None, 3);
        land(&mut returns, 3, None);
        returns.land(4, (name(4), 3), Some(name(7)), 3);
        assert_eq!(end_round(&mut returns, false), [(1, true)]);
        returns.land(2, (name(7), 2), None, 3);
        assert_eq!(end_round(&mut returns, false), [(3, false), (2, true)]);
        // Published again after a queue was bound.
        returns.land(5, (name(7), 4), None, 4);
        assert_eq!(end_round(&mut returns, true), [(4, false), (5, false)]);
    }

    #[test]
    fn announcements_do_not_pile_up() {
        let mut returns = Returns::default();
        for number in 0..2_000 {
            returns.land(number, (name(number), number.into()), Some(name(number)), number.into());
            end_round(&mut returns, false);
            if returns.is_crowded() {
                returns.forget(&HashSet::from([&name(3)]));
            }
        }
        assert!(returns.announced.len() < 2_000 && returns.announced.contains_key(&name(3)));
    }
}
