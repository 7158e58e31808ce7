use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;
use relevo_core::RawMessage;

use super::super::lane_messages::{Arrival, LaneMessages, MessageContent};
use super::*;

/// An action of the server or the reader.
#[derive(Clone, Debug)]
enum Step {
    /// The server delivers the next new message.
    New { arrives: bool },
    /// The server redelivers an old one.
    Again { seq: u64, arrives: bool },
    /// The reader starts a new session.
    Session,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<bool>().prop_map(|arrives| Step::New { arrives }),
        4 => (1..20_u64, any::<bool>()).prop_map(|(seq, arrives)| Step::Again { seq, arrives }),
        1 => Just(Step::Session),
    ];
    prop::collection::vec(step, 0..60)
}

/// A model of the server and the reader of one lane, reduced to delivery numbers.
#[derive(Default)]
struct Lane {
    counter: DeliveryCounter,
    messages: LaneMessages,
    delivered: u64,
    consumer_sequence: u64,
    received: BTreeSet<u64>,
}

impl Lane {
    fn receive(&mut self, seq: u64) -> Arrival {
        let raw = RawMessage { headers: Vec::new(), payload: Bytes::new() };
        let content = MessageContent { raw, address: "a".into() };
        let arrival = self.messages.insert(seq, content, None);
        if arrival == Arrival::New {
            self.received.insert(seq);
        }
        arrival
    }

    fn catch_up(&mut self, until: u64) {
        for seq in self.messages.seen_to() + 1..=until {
            self.receive(seq);
        }
    }

    fn deliver(&mut self, seq: u64, arrives: bool, is_first: bool) -> Result<(), TestCaseError> {
        self.consumer_sequence += 1;
        if !arrives {
            return Ok(());
        }
        match self.counter.record(self.consumer_sequence, is_first) {
            Gap::None => {}
            Gap::Before => self.catch_up(seq - 1),
            Gap::Delivered => self.catch_up(self.delivered),
        }
        self.receive(seq);
        let missed = (1..=self.messages.seen_to()).find(|seq| !self.received.contains(seq));
        prop_assert_eq!(missed, None, "it would counter as acknowledged");
        Ok(())
    }
}

proptest! {
    /// Whatever is lost and redelivered, no message is skipped. A skipped message would be acknowledged unread.
    #[test]
    fn lost_messages_are_never_skipped(steps in steps()) {
        let mut lane = Lane::default();
        for step in steps {
            match step {
                Step::New { arrives } => {
                    lane.delivered += 1;
                    lane.deliver(lane.delivered, arrives, true)?;
                }
                Step::Again { seq, arrives } if seq <= lane.delivered => lane.deliver(seq, arrives, false)?,
                Step::Again { .. } => {}
                Step::Session => {
                    lane.catch_up(lane.delivered);
                    lane.counter = DeliveryCounter::default();
                }
            }
        }
    }
}

#[test]
fn a_redelivery_before_a_gap_does_not_hide_it() {
    let mut counter = DeliveryCounter::default();
    assert_eq!(counter.record(1, true), Gap::Before);
    assert_eq!(counter.record(2, false), Gap::None);
    // The third delivery was lost, and may be a new message.
    assert_eq!(counter.record(4, false), Gap::Delivered);
    assert_eq!(counter.record(5, true), Gap::None);
    assert_eq!(counter.record(7, true), Gap::Before);
}
