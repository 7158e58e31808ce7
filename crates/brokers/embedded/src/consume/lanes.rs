//! The lanes that a consumer owns, and its outstanding deliveries.

use std::collections::{BTreeMap, HashMap};

use relevo_core::DeliveryTag;

/// What a consumer knows about its group.
#[derive(Debug, Default)]
pub(crate) struct ConsumerState {
    pub(crate) lanes: BTreeMap<u16, OwnedLane>,
    outstanding: HashMap<DeliveryTag, OutstandingDelivery>,
    /// The tag of each outstanding message, by sequence number.
    pub(crate) tags: HashMap<i64, DeliveryTag>,
    next_tag: u64,
    /// A call was cancelled during a write: the file may be ahead of this state.
    pub(crate) uncertain: bool,
}

/// A lane that this consumer owns.
#[derive(Clone, Debug)]
pub(crate) struct OwnedLane {
    pub(crate) epoch: i64,
    /// Every message up to here was delivered, or does not match the group.
    pub(crate) cursor: i64,
    pub(crate) outstanding: usize,
    pub(crate) paused: bool,
    /// The lane exceeds the fair share. It delivers nothing new, and is released when no delivery is outstanding.
    pub(crate) releasing: bool,
}

/// An outstanding delivery.
#[derive(Clone, Debug)]
pub(crate) struct OutstandingDelivery {
    pub(crate) seq: i64,
    pub(crate) lane: u16,
}

impl ConsumerState {
    /// Adds a delivery with a new tag. An older tag of the same message becomes invalid.
    pub(crate) fn insert(&mut self, delivery: OutstandingDelivery) -> DeliveryTag {
        if let Some(old) = self.tags.get(&delivery.seq).copied() {
            self.remove(old);
        }
        self.next_tag += 1;
        let tag = DeliveryTag::new(self.next_tag);
        if let Some(owned) = self.lanes.get_mut(&delivery.lane) {
            owned.outstanding += 1;
        }
        self.tags.insert(delivery.seq, tag);
        self.outstanding.insert(tag, delivery);
        tag
    }

    /// Removes a delivery that was acknowledged or no longer belongs to this consumer.
    pub(crate) fn remove(&mut self, tag: DeliveryTag) {
        let Some(delivery) = self.outstanding.remove(&tag) else { return };
        self.tags.remove(&delivery.seq);
        if let Some(owned) = self.lanes.get_mut(&delivery.lane) {
            owned.outstanding -= 1;
        }
    }

    pub(crate) fn outstanding(&self, tag: DeliveryTag) -> Option<&OutstandingDelivery> {
        self.outstanding.get(&tag)
    }

    pub(crate) fn all_outstanding(&self) -> impl Iterator<Item = (DeliveryTag, &OutstandingDelivery)> {
        self.outstanding.iter().map(|(tag, delivery)| (*tag, delivery))
    }

    /// Removes a lane and its outstanding deliveries.
    pub(crate) fn drop_lane(&mut self, lane: u16) {
        self.lanes.remove(&lane);
        let tags: Vec<DeliveryTag> =
            self.all_outstanding().filter(|(_, delivery)| delivery.lane == lane).map(|(tag, _)| tag).collect();
        for tag in tags {
            self.remove(tag);
        }
    }

    /// Whether a lane is ready to be released.
    pub(crate) fn has_drained(&self) -> bool {
        self.lanes.values().any(|owned| owned.releasing && owned.outstanding == 0)
    }
}
