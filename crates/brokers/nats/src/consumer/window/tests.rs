use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

fn content(key: &str) -> Content {
    Content {
        raw: Raw { headers: Vec::new(), payload: Bytes::new() },
        address: "a".into(),
        subject: "a.0".into(),
        key: (!key.is_empty()).then(|| key.into()),
    }
}

/// Messages 1, 2 … of these keys.
fn window(keys: &[&str]) -> Window {
    let mut window = Window::default();
    for (seq, key) in (1..).zip(keys) {
        assert_eq!(window.take(seq, content(key), Some(format!("reply.{seq}").into())), Arrival::New);
    }
    window
}

/// Hands out what can be; the tag of each message is its number.
fn hand_out(window: &mut Window, now_ms: i64) -> Vec<u64> {
    let (plan, _) = window.ready(usize::MAX, now_ms);
    let handed = plan.handed.clone();
    window.carry_out(plan);
    for seq in &handed {
        window.hand_out(*seq, Tag::new(*seq)).expect("it is here");
    }
    handed
}

fn answer(window: &mut Window, answers: &[(u64, Answer)], now_ms: i64) -> Vec<u64> {
    let plan = window.plan(answers.iter().map(|(seq, answer)| (Tag::new(*seq), answer)), now_ms);
    let lost = plan.lost.iter().map(|place| answers[*place].0).collect();
    window.carry_out(plan);
    lost
}

fn later() -> Answer {
    Answer::RetryLater { after: Duration::from_millis(100) }
}

/// What the record would say now.
fn record(window: &Window) -> Record {
    let (high, open) = window.record(&Plan::default(), usize::MAX);
    Record { high, open, ..Record::default() }
}

#[test]
fn a_retried_message_holds_its_key_until_it_is_done() {
    let mut window = window(&["a", "b", "a", ""]);
    assert_eq!(hand_out(&mut window, 0), [1, 2, 3, 4]);
    assert_eq!(answer(&mut window, &[(1, later()), (3, Answer::Acknowledge)], 0), [3], "taken back");
    assert_eq!(hand_out(&mut window, 99), [0_u64; 0]);
    assert_eq!(hand_out(&mut window, 100), [1]);
    assert_eq!(hand_out(&mut window, 100), [0_u64; 0], "it is out, and the other waits");
    assert_eq!(answer(&mut window, &[(1, Answer::Acknowledge)], 100), [0_u64; 0]);
    assert_eq!(hand_out(&mut window, 100), [3]);
}

#[test]
fn a_retried_message_holds_its_key_at_the_next_owner() {
    let mut first = window(&["a", "a", "b"]);
    hand_out(&mut first, 0);
    answer(&mut first, &[(1, later()), (3, Answer::Acknowledge)], 0);
    let record = record(&first);
    assert_eq!(
        record.open.iter().map(|open| (open.seq, open.count, open.retries, open.due_ms)).collect::<Vec<_>>(),
        [(1, 1, 1, Some(100)), (2, 1, 0, None)]
    );
    let mut next = Window::new(&record);
    assert_eq!(next.unread(), [1, 2]);
    // The second is there before the first, and the third was done with.
    assert_eq!(next.take(2, content("a"), None), Arrival::Known);
    assert_eq!(next.take(3, content("b"), None), Arrival::Done);
    assert_eq!(hand_out(&mut next, 500), [0_u64; 0], "nothing passes what is not read yet");
    next.take(1, content("a"), None);
    assert_eq!(hand_out(&mut next, 99), [0_u64; 0]);
    assert_eq!(hand_out(&mut next, 100), [1]);
    // The server takes it back, and the one after that hands it out again: nobody asked for that.
    let mut third = Window::new(&self::record(&next));
    third.take(1, content("a"), None);
    third.take(2, content("a"), None);
    assert_eq!(hand_out(&mut third, 100), [1]);
    assert_eq!(third.hand_out(1, Tag::new(9)).map(|(_, count, retries)| (count, retries)), Some((3, 1)));
}

