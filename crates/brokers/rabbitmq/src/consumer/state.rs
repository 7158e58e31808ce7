//! What a consumer has in its hands, lane by lane.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lapin::Channel;
use relevo_core::{Delivery, DeliveryTag, Lane};

use super::arrived::Arrived;
use crate::classify::Error;

/// A tag is a number that never comes twice, times this, plus the lane.
const LANES: u64 = 512;

/// Everything that changes while a consumer works.
pub(crate) struct State {
    pub(crate) lanes: Vec<LaneState>,
    /// What the next receiver must be told: it does not pass by itself.
    pub(crate) trouble: Option<Error>,
    pub(crate) closed: bool,
    /// Which connection the lanes are on.
    pub(crate) session: u64,
    /// By which list of members lanes are shared, and by which each was given up last.
    pub(crate) view: u64,
    pub(crate) given: Vec<u64>,
    last: u64,
    /// Which lane is looked at first.
    turn: usize,
}

/// One lane.
#[derive(Default)]
pub(crate) struct LaneState {
    /// What its deliveries came through and their acknowledgements go through; never a later one, whose numbers begin anew.
    pub(crate) channel: Option<Channel>,
    pub(crate) paused: bool,
    /// It is on its way to another consumer: nothing more is handed out.
    pub(crate) leaving: bool,
    /// What arrived and was not handed out, in order.
    waiting: VecDeque<u64>,
    /// All that the broker believes to be here, in the order in which it arrived.
    pub(crate) held: BTreeMap<u64, Held>,
}

/// A delivery until its acknowledgement is recorded.
pub(crate) struct Held {
    pub(crate) arrived: Arrived,
    pub(crate) phase: Phase,
}

/// How far a delivery is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not handed out.
    Waiting,
    /// With the caller.
    Out,
    /// A call acknowledges it.
    Settling,
    /// The broker was told, and has not shown that it knows.
    Told,
}

impl State {
    pub(crate) fn new(lanes: usize) -> Self {
        let given = vec![0; lanes];
        let lanes = (0..lanes).map(|_| LaneState::default()).collect();
        Self { lanes, trouble: None, closed: false, session: 0, view: 0, given, last: 0, turn: 0 }
    }

    /// Keeps what came through a lane; its tag.
    pub(crate) fn keep(&mut self, lane: usize, arrived: Arrived) -> u64 {
        self.last += 1;
        let tag = self.last * LANES + lane as u64;
        let climbs = !arrived.pause_left.is_zero();
        // What must climb again is nobody's to see; it is settled like anything else.
        let phase = if climbs { Phase::Out } else { Phase::Waiting };
        let state = &mut self.lanes[lane];
        state.held.insert(tag, Held { arrived, phase });
        if !climbs {
            state.waiting.push_back(tag);
        }
        tag
    }

    /// Hands out what waits, at most so many; another lane is the first each time.
    pub(crate) fn hand_out(&mut self, limit: usize, names: &[Lane]) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        let count = self.lanes.len();
        for index in (0..count).map(|step| (self.turn + step) % count) {
            let lane = &mut self.lanes[index];
            while deliveries.len() < limit
                && !lane.paused
                && !lane.leaving
                && let Some(tag) = lane.waiting.pop_front()
            {
                let held = lane.held.get_mut(&tag).expect("what waits is held");
                held.phase = Phase::Out;
                deliveries.push(Delivery {
                    tag: DeliveryTag::new(tag),
                    raw: held.arrived.raw(),
                    address: held.arrived.address.clone(),
                    lane: names[index].clone(),
                    place: None,
                    redelivered: held.arrived.redelivered,
                    retries: held.arrived.retries,
                });
            }
        }
        self.turn = (self.turn + 1) % count;
        deliveries
    }

    /// A delivery that is out, or whose answer was sent before, and its lane.
    pub(crate) fn find(&mut self, tag: DeliveryTag) -> Option<(usize, &mut Held)> {
        let lane = usize::try_from(tag.number() % LANES).ok()?;
        let held = self.lanes.get_mut(lane)?.held.get_mut(&tag.number())?;
        matches!(held.phase, Phase::Out | Phase::Told).then_some((lane, held))
    }

    /// The subscription is gone: what was here is the broker's again, and the tags mean nothing any more. A pause stays, for
    /// whoever asked for it learns nothing of this.
    pub(crate) fn forget(&mut self, lane: usize) {
        let paused = self.lanes[lane].paused;
        self.lanes[lane] = LaneState { paused, ..LaneState::default() };
    }
}

impl LaneState {
    /// How many arrived and were not handed out.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether the caller still has something of it.
    pub(crate) fn is_busy(&self) -> bool {
        self.held.values().any(|held| held.phase != Phase::Waiting)
    }

