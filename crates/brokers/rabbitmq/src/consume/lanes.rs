//! The deliveries of a consumer, by lane.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lapin::Channel;
use relevo_core::DeliveryTag;

use super::decode::ReceivedMessage;
use crate::classify::Error;

/// A tag is a unique number times this, plus the lane.
const TAG_STRIDE: u64 = 512;

/// The mutable state of a consumer.
pub(crate) struct LaneTable {
    pub(crate) lanes: Vec<LaneDeliveries>,
    /// An error that needs an operator, for the next receiver.
    pub(crate) fatal_error: Option<Error>,
    pub(crate) closed: bool,
    /// The connection of the lanes.
    pub(crate) connection_number: u64,
    /// The member list of the current assignment, and for each lane the list when it was last released.
    pub(crate) members_hash: u64,
    pub(crate) released_at: Vec<u64>,
    last_tag: u64,
    /// The lane to check first.
    pub(super) next_lane: usize,
}

/// One lane.
#[derive(Default)]
pub(crate) struct LaneDeliveries {
    /// The channel of its deliveries and their acknowledgements. A later channel cannot be used: its delivery tags
    /// start again.
    pub(crate) channel: Option<Channel>,
    pub(crate) paused: bool,
    /// It moves to another consumer, so it delivers nothing new.
    pub(crate) handing_over: bool,
    /// Received messages that were not delivered to a caller, in order.
    pub(super) buffered: VecDeque<u64>,
    /// All messages that are unacknowledged at the broker, in the order of arrival.
    pub(crate) outstanding: BTreeMap<u64, OutstandingDelivery>,
}

/// A delivery until its acknowledgement is recorded.
pub(crate) struct OutstandingDelivery {
    pub(crate) message: ReceivedMessage,
    pub(crate) stage: DeliveryStage,
}

/// The stage of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryStage {
    /// Buffered.
    Buffered,
    /// Delivered to the caller.
    HandedOut,
    /// A call is acknowledging it.
    Acking,
    /// The acknowledgement was sent and is not verified yet.
    AckSent,
}

impl LaneTable {
    pub(crate) fn new(lanes: usize) -> Self {
        let released_at = vec![0; lanes];
        let lanes = (0..lanes).map(|_| LaneDeliveries::default()).collect();
        Self {
            lanes,
            fatal_error: None,
            closed: false,
            connection_number: 0,
            members_hash: 0,
            released_at,
            last_tag: 0,
            next_lane: 0,
        }
    }

    /// Stores a delivery of a lane. Returns its tag.
    pub(crate) fn insert(&mut self, lane: usize, message: ReceivedMessage) -> u64 {
        self.last_tag += 1;
        let tag = self.last_tag * TAG_STRIDE + lane as u64;
        let is_delayed = !message.delay_left.is_zero();
        // A message that must move to another retry queue is not delivered to a caller, but acknowledged like any
        // other.
        let stage = if is_delayed { DeliveryStage::HandedOut } else { DeliveryStage::Buffered };
        let lane = &mut self.lanes[lane];
        lane.outstanding.insert(tag, OutstandingDelivery { message, stage });
        if !is_delayed {
            lane.buffered.push_back(tag);
        }
        tag
    }

    /// The lane and the delivery of a tag that is outstanding, or whose acknowledgement was sent before.
    pub(crate) fn find(&mut self, tag: DeliveryTag) -> Option<(usize, &mut OutstandingDelivery)> {
        let lane = usize::try_from(tag.number() % TAG_STRIDE).ok()?;
        let delivery = self.lanes.get_mut(lane)?.outstanding.get_mut(&tag.number())?;
        matches!(delivery.stage, DeliveryStage::HandedOut | DeliveryStage::AckSent).then_some((lane, delivery))
    }

    /// Resets a lane after its subscription ended: the broker requeues its messages, and their tags become invalid. A
    /// pause stays, because its caller does not know about the reset.
    pub(crate) fn reset_lane(&mut self, lane: usize) {
        let paused = self.lanes[lane].paused;
        self.lanes[lane] = LaneDeliveries { paused, ..LaneDeliveries::default() };
    }
}

impl LaneDeliveries {
    /// The number of buffered messages.
    pub(crate) fn buffered(&self) -> usize {
        self.buffered.len()
    }

    /// Whether the caller still has deliveries of this lane.
    pub(crate) fn is_busy(&self) -> bool {
        self.outstanding.values().any(|delivery| delivery.stage != DeliveryStage::Buffered)
    }

