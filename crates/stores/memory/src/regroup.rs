//! Resharding: changes the number of shards when all shards are at the same exhausted tick.

use relevo_core::outbox::Position;
use relevo_core::outbox::log::WindowLimit;

use crate::leases::{DestinationTables, ShardRow};
use crate::state::Micros;

/// A requested resharding and its progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resharding {
    pub(crate) shards: u16,
    /// The tick that every shard must reach. `None` until each shard has finished its window.
    tick: Option<i64>,
}

impl DestinationTables {
    pub(crate) fn request_resharding(&mut self, shards: u16) {
        self.resharding = Some(Resharding { shards, tick: None });
    }

    pub(crate) fn window_limit(&self) -> WindowLimit {
        match self.resharding {
            None => WindowLimit::Unlimited,
            Some(Resharding { tick: None, .. }) => WindowLimit::CurrentWindow,
            Some(Resharding { tick: Some(tick), .. }) => WindowLimit::UntilTick(tick),
        }
    }

    pub(crate) fn resharding_tick(&self) -> Option<i64> {
        self.resharding.and_then(|resharding| resharding.tick)
    }

    /// Performs one step of the resharding. Every lease request calls it.
    pub(crate) fn reshard_step(&mut self, now: Micros) {
        let Some(mut resharding) = self.resharding else { return };
        let positions = || self.shards.iter().map(ShardRow::position);
        let furthest = positions().map(|position| position.to_tick()).max().unwrap_or(0);
        if resharding.tick.is_none() && !positions().all(|position| position.is_exhausted()) {
            return;
        }
        // An owner that did not know of the resharding may have advanced further. The other shards must reach the same
        // tick.
        let tick = resharding.tick.map_or(furthest, |tick| tick.max(furthest));
        resharding.tick = Some(tick);
        self.resharding = Some(resharding);
        if positions().all(|position| position == Position::at(tick)) {
            let epoch = self.shards.iter().map(|shard| shard.epoch).max().unwrap_or(0) + 1;
            self.shards = vec![ShardRow::new(epoch, Position::at(tick), now); usize::from(resharding.shards)];
            self.resharding = None;
        }
    }
}
