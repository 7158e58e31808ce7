//! Checks the promises on what happened; knows nothing but the record.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use relevo_core::MessageId;

/// What writers, operators and the far side say happened.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// What committed, with the number of its order; of one order, in commit order.
    pub(crate) committed: Vec<(MessageId, u32)>,
    /// What was emitted in transactions that rolled back.
    pub(crate) rolled_back: BTreeSet<MessageId>,
    /// Dead letters that were given up.
    pub(crate) discarded: BTreeSet<MessageId>,
    /// What the far side received, in order of receipt, repeats included.
    pub(crate) received: Vec<MessageId>,
}

/// One promise, and what the record says about it.
#[derive(Debug)]
pub(crate) struct Promise {
    /// Its name in the documentation.
    pub(crate) name: &'static str,
    sentence: String,
    pub(crate) held: bool,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}  {}", if self.held { "held  " } else { "BROKEN" }, self.name, self.sentence)
    }
}

/// Checks delivery, rollback and order.
pub(crate) fn check(record: &Record) -> [Promise; 3] {
    [delivered(record), never_published(record), in_order(record)]
}

fn delivered(record: &Record) -> Promise {
    let received: BTreeSet<_> = record.received.iter().collect();
    let mut arrived = 0;
    let mut discarded = 0;
    let mut lost = Vec::new();
    for (id, order) in &record.committed {
        if received.contains(id) {
            arrived += 1;
        } else if record.discarded.contains(id) {
            discarded += 1;
        } else {
            lost.push((id, order));
        }
    }
    let total = record.committed.len();
    let rest = lost.first().map_or_else(String::new, |(id, order)| {
        format!(" + {} LOST, the first of them {id} of order-{order}", lost.len())
    });
    let sentence = format!("{total} committed = {arrived} received + {discarded} dead letters discarded{rest}");
    Promise { name: "P1", sentence, held: lost.is_empty() }
}

fn never_published(record: &Record) -> Promise {
    let committed: BTreeSet<_> = record.committed.iter().map(|(id, _)| id).collect();
    let ghosts = record.received.iter().filter(|id| !committed.contains(id)).count();
    let sentence = format!("{ghosts} of {} that rolled back received", record.rolled_back.len());
    Promise { name: "P2", sentence, held: ghosts == 0 }
}

fn in_order(record: &Record) -> Promise {
    let mut firsts = BTreeMap::new();
    for (place, id) in record.received.iter().enumerate() {
        firsts.entry(id).or_insert(place);
    }
    let mut last = BTreeMap::new();
    let mut inverted = 0;
    for (id, order) in &record.committed {
        let Some(place) = firsts.get(id) else { continue };
        let before = last.entry(order).or_insert(place);
        if place < *before {
            inverted += 1;
        } else {
            *before = place;
        }
    }
    let sentence = format!("{inverted} first appearances out of commit order, in {} keys", last.len());
    Promise { name: "P3", sentence, held: inverted == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> MessageId {
        MessageId::v7(number.into(), [number; 10])
    }

    /// Messages 1 to 4 of order 1, 5 of order 2, all received; 9 rolled back.
    fn sound() -> Record {
        Record {
            committed: vec![(id(1), 1), (id(5), 2), (id(2), 1), (id(3), 1), (id(4), 1)],
            rolled_back: BTreeSet::from([id(9)]),
            discarded: BTreeSet::new(),
            received: [1, 2, 5, 3, 4].map(id).to_vec(),
        }
    }

    fn broken(record: &Record) -> Vec<&'static str> {
        check(record).iter().filter(|promise| !promise.held).map(|promise| promise.name).collect()
    }

    #[test]
    fn a_sound_record_breaks_nothing() {
        assert_eq!(broken(&sound()), [""; 0]);
    }

    #[test]
    fn repeats_break_nothing() {
        let received = [1, 2, 1, 5, 2, 3, 4, 3].map(id).to_vec();
        assert_eq!(broken(&Record { received, ..sound() }), [""; 0]);
    }

    #[test]
    fn a_lost_message_breaks_delivery_unless_it_was_discarded() {
        let received = [1, 2, 5, 4].map(id).to_vec();
        let mut record = Record { received, ..sound() };
        assert_eq!(broken(&record), ["P1"]);
        record.discarded.insert(id(3));
        assert_eq!(broken(&record), [""; 0]);
    }

    #[test]
    fn a_message_that_rolled_back_or_was_never_written_breaks_rollback() {
        for ghost in [9, 77] {
            let received = [1, 2, 5, ghost, 3, 4].map(id).to_vec();
            assert_eq!(broken(&Record { received, ..sound() }), ["P2"]);
        }
    }

    #[test]
    fn first_appearances_in_the_wrong_order_break_order() {
        let received = [2, 1, 5, 3, 4].map(id).to_vec();
        assert_eq!(broken(&Record { received, ..sound() }), ["P3"]);
    }
}
