use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;
use relevo_core::Raw;

use super::super::window::{Arrival, Content, Window};
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

/// A model of the server and the reader of one lane, limited to counting.
#[derive(Default)]
struct Lane {
    count: Count,
    window: Window,
    delivered: u64,
    number: u64,
    taken: BTreeSet<u64>,
}

impl Lane {
    fn take(&mut self, seq: u64) -> Arrival {
        let raw = Raw { headers: Vec::new(), payload: Bytes::new() };
        let content = Content { raw, address: "a".into() };
        let arrival = self.window.take(seq, content, None);
        if arrival == Arrival::New {
            self.taken.insert(seq);
        }
        arrival
    }

    fn catch_up(&mut self, until: u64) {
        for seq in self.window.seen() + 1..=until {
            self.take(seq);
        }
    }

    fn deliver(&mut self, seq: u64, arrives: bool, is_first: bool) -> Result<(), TestCaseError> {
        self.number += 1;
        if !arrives {
            return Ok(());
        }
        match self.count.arrived(self.number, is_first) {
            Gap::None => {}
            Gap::Before => self.catch_up(seq - 1),
            Gap::Delivered => self.catch_up(self.delivered),
        }
        self.take(seq);
        let missed = (1..=self.window.seen()).find(|seq| !self.taken.contains(seq));
        prop_assert_eq!(missed, None, "it would be taken for done");
        Ok(())
    }
}

proptest! {
    /// Whatever is lost and redelivered, no message is skipped. A skipped message would be acknowledged unread.
    #[test]
    fn nothing_that_was_lost_is_passed_over(steps in steps()) {
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
                    lane.count = Count::default();
                }
            }
        }
    }
}

#[test]
fn a_message_that_comes_again_first_hides_no_gap() {
    let mut count = Count::default();
    assert_eq!(count.arrived(1, true), Gap::Before);
    assert_eq!(count.arrived(2, false), Gap::None);
    // The third delivery was lost, and may be a new message.
    assert_eq!(count.arrived(4, false), Gap::Delivered);
    assert_eq!(count.arrived(5, true), Gap::None);
    assert_eq!(count.arrived(7, true), Gap::Before);
}
