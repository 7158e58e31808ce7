//! The state of a group: lanes, connections, outstanding deliveries and acknowledgements.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::inbox::DedupId;
use relevo_core::{DeliveryTag, RawMessage};
use tokio::time::Instant;

use crate::history::MessageName;

/// The maximum number of acknowledgements that a crash loses.
const LOST_ACKS_MAX: usize = 5;

#[derive(Default)]
pub(super) struct GroupState {
    pub(super) lanes: Vec<LaneState>,
    pub(super) connections: BTreeMap<u64, ConnectionState>,
    pub(super) outstanding: BTreeMap<DeliveryTag, Outstanding>,
    /// Acknowledged messages, the newest last. A crash may lose some.
    pub(super) acknowledged: Vec<(usize, StoredMessage)>,
    /// The offsets of the acknowledged messages.
    pub(super) settled: BTreeSet<u64>,
    pub(super) next: u64,
}

#[derive(Default)]
pub(super) struct LaneState {
    pub(super) owner: Option<u64>,
    pub(super) waiting: BTreeMap<u64, StoredMessage>,
}

#[derive(Default)]
pub(super) struct ConnectionState {
    pub(super) present: bool,
    pub(super) closed: bool,
    pub(super) paused: BTreeSet<usize>,
    /// How often the connection broke.
    pub(super) cuts: u64,
    /// The number of the last pause or resume call.
    pub(super) last_control: u64,
}

pub(super) struct Outstanding {
    pub(super) to: u64,
    pub(super) lane: usize,
    pub(super) message: StoredMessage,
}

#[derive(Clone)]
pub(super) struct StoredMessage {
    pub(super) offset: u64,
    pub(super) name: MessageName,
    pub(super) id: DedupId,
    pub(super) raw: RawMessage,
    pub(super) count: u32,
    pub(super) retry_count: u32,
    pub(super) due_at: Instant,
}

impl GroupState {
    pub(super) fn present(&self) -> impl Iterator<Item = u64> {
        self.connections.iter().filter(|(_, connected)| connected.present).map(|(number, _)| *number)
    }

    /// Assigns each lane to one of the connected consumers.
    pub(super) fn assign_lanes(&mut self, shared: bool) {
        let present: Vec<u64> = self.present().collect();
        for number in 0..self.lanes.len() {
            let owner = (!shared && !present.is_empty()).then(|| present[number % present.len()]);
            if self.lanes[number].owner != owner {
                self.redeliver_lane(number);
                self.lanes[number].owner = owner;
            }
        }
    }

    /// Returns the outstanding messages of a lane, so that they are delivered again in order.
    pub(super) fn redeliver_lane(&mut self, lane: usize) {
        self.redeliver_where(|outstanding| outstanding.lane == lane);
    }

    pub(super) fn cut(&mut self, connection: u64) {
        if let Some(connected) = self.connections.get_mut(&connection) {
            connected.cuts += 1;
            connected.paused.clear();
        }
        self.redeliver_where(|outstanding| outstanding.to == connection);
    }

    pub(super) fn redeliver_where(&mut self, matches: impl Fn(&Outstanding) -> bool) {
        let tags: Vec<DeliveryTag> =
            self.outstanding.iter().filter(|(_, outstanding)| matches(outstanding)).map(|(tag, _)| *tag).collect();
        for tag in tags {
            let Some(Outstanding { lane, message, .. }) = self.outstanding.remove(&tag) else { continue };
            if !self.settled.contains(&message.offset) {
                self.lanes[lane].waiting.entry(message.offset).or_insert(message);
            }
        }
    }

    /// Delivers the outstanding messages of a lane to another consumer as well.
    pub(super) fn duplicate_lane(&mut self, lane: usize) {
        let copies: Vec<StoredMessage> = self
            .outstanding
            .values()
            .filter(|outstanding| outstanding.lane == lane)
            .map(|outstanding| outstanding.message.clone())
            .collect();
        for message in copies {
            if !self.settled.contains(&message.offset) {
                self.lanes[lane].waiting.entry(message.offset).or_insert(message);
            }
        }
    }

    /// Delivers all outstanding messages and the last acknowledged ones again.
    pub(super) fn crash(&mut self) {
        self.redeliver_where(|_| true);
        let first = self.acknowledged.len().saturating_sub(LOST_ACKS_MAX);
        for (lane, message) in self.acknowledged.split_off(first) {
            self.settled.remove(&message.offset);
            self.lanes[lane].waiting.entry(message.offset).or_insert(message);
        }
    }
}
