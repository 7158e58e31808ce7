use bytes::Bytes;
use proptest::prelude::*;

use super::*;

fn content() -> MessageContent {
    MessageContent { raw: RawMessage { headers: Vec::new(), payload: Bytes::new() }, address: "a".into() }
}

/// A messages with messages 1 to `last`.
fn lane_messages(last: u64) -> LaneMessages {
    let mut messages = LaneMessages::default();
    for seq in 1..=last {
        assert_eq!(messages.insert(seq, content(), Some(format!("reply.{seq}").into())), Arrival::New);
    }
    messages
}

/// Delivers all ready messages, with the sequence as the tag. Returns each with its redelivery mark.
fn hand_out(messages: &mut LaneMessages) -> Vec<(u64, bool)> {
    let change = messages.ready(usize::MAX);
    let sequences = change.handed_out.clone();
    messages.apply(change);
    let hand_out = |seq: u64| (seq, messages.mark_handed_out(seq, DeliveryTag::new(seq)).expect("it is known").1);
    sequences.into_iter().map(hand_out).collect()
}

/// Acknowledges these messages. Returns the stale ones.
fn acknowledge(messages: &mut LaneMessages, seqs: &[u64]) -> Vec<u64> {
    let change = messages.plan_acks(seqs.iter().map(|seq| DeliveryTag::new(*seq)));
    let stale = change.stale.iter().map(|index| seqs[*index]).collect();
    messages.apply(change);
    stale
}

/// The current record.
fn record(messages: &LaneMessages) -> LaneRecord {
    let (handed_out_to, unacknowledged) = messages.record(&LaneChange::default());
    LaneRecord { handed_out_to, unacknowledged, ..LaneRecord::default() }
}

#[test]
fn the_next_owner_redelivers_unacknowledged_messages() {
    let mut first = lane_messages(3);
    assert_eq!(hand_out(&mut first), [(1, false), (2, false), (3, false)]);
    assert_eq!(acknowledge(&mut first, &[3]), [0_u64; 0]);
    let record = record(&first);
    assert_eq!((record.handed_out_to, &record.unacknowledged), (3, &vec![1, 2]));
    let mut next = LaneMessages::new(&record);
    assert_eq!(next.unread(), [1, 2]);
    // The second arrives before the first, and the third was acknowledged.
    assert_eq!(next.insert(2, content(), None), Arrival::Duplicate);
    assert_eq!(next.insert(3, content(), None), Arrival::Acknowledged);
    assert_eq!(hand_out(&mut next), [], "no message overtakes an unread one");
    next.insert(1, content(), None);
    next.insert(4, content(), None);
    assert_eq!(hand_out(&mut next), [(1, true), (2, true), (4, false)]);
}

#[test]
fn an_unseen_message_is_not_in_the_record() {
    let mut messages = lane_messages(3);
    assert_eq!(record(&messages), LaneRecord::default());
    let change = messages.ready(2);
    assert_eq!(messages.record(&change), (2, vec![1, 2]));
    messages.apply(change);
    assert_eq!(record(&messages).unacknowledged, [1, 2]);
}

#[test]
fn a_repeated_acknowledgement_is_stale() {
    let mut messages = lane_messages(2);
    hand_out(&mut messages);
    assert_eq!(acknowledge(&mut messages, &[1, 1, 2]), [1]);
    assert_eq!(acknowledge(&mut messages, &[2]), [2]);
}

#[test]
fn after_an_uncertain_write_the_record_is_adopted() {
    let mut messages = lane_messages(4);
    hand_out(&mut messages);
    // The record was written, but the response was not seen: 3 is acknowledged.
    let change = messages.plan_acks([DeliveryTag::new(3)]);
    let (handed_out_to, unacknowledged) = messages.record(&change);
    let acks = messages.adopt_record(&LaneRecord { handed_out_to, unacknowledged, ..LaneRecord::default() });
    assert_eq!(acks.iter().map(|ack| ack.seq).collect::<Vec<_>>(), [3]);
    assert_eq!(acknowledge(&mut messages, &[3, 4]), [3], "the fourth is still outstanding");
}

#[test]
fn a_message_of_a_lost_call_is_marked_as_redelivered() {
    let mut messages = lane_messages(2);
    let change = messages.ready(1);
    let (handed_out_to, unacknowledged) = messages.record(&change);
    messages.adopt_record(&LaneRecord { handed_out_to, unacknowledged, ..LaneRecord::default() });
    assert_eq!(hand_out(&mut messages), [(1, true), (2, false)]);
}

#[test]
fn messages_delivered_before_the_record_existed_are_redelivered() {
    let first = LaneMessages::new(&LaneRecord { handed_out_to: 1, redelivered_to: 3, ..LaneRecord::default() });
    assert_eq!(first.redelivered_to(), 3);
    // Nothing was delivered before the lane was claimed again.
    let mut messages = LaneMessages::new(&LaneRecord { redelivered_to: first.redelivered_to(), ..record(&first) });
    for seq in 2..=4 {
        messages.insert(seq, content(), None);
    }
    assert_eq!(hand_out(&mut messages), [(2, true), (3, true), (4, false)]);
    assert_eq!(messages.redelivered_to(), 0, "the record lists them now");
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
    acknowledged: BTreeSet<u64>,
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
        let change = self.messages.ready(limit);
        let sequences = change.handed_out.clone();
        prop_assert!(sequences.len() <= limit);
        self.messages.apply(change);
        for seq in sequences {
            prop_assert!(!self.acknowledged.contains(&seq), "{seq} was acknowledged");
            let missing = (1..seq).find(|other| !self.first_deliveries.contains(other));
            prop_assert_eq!(missing, None, "{} appeared too early", seq);
            let (_, redelivered) = self.messages.mark_handed_out(seq, DeliveryTag::new(seq)).expect("it is known");
            prop_assert_eq!(redelivered, !self.first_deliveries.insert(seq));
        }
        Ok(())
    }

    fn acknowledge(&mut self, seq: u64) {
        if acknowledge(&mut self.messages, &[seq]).is_empty() {
            self.acknowledged.insert(seq);
        }
    }

    fn finish(&mut self) -> Result<(), TestCaseError> {
        self.hand_out(usize::MAX)?;
        for seq in 1..=self.published {
            self.acknowledge(seq);
        }
        prop_assert_eq!(self.acknowledged.len() as u64, self.published);
        prop_assert_eq!(record(&self.messages).unacknowledged, [0_u64; 0]);
        Ok(())
    }
}
