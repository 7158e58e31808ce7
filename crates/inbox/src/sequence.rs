//! Counts redeliveries and out-of-order deliveries by the sequence number of the outbox. The counts have no other
//! effect.

use std::collections::BTreeMap;

use bytestring::ByteString;

/// What the sequence number shows about a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SequenceCheck {
    /// It is later than all earlier deliveries of its key.
    InOrder,
    /// It is a redelivery, or its number was already received.
    Repeat,
    /// A first delivery that came after a later message of its key. A relay that publishes a message again causes the
    /// same pattern; the inbox decides whether the message is a duplicate.
    OutOfOrder,
}

/// The last sequence number of each key.
#[derive(Debug)]
pub(crate) struct SequenceTracker {
    last: BTreeMap<(String, ByteString), i64>,
    keys_max: usize,
}

impl SequenceTracker {
    pub(crate) const fn new(keys_max: usize) -> Self {
        Self { last: BTreeMap::new(), keys_max }
    }

    /// Checks a delivery of this source and key, which may be a redelivery.
    pub(crate) fn check(&mut self, source: &str, key: &ByteString, seq: i64, redelivered: bool) -> SequenceCheck {
        if self.last.len() >= self.keys_max {
            // Clearing the whole map is rare and cheap. The next delivery of each key then counts as in order.
            self.last.clear();
        }
        let last = self.last.entry((source.to_owned(), key.clone())).or_insert(i64::MIN);
        if seq > *last {
            *last = seq;
            return if redelivered { SequenceCheck::Repeat } else { SequenceCheck::InOrder };
        }
        if redelivered || seq == *last { SequenceCheck::Repeat } else { SequenceCheck::OutOfOrder }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_first_delivery_below_the_last_sequence_is_out_of_order() {
        let mut tracker = SequenceTracker::new(10);
        let mut check = |key: &str, seq, redelivered| tracker.check("/outbox", &key.into(), seq, redelivered);
        assert_eq!(check("a", 5, false), SequenceCheck::InOrder);
        assert_eq!(check("a", 9, false), SequenceCheck::InOrder);
        assert_eq!(check("a", 9, false), SequenceCheck::Repeat);
        assert_eq!(check("a", 7, false), SequenceCheck::OutOfOrder);
        assert_eq!(check("a", 5, true), SequenceCheck::Repeat);
        assert_eq!(check("b", 1, false), SequenceCheck::InOrder);
    }

    #[test]
    fn tracked_keys_are_bounded() {
        let mut tracker = SequenceTracker::new(2);
        for key in ["a", "b", "c", "d"] {
            tracker.check("/outbox", &key.into(), 1, false);
        }
        assert!(tracker.last.len() <= 2);
    }
}
