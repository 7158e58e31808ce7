//! The settled offset of a lane.

use std::collections::BTreeMap;

/// Outstanding offsets of a lane, and the offset up to which all deliveries are settled.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// Number of unsettled deliveries per offset: a redelivery may be outstanding beside the first delivery.
    out: BTreeMap<u64, u32>,
    highest: Option<u64>,
    mark: Option<u64>,
}

impl Marks {
    /// Records a delivery with this offset.
    pub(crate) fn came(&mut self, place: u64) {
        *self.out.entry(place).or_default() += 1;
        self.highest = self.highest.max(Some(place));
    }

    /// Records that a delivery was settled.
    pub(crate) fn settled(&mut self, place: u64) {
        if let Some(count) = self.out.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.out.remove(&place);
            }
        }
        let low = match self.out.first_key_value() {
            Some((first, _)) => first.checked_sub(1),
            None => self.highest,
        };
        // It never decreases: a redelivery below it had ended before.
        self.mark = self.mark.max(low);
    }

    /// The settled offset: all deliveries up to it are settled.
    pub(crate) const fn low_water(&self) -> Option<u64> {
        self.mark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_stays_below_what_is_out() {
        let mut marks = Marks::default();
        (5..=8).for_each(|place| marks.came(place));
        assert_eq!(marks.low_water(), None);
        marks.settled(7);
        assert_eq!(marks.low_water(), Some(4));
        marks.settled(5);
        assert_eq!(marks.low_water(), Some(5));
        marks.settled(6);
        assert_eq!(marks.low_water(), Some(7));
        marks.settled(8);
        assert_eq!(marks.low_water(), Some(8));
    }

    #[test]
    fn a_repeat_neither_hides_the_first_one_nor_takes_the_mark_back() {
        let mut marks = Marks::default();
        marks.came(3);
        marks.came(3);
        marks.settled(3);
        assert_eq!(marks.low_water(), Some(2));
        marks.settled(3);
        assert_eq!(marks.low_water(), Some(3));
        marks.came(1);
        marks.settled(1);
        assert_eq!(marks.low_water(), Some(3));
    }
}
