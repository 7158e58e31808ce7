//! Resharding: changes the number of shards when all shards are at the same exhausted tick.

use relevo_core::store::{Ceiling, Position};

use crate::leases::{Destination, Shard};
use crate::state::Micros;

/// A requested resharding and its progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Regroup {
    pub(crate) shards: u16,
    /// The tick that every shard must reach. `None` until each shard has finished its window.
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

    /// Performs one step of the resharding. Every lease request calls it.
    pub(crate) fn regroup_step(&mut self, now: Micros) {
        let Some(mut regroup) = self.regroup else { return };
        let positions = || self.shards.iter().map(Shard::position);
        let furthest = positions().map(|position| position.to).max().unwrap_or(0);
        if regroup.tick.is_none() && !positions().all(|position| position.is_exhausted()) {
            return;
        }
        // An owner that did not know of the resharding may have advanced further. The other shards must reach the same
        // tick.
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
