//! The settled offset of a lane.

use std::collections::BTreeMap;

/// Outstanding offsets of a lane, and the offset up to which all deliveries are settled.
#[derive(Debug, Default)]
pub(crate) struct SettledOffset {
    /// Number of unsettled deliveries per offset: a redelivery may be outstanding beside the first delivery.
    outstanding: BTreeMap<u64, u32>,
    highest: Option<u64>,
    settled: Option<u64>,
}

impl SettledOffset {
    /// Records a delivery with this offset.
    pub(crate) fn received(&mut self, offset: u64) {
        *self.outstanding.entry(offset).or_default() += 1;
        self.highest = self.highest.max(Some(offset));
    }

    /// Records that a delivery was settled.
    pub(crate) fn settled(&mut self, offset: u64) {
        if let Some(count) = self.outstanding.get_mut(&offset) {
            *count -= 1;
            if *count == 0 {
                self.outstanding.remove(&offset);
            }
        }
        let low = match self.outstanding.first_key_value() {
            Some((first, _)) => first.checked_sub(1),
            None => self.highest,
        };
        // It never decreases: a redelivery below it had ended before.
        self.settled = self.settled.max(low);
    }

    /// The settled offset: all deliveries up to it are settled.
    pub(crate) const fn low_water(&self) -> Option<u64> {
        self.settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settled_offset_stays_below_outstanding_deliveries() {
        let mut offsets = SettledOffset::default();
        (5..=8).for_each(|offset| offsets.received(offset));
        assert_eq!(offsets.low_water(), None);
        offsets.settled(7);
        assert_eq!(offsets.low_water(), Some(4));
        offsets.settled(5);
        assert_eq!(offsets.low_water(), Some(5));
        offsets.settled(6);
        assert_eq!(offsets.low_water(), Some(7));
        offsets.settled(8);
        assert_eq!(offsets.low_water(), Some(8));
    }

    #[test]
    fn a_redelivery_does_not_move_the_settled_offset_back() {
        let mut offsets = SettledOffset::default();
        offsets.received(3);
        offsets.received(3);
        offsets.settled(3);
        assert_eq!(offsets.low_water(), Some(2));
        offsets.settled(3);
        assert_eq!(offsets.low_water(), Some(3));
        offsets.received(1);
        offsets.settled(1);
        assert_eq!(offsets.low_water(), Some(3));
    }
}
