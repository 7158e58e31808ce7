//! Counts redeliveries and out-of-order deliveries by the sequence number of the outbox. The counts have no other
//! effect.

use std::collections::BTreeMap;

use bytestring::ByteString;

/// What the sequence number shows about a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It is later than all earlier deliveries of its key.
    Onward,
    /// It is a redelivery, or its number was already received.
    Repeat,
    /// A first delivery that came after a later message of its key. A relay that publishes a message again causes the
    /// same pattern; the inbox decides whether the message is a duplicate.
    Inverted,
}

/// The last sequence number of each key.
#[derive(Debug)]
pub(crate) struct Sequences {
    last: BTreeMap<(String, ByteString), i64>,
    keys_max: usize,
}

impl Sequences {
    pub(crate) const fn new(keys_max: usize) -> Self {
        Self { last: BTreeMap::new(), keys_max }
    }

    /// Checks a delivery of this source and key, which may be a redelivery.
    pub(crate) fn see(&mut self, source: &str, key: &ByteString, seq: i64, redelivered: bool) -> Seen {
        if self.last.len() >= self.keys_max {
            // Clearing the whole map is rare and cheap. The next delivery of each key then counts as in order.
            self.last.clear();
        }
        let last = self.last.entry((source.to_owned(), key.clone())).or_insert(i64::MIN);
        if seq > *last {
            *last = seq;
            return if redelivered { Seen::Repeat } else { Seen::Onward };
        }
        if redelivered || seq == *last { Seen::Repeat } else { Seen::Inverted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_first_delivery_below_the_last_one_is_an_inversion() {
        let mut sequences = Sequences::new(10);
        let mut see = |key: &str, seq, redelivered| sequences.see("/outbox", &key.into(), seq, redelivered);
        assert_eq!(see("a", 5, false), Seen::Onward);
        assert_eq!(see("a", 9, false), Seen::Onward);
        assert_eq!(see("a", 9, false), Seen::Repeat);
        assert_eq!(see("a", 7, false), Seen::Inverted);
        assert_eq!(see("a", 5, true), Seen::Repeat);
        assert_eq!(see("b", 1, false), Seen::Onward);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut sequences = Sequences::new(2);
        for key in ["a", "b", "c", "d"] {
            sequences.see("/outbox", &key.into(), 1, false);
        }
        assert!(sequences.last.len() <= 2);
    }
}
