//! Members and lanes: who is alive, and who may handle what.

use relevo_core::broker_consumer::Lane;
use relevo_core::inbox::admin::RemoveOutcome;
use relevo_core::inbox::dead_letters::DeadLetterState;
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply};
use relevo_core::inbox::{InboxState as Known, LaneLease};
use uuid::Uuid;

use super::ConsumerScope;
use super::tables::{ConsumerTables, LaneRow, MemberRow};
use crate::state::{Micros, Tables, micros};

impl Tables {
    /// Takes lanes that are free, or whose owner is dead and has no open transaction.
    pub(crate) fn acquire_lanes(&mut self, asking: &ConsumerScope, owner: Uuid, lanes: &[Lane]) -> Vec<LaneLease> {
        let now = self.now();
        if !self.tables(asking).is_alive(owner, now) {
            return Vec::new();
        }
        let mut held = Vec::new();
        for lane in lanes {
            let locked = self.is_lane_locked(&asking.consumer, lane);
            if let Some(epoch) = self.tables(asking).acquire_lane(owner, lane, locked, now) {
                held.push(LaneLease { lane: lane.clone(), epoch, owner });
            }
        }
        held
    }

    /// The tables of a consumer that is visible to operators.
    pub(crate) fn known_consumer(&self, consumer: &str) -> Option<&ConsumerTables> {
        self.consumers.get(consumer).filter(|desk| desk.is_known())
    }

    /// Deletes the members of a consumer, unless one is alive.
    pub(crate) fn remove_consumer(&mut self, consumer: &str) -> RemoveOutcome {
        let now = self.now();
        let Some(desk) = self.known_consumer(consumer) else { return RemoveOutcome::Unknown };
        let is_alive = desk.members.keys().any(|owner| desk.is_alive(*owner, now));
        if is_alive || desk.lanes.keys().any(|lane| self.is_lane_locked(consumer, lane)) {
            return RemoveOutcome::MembersAlive;
        }
        if let Some(desk) = self.consumers.get_mut(consumer) {
            desk.members.clear();
            desk.lanes.clear();
            desk.paused = false;
            desk.removed_at = Some(now);
        }
        RemoveOutcome::Removed
    }
}

impl ConsumerTables {
    /// Whether operators should see it: it was not forgotten, or it has waiting messages, dead letters or newly handled
    /// messages.
    pub(crate) fn is_known(&self) -> bool {
        self.removed_at.is_none_or(|at| {
            self.queues.values().any(|queue| !queue.messages.is_empty())
                || self.dead_letters.values().any(|letter| letter.state == DeadLetterState::Dead)
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
    pub(crate) fn heartbeat(&mut self, beat: &Heartbeat, now: Micros) -> HeartbeatReply {
        let before = self.members.get(&beat.owner).map(|member| member.expires_at);
        // A member that was deleted completely still has lanes, which show that this is not its first heartbeat.
        let was_dead = before.map_or(!beat.settled_offsets.is_empty(), |until| until <= now);
        let member = MemberRow {
            name: beat.name.clone(),
            heartbeat_at: now,
            expires_at: now.saturating_add(micros(beat.ttl)),
            last_message_at: beat.last_message_at,
        };
        self.members.insert(beat.owner, member);
        self.removed_at = None;
        for (lane, row) in self.lanes.iter_mut().filter(|(_, row)| row.owner == Some(beat.owner)) {
            let mark = beat.settled_offsets.iter().find(|(marked, _)| marked == lane).and_then(|(_, mark)| *mark);
            row.settled_offset = mark.or(row.settled_offset);
            row.breaker = beat.breakers.iter().find(|(open, _)| open == lane).map(|(_, why)| why.clone());
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
