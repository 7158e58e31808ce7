//! Deletes expired rows.

use std::collections::BTreeMap;
use std::time::Duration;

use relevo_core::dead_letters::DeadLetterState;
use relevo_core::inbox::{InboxRetention, InboxState as Known};

use super::tables::ConsumerTables;
use crate::state::{Micros, micros};

/// How long a dead member is still listed.
const DEAD_MEMBERS: Duration = Duration::from_hours(24);

impl ConsumerTables {
    /// Deletes expired rows, at most `limit` of each kind. Returns whether more are left.
    pub(crate) fn prune(&mut self, retention: &InboxRetention, limit: usize, now: Micros) -> bool {
        self.done_retention = Some(retention.done);
        let before = |time: Duration| now.saturating_sub(micros(time));
        // Rows in any other state are needed at any age, to detect repeats.
        let rows = drain(&mut self.rows, limit, |row| {
            matches!(row.state, Known::Done | Known::Skipped) && row.changed_at < before(retention.done)
        });
        let dead_letters = drain(&mut self.dead_letters, limit, |row| {
            row.state != DeadLetterState::Dead
                && row.mark.as_ref().is_none_or(|mark| mark.at < before(retention.dead_letters))
        });
        let members = drain(&mut self.members, limit, |member| member.expires_at < before(DEAD_MEMBERS));
        rows || dead_letters || members
    }

    /// Makes all data older for pruning.
    pub(crate) fn age(&mut self, by: Micros) {
        let older = |time: &mut Micros| *time = time.saturating_sub(by);
        for row in self.rows.values_mut() {
            older(&mut row.arrived_at);
            older(&mut row.changed_at);
        }
        for row in self.dead_letters.values_mut() {
            older(&mut row.arrived_at);
            older(&mut row.dead_at);
            if let Some(mark) = &mut row.mark {
                older(&mut mark.at);
            }
        }
        for member in self.members.values_mut() {
            older(&mut member.heartbeat_at);
            older(&mut member.expires_at);
        }
    }
}

/// Removes the first `limit` old values. Returns whether more are left.
fn drain<K: Ord + Copy, V>(map: &mut BTreeMap<K, V>, limit: usize, is_old: impl Fn(&V) -> bool) -> bool {
    let old: Vec<K> = map.iter().filter(|(_, value)| is_old(value)).map(|(key, _)| *key).collect();
    for key in old.iter().take(limit) {
        map.remove(key);
    }
    old.len() > limit
}
