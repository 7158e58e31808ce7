//! The deliveries of a consumer, by lane.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lapin::Channel;
use relevo_core::{Delivery, DeliveryTag, Lane};

use super::arrived::Arrived;
use crate::classify::Error;

/// A tag is a unique number times this, plus the lane.
const LANES: u64 = 512;

/// The mutable state of a consumer.
pub(crate) struct State {
    pub(crate) lanes: Vec<LaneState>,
    /// An error that needs an operator, for the next receiver.
    pub(crate) trouble: Option<Error>,
    pub(crate) closed: bool,
    /// The connection of the lanes.
    pub(crate) session: u64,
    /// The member list of the current assignment, and for each lane the list when it was last released.
    pub(crate) view: u64,
    pub(crate) given: Vec<u64>,
    last: u64,
    /// The lane to check first.
    turn: usize,
}

/// One lane.
#[derive(Default)]
pub(crate) struct LaneState {
    /// The channel of its deliveries and their acknowledgements. A later channel cannot be used: its delivery tags
    /// start again.
    pub(crate) channel: Option<Channel>,
    pub(crate) paused: bool,
    /// It moves to another consumer, so it delivers nothing new.
    pub(crate) leaving: bool,
    /// Received messages that were not delivered to a caller, in order.
    waiting: VecDeque<u64>,
    /// All messages that are unacknowledged at the broker, in the order of arrival.
    pub(crate) held: BTreeMap<u64, Held>,
}

/// A delivery until its acknowledgement is recorded.
pub(crate) struct Held {
    pub(crate) arrived: Arrived,
    pub(crate) phase: Phase,
}

/// The stage of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Buffered.
    Waiting,
    /// Delivered to the caller.
    Out,
    /// A call is acknowledging it.
    Settling,
    /// The acknowledgement was sent and is not verified yet.
    Told,
}

impl State {
    pub(crate) fn new(lanes: usize) -> Self {
        let given = vec![0; lanes];
        let lanes = (0..lanes).map(|_| LaneState::default()).collect();
        Self { lanes, trouble: None, closed: false, session: 0, view: 0, given, last: 0, turn: 0 }
    }

    /// Stores a delivery of a lane. Returns its tag.
    pub(crate) fn keep(&mut self, lane: usize, arrived: Arrived) -> u64 {
        self.last += 1;
        let tag = self.last * LANES + lane as u64;
        let climbs = !arrived.pause_left.is_zero();
        // A message that must move to another retry queue is not delivered to a caller, but acknowledged like any
        // other.
        let phase = if climbs { Phase::Out } else { Phase::Waiting };
        let state = &mut self.lanes[lane];
        state.held.insert(tag, Held { arrived, phase });
        if !climbs {
            state.waiting.push_back(tag);
        }
        tag
    }

    /// Delivers at most `limit` buffered messages. Each call starts with a different lane.
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

    /// The lane and the delivery of a tag that is outstanding, or whose acknowledgement was sent before.
    pub(crate) fn find(&mut self, tag: DeliveryTag) -> Option<(usize, &mut Held)> {
        let lane = usize::try_from(tag.number() % LANES).ok()?;
        let held = self.lanes.get_mut(lane)?.held.get_mut(&tag.number())?;
        matches!(held.phase, Phase::Out | Phase::Told).then_some((lane, held))
    }

    /// Resets a lane after its subscription ended: the broker requeues its messages, and their tags become invalid. A
    /// pause stays, because its caller does not know about the reset.
    pub(crate) fn forget(&mut self, lane: usize) {
        let paused = self.lanes[lane].paused;
        self.lanes[lane] = LaneState { paused, ..LaneState::default() };
    }
}

impl LaneState {
    /// The number of buffered messages.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether the caller still has deliveries of this lane.
    pub(crate) fn is_busy(&self) -> bool {
        self.held.values().any(|held| held.phase != Phase::Waiting)
    }

    /// Marks these deliveries as acknowledged. Returns the frames to send: the delivery tag, and the `multiple` flag.
    ///
    /// One frame can acknowledge all deliveries from the oldest on, if none in between is unacknowledged. The frames
    /// must be queued before another call: a tag that is acknowledged twice closes the channel.
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

    /// A lane with `count` outstanding deliveries, their tags, and some of them being acknowledged.
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
