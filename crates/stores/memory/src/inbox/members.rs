//! Members and lanes: who is alive, and who may handle what.

use relevo_core::consume::Lane;
use relevo_core::inbox::operate::{Fate, Forgotten};
use relevo_core::inbox::{Beat, Held, Orders, State as Known};
use uuid::Uuid;

use super::Asking;
use super::desk::{Desk, LaneRow, Member};
use crate::state::{Micros, State, micros};

impl State {
    /// Takes lanes that are free, or whose owner is dead and has no open transaction.
    pub(crate) fn take(&mut self, asking: &Asking, owner: Uuid, lanes: &[Lane]) -> Vec<Held> {
        let now = self.now();
        if !self.desk(asking).is_alive(owner, now) {
            return Vec::new();
        }
        let mut held = Vec::new();
        for lane in lanes {
            let locked = self.is_lane_locked(&asking.consumer, lane);
            if let Some(epoch) = self.desk(asking).take(owner, lane, locked, now) {
                held.push(Held { lane: lane.clone(), epoch, owner });
            }
        }
        held
    }

    /// The tables of a consumer that is visible to operators.
    pub(crate) fn known(&self, consumer: &str) -> Option<&Desk> {
        self.desks.get(consumer).filter(|desk| desk.is_known())
    }

    /// Deletes the members of a consumer, unless one is alive.
    pub(crate) fn forget(&mut self, consumer: &str) -> Forgotten {
        let now = self.now();
        let Some(desk) = self.known(consumer) else { return Forgotten::Unknown };
        let is_alive = desk.members.keys().any(|owner| desk.is_alive(*owner, now));
        if is_alive || desk.lanes.keys().any(|lane| self.is_lane_locked(consumer, lane)) {
            return Forgotten::Alive;
        }
        if let Some(desk) = self.desks.get_mut(consumer) {
            desk.members.clear();
            desk.lanes.clear();
            desk.paused = false;
            desk.forgotten = Some(now);
        }
        Forgotten::Gone
    }
}

impl Desk {
    /// Whether operators should see it: it was not forgotten, or it has waiting messages, dead letters or newly handled
    /// messages.
    pub(crate) fn is_known(&self) -> bool {
        self.forgotten.is_none_or(|at| {
            self.queues.values().any(|queue| !queue.messages.is_empty())
                || self.letters.values().any(|letter| letter.fate == Fate::Pending)
                || self.rows.values().any(|row| matches!(row.state, Known::Done | Known::Skipped) && row.changed > at)
        })
    }

    pub(crate) fn is_alive(&self, owner: Uuid, now: Micros) -> bool {
        self.members.get(&owner).is_some_and(|member| member.until > now)
    }

    /// Takes one lane and returns its epoch. `None` if another member owns it.
    fn take(&mut self, owner: Uuid, lane: &Lane, locked: bool, now: Micros) -> Option<i64> {
        let free = |row: &LaneRow| !locked && !row.owner.is_some_and(|owner| self.is_alive(owner, now));
        match self.lanes.get(lane) {
            None => {
                let row =
                    LaneRow { owner: Some(owner), epoch: 1, mark: None, paused: false, breaker: None, forced: None };
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
    pub(crate) fn give_back(&mut self, owner: Uuid, lanes: &[Lane]) {
        for (_, row) in self.lanes.iter_mut().filter(|(lane, row)| row.owner == Some(owner) && lanes.contains(lane)) {
            row.owner = None;
        }
    }

    /// Records a heartbeat and returns the operator commands.
    pub(crate) fn beat(&mut self, beat: &Beat, now: Micros) -> Orders {
        let before = self.members.get(&beat.owner).map(|member| member.until);
        // A member that was deleted completely still has lanes, which show that this is not its first heartbeat.
        let was_dead = before.map_or(!beat.marks.is_empty(), |until| until <= now);
        let member = Member {
            name: beat.name.clone(),
            beat: now,
            until: now.saturating_add(micros(beat.lasts)),
            last_message_at: beat.last_message_at,
        };
        self.members.insert(beat.owner, member);
        self.forgotten = None;
        for (lane, row) in self.lanes.iter_mut().filter(|(_, row)| row.owner == Some(beat.owner)) {
            let mark = beat.marks.iter().find(|(marked, _)| marked == lane).and_then(|(_, mark)| *mark);
            row.mark = mark.or(row.mark);
            row.breaker = beat.breakers.iter().find(|(open, _)| open == lane).map(|(_, why)| why.clone());
        }
        let lanes = self.lanes.iter();
        Orders {
            paused: self.paused,
            paused_lanes: lanes.clone().filter(|(_, row)| row.paused).map(|(lane, _)| lane.clone()).collect(),
            forced: lanes.filter_map(|(lane, row)| Some((lane.clone(), row.forced?))).collect(),
            was_dead,
        }
    }
}
