//! From one number of shards to another, at equal exhausted ticks.

use relevo_core::store::{Ceiling, Position};

use crate::leases::{Destination, Shard};
use crate::state::Micros;

/// What was asked for, and how far it has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Regroup {
    pub(crate) shards: u16,
    /// Where every shard must stand; unknown until each has finished its window.
    tick: Option<i64>,
}

impl Destination {
    pub(crate) fn ask_regroup(&mut self, shards: u16) {
        self.regroup = Some(Regroup { shards, tick: None });
    }

    pub(crate) fn ceiling(&self) -> Ceiling {
        match self.regroup {
            None => Ceiling::Open,
            Some(Regroup { tick: None, .. }) => Ceiling::NoNewWindow,
            Some(Regroup { tick: Some(tick), .. }) => Ceiling::Tick(tick),
        }
    }

    pub(crate) fn regroup_tick(&self) -> Option<i64> {
        self.regroup.and_then(|regroup| regroup.tick)
    }

    /// One step, taken whenever somebody leases.
    pub(crate) fn regroup_step(&mut self, now: Micros) {
        let Some(mut regroup) = self.regroup else { return };
        let positions = || self.shards.iter().map(Shard::position);
        let furthest = positions().map(|position| position.to).max().unwrap_or(0);
        if regroup.tick.is_none() && !positions().all(|position| position.is_exhausted()) {
            return;
        }
        // An owner that had not heard of the regrouping may have gone further since; the others follow it.
        let tick = regroup.tick.map_or(furthest, |tick| tick.max(furthest));
        regroup.tick = Some(tick);
        self.regroup = Some(regroup);
        if positions().all(|position| position == Position::at(tick)) {
            let epoch = self.shards.iter().map(|shard| shard.epoch).max().unwrap_or(0) + 1;
            self.shards = vec![Shard::new(epoch, Position::at(tick), now); usize::from(regroup.shards)];
            self.regroup = None;
        }
    }
}
