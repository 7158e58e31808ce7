//! Retention: deletes old messages that every destination has settled.

use std::collections::BTreeSet;

use relevo_core::outbox::maintenance::MaintenanceReport;

use crate::leases::{DestinationTables, ShardRow};
use crate::state::{Micros, Tables, micros};

impl Tables {
    /// Deletes single messages, as if each were a partition.
    pub(crate) fn maintain(&mut self) -> MaintenanceReport {
        let before = self.now().saturating_sub(micros(self.settings.retention));
        let oldest = self.destinations.values().flat_map(DestinationTables::settled_ticks).min();
        let oldest = oldest.unwrap_or_else(|| self.log.newest_tick());
        let settled = self.log.ticks.get(&oldest).map(|tick| tick.snapshot.clone());
        let is_old = |inserted_at: Micros| inserted_at <= before;
        let mut dropped = Vec::new();
        let mut held_back = 0;
        for (seq, row) in &self.log.rows {
            if !is_old(row.inserted_at) || !self.log.is_committed(row) {
                continue;
            }
            if settled.as_ref().is_some_and(|snapshot| snapshot.sees(row.xid)) {
                dropped.push(*seq);
            } else {
                held_back += 1;
            }
        }
        for seq in &dropped {
            if let Some(row) = self.log.remove(*seq) {
                self.ids.remove(&row.entry.message.id);
            }
        }
        self.prune(before);
        MaintenanceReport { warnings: self.warnings(oldest, held_back), ..MaintenanceReport::default() }
    }

    /// Deletes old progress and unreferenced ticks. The newest progress of each shard always stays.
    fn prune(&mut self, before: Micros) {
        let dead_before = self.now().saturating_sub(micros(self.settings.dead_letter_retention));
        let mut referenced = BTreeSet::from([0, self.log.newest_tick()]);
        for destination in self.destinations.values_mut() {
            for shard in &mut destination.shards {
                let last = shard.progress.len().saturating_sub(1);
                let keep = shard.progress.partition_point(|(time, _)| *time <= before).min(last);
                shard.progress.drain(..keep);
                referenced
                    .extend(shard.progress.iter().flat_map(|(_, position)| [position.from_tick(), position.to_tick()]));
            }
            referenced.extend(destination.resharding_tick());
            destination.dead_letters.retain(|_, row| !row.is_settled_before(dead_before));
        }
        // A relay may be inside a window that starts at a settled tick and ends at any later one.
        let oldest = self.destinations.values().flat_map(DestinationTables::settled_ticks).min().unwrap_or(i64::MAX);
        self.log
            .ticks
            .retain(|number, tick| *number >= oldest || referenced.contains(number) || tick.created_at > before);
    }

    fn warnings(&self, oldest: i64, held_back: usize) -> Vec<String> {
        if held_back == 0 {
            return Vec::new();
        }
        let behind =
            self.destinations.iter().filter(|(_, destination)| destination.settled_ticks().any(|tick| tick == oldest));
        behind.map(|(name, _)| format!("destination `{name}` holds back {held_back} messages from retention")).collect()
    }
}

impl DestinationTables {
    /// The ticks up to which its shards are settled.
    fn settled_ticks(&self) -> impl Iterator<Item = i64> {
        self.shards.iter().map(ShardRow::position).map(|position| position.from_tick())
    }
}
