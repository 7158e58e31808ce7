//! The state of a group: lanes, connections, outstanding deliveries and acknowledgements.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::inbox::Entry;
use relevo_core::{DeliveryTag, Raw};
use tokio::time::Instant;

use crate::history::Name;

/// The maximum number of acknowledgements that a crash loses.
const FORGOTTEN_MAX: usize = 5;

#[derive(Default)]
pub(super) struct State {
    pub(super) lanes: Vec<LaneState>,
    pub(super) connections: BTreeMap<u64, Connected>,
    pub(super) out: BTreeMap<DeliveryTag, Out>,
    /// Acknowledged messages, the newest last. A crash may lose some.
    pub(super) acknowledged: Vec<(usize, Kept)>,
    /// The places of the acknowledged messages.
    pub(super) settled: BTreeSet<u64>,
    pub(super) next: u64,
}

#[derive(Default)]
pub(super) struct LaneState {
    pub(super) owner: Option<u64>,
    pub(super) waiting: BTreeMap<u64, Kept>,
}

#[derive(Default)]
pub(super) struct Connected {
    pub(super) here: bool,
    pub(super) closed: bool,
    pub(super) paused: BTreeSet<usize>,
    /// How often the connection broke.
    pub(super) cuts: u64,
    /// The number of the last pause or resume call.
    pub(super) told: u64,
}

pub(super) struct Out {
    pub(super) to: u64,
    pub(super) lane: usize,
    pub(super) kept: Kept,
}

#[derive(Clone)]
pub(super) struct Kept {
    pub(super) place: u64,
    pub(super) name: Name,
    pub(super) id: Entry,
    pub(super) raw: Raw,
    pub(super) count: u32,
    pub(super) retries: u32,
    pub(super) due: Instant,
}

impl State {
    pub(super) fn here(&self) -> impl Iterator<Item = u64> {
        self.connections.iter().filter(|(_, connected)| connected.here).map(|(number, _)| *number)
    }

    /// Assigns each lane to one of the connected consumers.
    pub(super) fn share(&mut self, shared: bool) {
        let here: Vec<u64> = self.here().collect();
        for number in 0..self.lanes.len() {
            let owner = (!shared && !here.is_empty()).then(|| here[number % here.len()]);
            if self.lanes[number].owner != owner {
                self.take_back(number);
                self.lanes[number].owner = owner;
            }
        }
    }

    /// Returns the outstanding messages of a lane, so that they are delivered again in order.
    pub(super) fn take_back(&mut self, lane: usize) {
        self.return_where(|out| out.lane == lane);
    }

    pub(super) fn cut(&mut self, connection: u64) {
        if let Some(connected) = self.connections.get_mut(&connection) {
            connected.cuts += 1;
            connected.paused.clear();
        }
        self.return_where(|out| out.to == connection);
    }

    pub(super) fn return_where(&mut self, returns: impl Fn(&Out) -> bool) {
        let tags: Vec<DeliveryTag> = self.out.iter().filter(|(_, out)| returns(out)).map(|(tag, _)| *tag).collect();
        for tag in tags {
            let Some(Out { lane, kept, .. }) = self.out.remove(&tag) else { continue };
            if !self.settled.contains(&kept.place) {
                self.lanes[lane].waiting.entry(kept.place).or_insert(kept);
            }
        }
    }

    /// Delivers the outstanding messages of a lane to another consumer as well.
    pub(super) fn copy(&mut self, lane: usize) {
        let copies: Vec<Kept> = self.out.values().filter(|out| out.lane == lane).map(|out| out.kept.clone()).collect();
        for kept in copies {
            if !self.settled.contains(&kept.place) {
                self.lanes[lane].waiting.entry(kept.place).or_insert(kept);
            }
        }
    }

    /// Delivers all outstanding messages and the last acknowledged ones again.
    pub(super) fn crash(&mut self) {
        self.return_where(|_| true);
        let first = self.acknowledged.len().saturating_sub(FORGOTTEN_MAX);
        for (lane, kept) in self.acknowledged.split_off(first) {
            self.settled.remove(&kept.place);
            self.lanes[lane].waiting.entry(kept.place).or_insert(kept);
        }
    }
}