    /// Marks these deliveries as acknowledged. Returns the frames to send: the delivery tag, and the `multiple` flag.
    ///
    /// One frame can acknowledge all deliveries from the oldest on, if none in between is unacknowledged. The frames
    /// must be queued before another call: a tag that is acknowledged twice closes the channel.
    pub(crate) fn mark_acks_sent(&mut self, tags: &BTreeSet<u64>) -> Vec<(u64, bool)> {
        let mut frames = Vec::new();
        for (tag, delivery) in &mut self.outstanding {
            match delivery.stage {
                DeliveryStage::Acking if tags.contains(tag) => {
                    delivery.stage = DeliveryStage::AckSent;
                    frames = vec![(delivery.message.delivery_tag, true)];
                }
                DeliveryStage::AckSent => {}
                DeliveryStage::Buffered | DeliveryStage::HandedOut | DeliveryStage::Acking => break,
            }
        }
        for tag in tags {
            if let Some(delivery) =
                self.outstanding.get_mut(tag).filter(|delivery| delivery.stage == DeliveryStage::Acking)
            {
                delivery.stage = DeliveryStage::AckSent;
                frames.push((delivery.message.delivery_tag, false));
            }
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use relevo_core::Lane;

    use super::*;

    fn received_message(number: u64) -> ReceivedMessage {
        ReceivedMessage {
            delivery_tag: number,
            properties: lapin::BasicProperties::default(),
            payload: Bytes::new(),
            address: "a".into(),
            redelivered: false,
            retries: 0,
            delay_left: Duration::ZERO,
        }
    }

    /// A lane with `count` outstanding deliveries, their tags, and some of them being acknowledged.
    fn lane(count: u64, acking: &[usize]) -> (LaneTable, Vec<u64>) {
        let mut table = LaneTable::new(3);
        let tags: Vec<u64> = (1..=count).map(|number| table.insert(2, received_message(number))).collect();
        let names = ["0", "1", "2"].map(Lane::new);
        assert_eq!(table.take_ready(1_000, &names).len() as u64, count);
        for index in acking {
            table.find(DeliveryTag::new(tags[*index])).expect("it is outstanding").1.stage = DeliveryStage::Acking;
        }
        (table, tags)
    }

    fn ack_frames(count: u64, acking: &[usize]) -> Vec<(u64, bool)> {
        let (mut table, tags) = lane(count, acking);
        table.lanes[2].mark_acks_sent(&acking.iter().map(|index| tags[*index]).collect())
    }

    #[test]
    fn acks_from_the_oldest_on_need_one_frame() {
        assert_eq!(ack_frames(4, &[0, 1, 2]), [(3, true)]);
        assert_eq!(ack_frames(4, &[0, 1, 3]), [(2, true), (4, false)]);
        assert_eq!(ack_frames(4, &[1, 2]), [(2, false), (3, false)]);
        assert_eq!(ack_frames(4, &[]), []);
    }

    #[test]
    fn acks_of_another_call_are_not_sent_with_ours() {
        let (mut table, tags) = lane(4, &[0, 1, 2]);
        assert_eq!(table.lanes[2].mark_acks_sent(&BTreeSet::from([tags[0], tags[2]])), [(1, true), (3, false)]);
        assert_eq!(table.lanes[2].mark_acks_sent(&BTreeSet::from([tags[1]])), [(2, true)]);
    }

    #[test]
    fn an_ack_is_sent_once() {
        let (mut table, tags) = lane(2, &[0, 1]);
        let all = BTreeSet::from([tags[0], tags[1]]);
        assert_eq!(table.lanes[2].mark_acks_sent(&all), [(2, true)]);
        assert_eq!(table.lanes[2].mark_acks_sent(&all), []);
        assert!(table.find(DeliveryTag::new(tags[0])).is_some(), "the call may be repeated");
    }

    #[test]
    fn a_lost_lane_invalidates_its_tags() {
        let (mut table, tags) = lane(1, &[]);
        table.reset_lane(2);
        assert!(table.find(DeliveryTag::new(tags[0])).is_none());
        assert!(!tags.contains(&table.insert(2, received_message(1))), "the broker numbers deliveries again from 1");
    }

    #[test]
    fn a_pause_outlives_the_subscription() {
        let mut table = LaneTable::new(1);
        table.lanes[0].paused = true;
        table.reset_lane(0);
        table.insert(0, received_message(1));
        assert!(table.take_ready(10, &[Lane::new("0")]).is_empty());
        table.lanes[0].paused = false;
        assert_eq!(table.take_ready(10, &[Lane::new("0")]).len(), 1);
    }

    #[test]
    fn paused_lanes_and_lanes_being_handed_over_deliver_nothing() {
        let mut table = LaneTable::new(3);
        for lane in 0..3 {
            table.insert(lane, received_message(1));
        }
        table.lanes[0].paused = true;
        table.lanes[1].handing_over = true;
        let names = ["0", "1", "2"].map(Lane::new);
        let deliveries = table.take_ready(10, &names);
        assert_eq!(deliveries.iter().map(|delivery| delivery.lane.name()).collect::<Vec<_>>(), ["2"]);
    }
}