#[test]
fn what_was_never_handed_out_has_no_place_in_the_record() {
    let mut window = window(&["a", "b", "c"]);
    assert_eq!(record(&window), Record::default());
    let (plan, _) = window.ready(2, 0);
    assert_eq!(window.record(&plan, usize::MAX).0, 2);
    window.carry_out(plan);
    assert_eq!(record(&window).open.iter().map(|open| open.count).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn a_rejected_message_lets_its_key_go_on_and_stays_until_it_is_buried() {
    let mut window = window(&["a", "a"]);
    hand_out(&mut window, 0);
    let reject = Answer::Reject { reason: "ñ".repeat(1_000) };
    answer(&mut window, &[(1, reject)], 0);
    assert_eq!(window.dead().iter().map(|(seq, reason, ..)| (*seq, reason.len())).collect::<Vec<_>>(), [(1, 1_024)]);
    assert_eq!(record(&window).open[0].reason.as_ref().map(String::len), Some(1_024));
    assert_eq!(answer(&mut window, &[(2, Answer::Acknowledge)], 0), [0_u64; 0]);
    let words = window.carry_out(Plan::done(&[1]));
    assert_eq!(words, [Word { seq: 1, reply: Some("reply.1".into()), kind: Kind::Dead }]);
    assert_eq!(record(&window).open, []);
}

#[test]
fn reasons_in_the_record_share_their_room() {
    let mut window = window(&["a", "b", "c"]);
    hand_out(&mut window, 0);
    let reject = |seq| (seq, Answer::Reject { reason: "no\n".to_owned() });
    answer(&mut window, &[reject(1), reject(2), reject(3)], 0);
    let (_, open) = window.record(&Plan::default(), 6);
    let reasons: Vec<_> = open.iter().map(|open| open.reason.as_deref()).collect();
    assert_eq!(reasons, [Some("no\n"), Some("no"), Some("")], "each is still a dead one");
    assert!(window.dead().iter().all(|(_, reason, ..)| reason == "no\n"), "the letters have them whole");
}

#[test]
fn after_a_doubt_the_record_is_believed() {
    let mut doubtful = window(&["a", "a", "b", "c"]);
    hand_out(&mut doubtful, 0);
    // Written, but the answer was not seen: 3 is acknowledged, 1 is to be retried.
    let answers = [(Tag::new(3), Answer::Acknowledge), (Tag::new(1), later())];
    let plan = doubtful.plan(answers.iter().map(|(tag, answer)| (*tag, answer)), 0);
    let (high, open) = doubtful.record(&plan, usize::MAX);
    let words = doubtful.believe(&Record { high, open, ..Record::default() });
    assert_eq!(words.iter().map(|word| word.seq).collect::<Vec<_>>(), [3]);
    assert_eq!(answer(&mut doubtful, &[(3, Answer::Acknowledge), (2, Answer::Acknowledge)], 0), [3, 2]);
    assert_eq!(answer(&mut doubtful, &[(4, Answer::Acknowledge)], 0), [0_u64; 0], "that one is still out");
    assert_eq!(hand_out(&mut doubtful, 100), [1]);
    assert_eq!(doubtful.hand_out(1, Tag::new(9)).map(|(_, _, retries)| retries), Some(1), "it is counted once");
}

/// One step of a lane's life.
#[derive(Clone, Debug)]
enum Step {
    Arrive(u8),
    HandOut(usize),
    Answer(u64, u8),
    Pass(u8),
    NewOwner,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..3_u8).prop_map(Step::Arrive),
        3 => (1..4_usize).prop_map(Step::HandOut),
        4 => (1..40_u64, 0..4_u8).prop_map(|(seq, kind)| Step::Answer(seq, kind)),
        1 => (0..120_u8).prop_map(Step::Pass),
        1 => Just(Step::NewOwner),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    /// Whatever happens, first appearances of a key are in order, nothing is handed out past a message of its key that is
    /// retried, nothing that is done comes again, and in the end everything is done.
    #[test]
    fn order_holds_whatever_happens(steps in steps()) {
        let mut lane = Model::default();
        for step in steps {
            lane.step(&step)?;
        }
        lane.finish()?;
    }
}

#[derive(Default)]
struct Model {
    window: Window,
    keys: Vec<u8>,
    now_ms: i64,
    appeared: BTreeSet<u64>,
    done: BTreeSet<u64>,
    retried: BTreeSet<u64>,
}

impl Model {
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Arrive(key) => {
                self.keys.push(*key);
                self.window.take(self.keys.len() as u64, content(&key.to_string()), None);
            }
            Step::HandOut(limit) => self.hand_out(*limit)?,
            Step::Answer(seq, kind) => self.answer(*seq, *kind),
            Step::Pass(ms) => self.now_ms += i64::from(*ms),
            Step::NewOwner => {
                self.window = Window::new(&record(&self.window));
                for seq in self.window.unread() {
                    self.window.take(seq, content(&self.key(seq).to_string()), None);
                }
                // What was delivered and never recorded is read from the stream.
                for seq in self.window.seen() + 1..=self.keys.len() as u64 {
                    self.window.take(seq, content(&self.key(seq).to_string()), None);
                }
            }
        }
        Ok(())
    }

    fn key(&self, seq: u64) -> u8 {
        self.keys[usize::try_from(seq).expect("small") - 1]
    }

    fn hand_out(&mut self, limit: usize) -> Result<(), TestCaseError> {
        let (plan, _) = self.window.ready(limit, self.now_ms);
        let handed = plan.handed.clone();
        prop_assert!(handed.len() <= limit);
        self.window.carry_out(plan);
        for seq in handed {
            prop_assert!(!self.done.contains(&seq), "{seq} was done with");
            let before = |other: &u64| *other < seq && self.key(*other) == self.key(seq);
            let waits = self.retried.iter().find(|other| before(other) && !self.done.contains(other));
            prop_assert_eq!(waits, None, "{} came before what its key waits for", seq);
            let missing = (1..seq).find(|other| before(other) && !self.appeared.contains(other));
            prop_assert_eq!(missing, None, "{} appeared too early", seq);
            self.appeared.insert(seq);
            self.window.hand_out(seq, Tag::new(seq));
        }
        Ok(())
    }

    fn answer(&mut self, seq: u64, kind: u8) {
        let answer = match kind {
            0 | 1 => Answer::Acknowledge,
            2 => Answer::Reject { reason: "no".to_owned() },
            _ => Answer::RetryLater { after: Duration::from_millis(50) },
        };
        if answer_one(&mut self.window, seq, &answer, self.now_ms) {
            match answer {
                Answer::Acknowledge => drop(self.done.insert(seq)),
                Answer::Reject { .. } => {
                    self.window.carry_out(Plan::done(&[seq]));
                    self.done.insert(seq);
                }
                Answer::RetryLater { .. } => drop(self.retried.insert(seq)),
            }
        }
    }

    fn finish(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..=self.keys.len() {
            self.now_ms += 1_000;
            self.hand_out(usize::MAX)?;
            for seq in 1..=self.keys.len() as u64 {
                self.answer(seq, 0);
            }
        }
        prop_assert_eq!(self.done.len(), self.keys.len());
        prop_assert_eq!(record(&self.window).open, []);
        Ok(())
    }
}

/// Whether the answer was taken.
fn answer_one(window: &mut Window, seq: u64, reply: &Answer, now_ms: i64) -> bool {
    answer(window, &[(seq, reply.clone())], now_ms).is_empty()
}