    /// Marks these as told; the frames that tell it: the broker's number, and whether all before it are meant.
    ///
    /// One frame may speak for everything from the oldest on, as long as nothing in between is unanswered. The frames must
    /// be queued before anybody else can ask: a number that was told twice ends the channel.
    pub(crate) fn tell(&mut self, tags: &BTreeSet<u64>) -> Vec<(u64, bool)> {
        let mut frames = Vec::new();
        for (tag, held) in &mut self.held {
            match held.phase {
                Phase::Settling if tags.contains(tag) => {
                    held.phase = Phase::Told;
                    frames = vec![(held.arrived.number, true)];
                }
                Phase::Told => {}
                Phase::Waiting | Phase::Out | Phase::Settling => break,
            }
        }
        for tag in tags {
            if let Some(held) = self.held.get_mut(tag).filter(|held| held.phase == Phase::Settling) {
                held.phase = Phase::Told;
                frames.push((held.arrived.number, false));
            }
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;

    fn arrived(number: u64) -> Arrived {
        Arrived {
            number,
            properties: lapin::BasicProperties::default(),
            payload: Bytes::new(),
            address: "a".into(),
            redelivered: false,
            retries: 0,
            pause_left: Duration::ZERO,
        }
    }

    /// A lane with so many out, their tags, and these of them being settled.
    fn lane(count: u64, settling: &[usize]) -> (State, Vec<u64>) {
        let mut state = State::new(3);
        let tags: Vec<u64> = (1..=count).map(|number| state.keep(2, arrived(number))).collect();
        let names = ["0", "1", "2"].map(Lane::new);
        assert_eq!(state.hand_out(1_000, &names).len() as u64, count);
        for index in settling {
            state.find(DeliveryTag::new(tags[*index])).expect("it is out").1.phase = Phase::Settling;
        }
        (state, tags)
    }

    fn told(count: u64, settling: &[usize]) -> Vec<(u64, bool)> {
        let (mut state, tags) = lane(count, settling);
        state.lanes[2].tell(&settling.iter().map(|index| tags[*index]).collect())
    }

    #[test]
    fn answers_from_the_oldest_on_need_one_frame() {
        assert_eq!(told(4, &[0, 1, 2]), [(3, true)]);
        assert_eq!(told(4, &[0, 1, 3]), [(2, true), (4, false)]);
        assert_eq!(told(4, &[1, 2]), [(2, false), (3, false)]);
        assert_eq!(told(4, &[]), []);
    }

    #[test]
    fn another_calls_answers_are_not_told_with_ours() {
        let (mut state, tags) = lane(4, &[0, 1, 2]);
        assert_eq!(state.lanes[2].tell(&BTreeSet::from([tags[0], tags[2]])), [(1, true), (3, false)]);
        assert_eq!(state.lanes[2].tell(&BTreeSet::from([tags[1]])), [(2, true)]);
    }

    #[test]
    fn what_was_told_before_is_not_told_again() {
        let (mut state, tags) = lane(2, &[0, 1]);
        let all = BTreeSet::from([tags[0], tags[1]]);
        assert_eq!(state.lanes[2].tell(&all), [(2, true)]);
        assert_eq!(state.lanes[2].tell(&all), []);
        assert!(state.find(DeliveryTag::new(tags[0])).is_some(), "the call may be made again");
    }

    #[test]
    fn a_lane_that_is_gone_takes_its_tags_along() {
        let (mut state, tags) = lane(1, &[]);
        state.forget(2);
        assert!(state.find(DeliveryTag::new(tags[0])).is_none());
        assert!(!tags.contains(&state.keep(2, arrived(1))), "numbers of the broker begin anew, tags do not");
    }

    #[test]
    fn a_pause_outlives_the_subscription() {
        let mut state = State::new(1);
        state.lanes[0].paused = true;
        state.forget(0);
        state.keep(0, arrived(1));
        assert!(state.hand_out(10, &[Lane::new("0")]).is_empty());
        state.lanes[0].paused = false;
        assert_eq!(state.hand_out(10, &[Lane::new("0")]).len(), 1);
    }

    #[test]
    fn a_pause_and_a_lane_that_leaves_hold_back_and_others_flow() {
        let mut state = State::new(3);
        for lane in 0..3 {
            state.keep(lane, arrived(1));
        }
        state.lanes[0].paused = true;
        state.lanes[1].leaving = true;
        let names = ["0", "1", "2"].map(Lane::new);
        let out = state.hand_out(10, &names);
        assert_eq!(out.iter().map(|one| one.lane.name()).collect::<Vec<_>>(), ["2"]);
    }
}
