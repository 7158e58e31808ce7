//! Members and their lanes.

use relevo_core::broker_consumer::Lane;
use relevo_core::dead_letters::DeadLetterState;
use relevo_core::inbox::admin::RemoveOutcome;
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply};
use relevo_core::inbox::{InboxState as Known, LaneLease};
use uuid::Uuid;

use super::ConsumerScope;
use super::tables::{ConsumerTables, LaneRow, MemberRow};
use crate::state::{Micros, Tables, micros};

impl Tables {
    /// Takes lanes that are free, or whose owner is dead and has no open transaction.
    pub(crate) fn acquire_lanes(&mut self, scope: &ConsumerScope, owner: Uuid, lanes: &[Lane]) -> Vec<LaneLease> {
        let now = self.now();
        if !self.tables(scope).is_alive(owner, now) {
            return Vec::new();
        }
        let mut leases = Vec::new();
        for lane in lanes {
            let locked = self.is_lane_locked(&scope.consumer, lane);
            if let Some(epoch) = self.tables(scope).acquire_lane(owner, lane, locked, now) {
                leases.push(LaneLease { lane: lane.clone(), epoch, owner });
            }
        }
        leases
    }

    /// The tables of a consumer that is visible to operators.
    pub(crate) fn known_consumer(&self, consumer: &str) -> Option<&ConsumerTables> {
        self.consumers.get(consumer).filter(|tables| tables.is_known())
    }

    /// Deletes the members of a consumer, unless one is alive.
    pub(crate) fn remove_consumer(&mut self, consumer: &str) -> RemoveOutcome {
        let now = self.now();
        let Some(tables) = self.known_consumer(consumer) else { return RemoveOutcome::Unknown };
        let is_alive = tables.members.keys().any(|owner| tables.is_alive(*owner, now));
        if is_alive || tables.lanes.keys().any(|lane| self.is_lane_locked(consumer, lane)) {
            return RemoveOutcome::MembersAlive;
        }
        if let Some(tables) = self.consumers.get_mut(consumer) {
            tables.members.clear();
            tables.lanes.clear();
            tables.paused = false;
            tables.removed_at = Some(now);
        }
        RemoveOutcome::Removed
    }
}

impl ConsumerTables {
    /// Whether operators should see it: it was not removed, or it has waiting messages, dead letters or newly handled
    /// messages.
    pub(crate) fn is_known(&self) -> bool {
        self.removed_at.is_none_or(|at| {
            self.queues.values().any(|queue| !queue.messages.is_empty())
                || self.dead_letters.values().any(|row| row.state == DeadLetterState::Dead)
                || self
                    .rows
                    .values()
                    .any(|row| matches!(row.state, Known::Done | Known::Skipped) && row.changed_at > at)
        })
    }

    pub(crate) fn is_alive(&self, owner: Uuid, now: Micros) -> bool {
        self.members.get(&owner).is_some_and(|member| member.expires_at > now)
    }

    /// Takes one lane and returns its epoch. `None` if another member owns it.
    fn acquire_lane(&mut self, owner: Uuid, lane: &Lane, locked: bool, now: Micros) -> Option<i64> {
        let free = |row: &LaneRow| !locked && !row.owner.is_some_and(|owner| self.is_alive(owner, now));
        match self.lanes.get(lane) {
            None => {
                let row = LaneRow {
                    owner: Some(owner),
                    epoch: 1,
                    settled_offset: None,
                    paused: false,
                    breaker: None,
                    breaker_override: None,
                };
                self.lanes.insert(lane.clone(), row);
                Some(1)
            }
            Some(row) if row.owner == Some(owner) => Some(row.epoch),
            Some(row) if free(row) => {
                let row = self.lanes.get_mut(lane)?;
                row.owner = Some(owner);
                row.epoch += 1;
                row.breaker = None;
                Some(row.epoch)
            }
            Some(_) => None,
        }
    }

    /// Frees those of these lanes that the member owns.
    pub(crate) fn release_lanes(&mut self, owner: Uuid, lanes: &[Lane]) {
        for (_, row) in self.lanes.iter_mut().filter(|(lane, row)| row.owner == Some(owner) && lanes.contains(lane)) {
            row.owner = None;
        }
    }

    /// Records a heartbeat and returns the operator commands.
    pub(crate) fn heartbeat(&mut self, heartbeat: &Heartbeat, now: Micros) -> HeartbeatReply {
        let before = self.members.get(&heartbeat.owner).map(|member| member.expires_at);
        // A member that was deleted completely still has lanes, which show that this is not its first heartbeat.
        let was_dead = before.map_or(!heartbeat.settled_offsets.is_empty(), |until| until <= now);
        let member = MemberRow {
            name: heartbeat.name.clone(),
            heartbeat_at: now,
            expires_at: now.saturating_add(micros(heartbeat.ttl)),
            last_message_at: heartbeat.last_message_at,
        };
        self.members.insert(heartbeat.owner, member);
        self.removed_at = None;
        for (lane, row) in self.lanes.iter_mut().filter(|(_, row)| row.owner == Some(heartbeat.owner)) {
            let offset =
                heartbeat.settled_offsets.iter().find(|(reported, _)| reported == lane).and_then(|(_, offset)| *offset);
            row.settled_offset = offset.or(row.settled_offset);
            row.breaker = heartbeat.breakers.iter().find(|(open, _)| open == lane).map(|(_, reason)| reason.clone());
        }
        let lanes = self.lanes.iter();
        HeartbeatReply {
            paused: self.paused,
            paused_lanes: lanes.clone().filter(|(_, row)| row.paused).map(|(lane, _)| lane.clone()).collect(),
            breaker_overrides: lanes.filter_map(|(lane, row)| Some((lane.clone(), row.breaker_override?))).collect(),
            expired: was_dead,
        }
    }
}
