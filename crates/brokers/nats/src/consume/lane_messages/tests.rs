use bytes::Bytes;
use proptest::prelude::*;

use super::*;

fn content() -> MessageContent {
    MessageContent { raw: RawMessage { headers: Vec::new(), payload: Bytes::new() }, address: "a".into() }
}

/// A window with messages 1 to `last`.
fn lane_messages(last: u64) -> LaneMessages {
    let mut window = LaneMessages::default();
    for seq in 1..=last {
        assert_eq!(window.insert(seq, content(), Some(format!("reply.{seq}").into())), Arrival::New);
    }
    window
}

/// Delivers all ready messages, with the sequence as the tag. Returns each with its redelivery mark.
fn hand_out(window: &mut LaneMessages) -> Vec<(u64, bool)> {
    let plan = window.ready(usize::MAX);
    let handed = plan.handed_out.clone();
    window.apply(plan);
    let hand_out = |seq: u64| (seq, window.mark_handed_out(seq, DeliveryTag::new(seq)).expect("it is here").1);
    handed.into_iter().map(hand_out).collect()
}

/// Acknowledges these messages. Returns the stale ones.
fn acknowledge(window: &mut LaneMessages, seqs: &[u64]) -> Vec<u64> {
    let plan = window.plan_acks(seqs.iter().map(|seq| DeliveryTag::new(*seq)));
    let stale = plan.stale.iter().map(|place| seqs[*place]).collect();
    window.apply(plan);
    stale
}

/// The current record.
fn record(window: &LaneMessages) -> LaneRecord {
    let (high, open) = window.record(&LaneChange::default());
    LaneRecord { high, open, ..LaneRecord::default() }
}

#[test]
fn the_next_owner_hands_out_again_what_is_not_acknowledged() {
    let mut first = lane_messages(3);
    assert_eq!(hand_out(&mut first), [(1, false), (2, false), (3, false)]);
    assert_eq!(acknowledge(&mut first, &[3]), [0_u64; 0]);
    let record = record(&first);
    assert_eq!((record.high, &record.open), (3, &vec![1, 2]));
    let mut next = LaneMessages::new(&record);
    assert_eq!(next.unread(), [1, 2]);
    // The second arrives before the first, and the third was acknowledged.
    assert_eq!(next.insert(2, content(), None), Arrival::Duplicate);
    assert_eq!(next.insert(3, content(), None), Arrival::Done);
    assert_eq!(hand_out(&mut next), [], "nothing passes what is not read yet");
    next.insert(1, content(), None);
    next.insert(4, content(), None);
    assert_eq!(hand_out(&mut next), [(1, true), (2, true), (4, false)]);
}

#[test]
fn an_unseen_message_is_not_in_the_record() {
    let mut window = lane_messages(3);
    assert_eq!(record(&window), LaneRecord::default());
    let plan = window.ready(2);
    assert_eq!(window.record(&plan), (2, vec![1, 2]));
    window.apply(plan);
    assert_eq!(record(&window).open, [1, 2]);
}

#[test]
fn an_acknowledgement_that_is_repeated_is_stale() {
    let mut window = lane_messages(2);
    hand_out(&mut window);
    assert_eq!(acknowledge(&mut window, &[1, 1, 2]), [1]);
    assert_eq!(acknowledge(&mut window, &[2]), [2]);
}

#[test]
fn after_an_uncertain_write_the_record_is_adopted() {
    let mut doubtful = lane_messages(4);
    hand_out(&mut doubtful);
    // The record was written, but the response was not seen: 3 is acknowledged.
    let plan = doubtful.plan_acks([DeliveryTag::new(3)]);
    let (high, open) = doubtful.record(&plan);
    let words = doubtful.adopt_record(&LaneRecord { high, open, ..LaneRecord::default() });
    assert_eq!(words.iter().map(|word| word.seq).collect::<Vec<_>>(), [3]);
    assert_eq!(acknowledge(&mut doubtful, &[3, 4]), [3], "the fourth is still out");
}

#[test]
fn what_a_lost_call_may_have_handed_out_is_a_repeat() {
    let mut doubtful = lane_messages(2);
    let plan = doubtful.ready(1);
    let (high, open) = doubtful.record(&plan);
    doubtful.adopt_record(&LaneRecord { high, open, ..LaneRecord::default() });
    assert_eq!(hand_out(&mut doubtful), [(1, true), (2, false)]);
}

/// One step of the lane model.
#[derive(Clone, Debug)]
enum Step {
    Arrive,
    HandOut(usize),
    Acknowledge(u64),
    NewOwner,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Arrive),
        3 => (1..4_usize).prop_map(Step::HandOut),
        4 => (1..40_u64).prop_map(Step::Acknowledge),
        1 => Just(Step::NewOwner),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    /// In every history, first deliveries are in order, redeliveries are marked, and no acknowledged message is
    /// delivered again. In the end every message is acknowledged.
    #[test]
    fn every_key_stays_in_order(steps in steps()) {
        let mut lane = Model::default();
        for step in steps {
            lane.step(&step)?;
        }
        lane.finish()?;
    }
}

#[derive(Default)]
struct Model {
    messages: LaneMessages,
    published: u64,
    first_deliveries: BTreeSet<u64>,
    done: BTreeSet<u64>,
}

impl Model {
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Arrive => {
                self.published += 1;
                self.messages.insert(self.published, content(), None);
            }
            Step::HandOut(limit) => self.hand_out(*limit)?,
            Step::Acknowledge(seq) => self.acknowledge(*seq),
            Step::NewOwner => {
                self.messages = LaneMessages::new(&record(&self.messages));
                for seq in self.messages.unread() {
                    self.messages.insert(seq, content(), None);
                }
                // Messages that were delivered but never recorded are read from the stream.
                for seq in self.messages.seen_to() + 1..=self.published {
                    self.messages.insert(seq, content(), None);
                }
            }
        }
        Ok(())
    }

    fn hand_out(&mut self, limit: usize) -> Result<(), TestCaseError> {
        let plan = self.messages.ready(limit);
        let handed = plan.handed_out.clone();
        prop_assert!(handed.len() <= limit);
        self.messages.apply(plan);
        for seq in handed {
            prop_assert!(!self.done.contains(&seq), "{seq} was acknowledged");
            let missing = (1..seq).find(|other| !self.first_deliveries.contains(other));
            prop_assert_eq!(missing, None, "{} appeared too early", seq);
            let (_, redelivered) = self.messages.mark_handed_out(seq, DeliveryTag::new(seq)).expect("it is here");
            prop_assert_eq!(redelivered, !self.first_deliveries.insert(seq));
        }
        Ok(())
    }

    fn acknowledge(&mut self, seq: u64) {
        if acknowledge(&mut self.messages, &[seq]).is_empty() {
            self.done.insert(seq);
        }
    }

    fn finish(&mut self) -> Result<(), TestCaseError> {
        self.hand_out(usize::MAX)?;
        for seq in 1..=self.published {
            self.acknowledge(seq);
        }
        prop_assert_eq!(self.done.len() as u64, self.published);
        prop_assert_eq!(record(&self.messages).open, [0_u64; 0]);
        Ok(())
    }
}
