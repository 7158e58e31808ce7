//! Replays on purpose: messages put into the retry table under a number of their own.

use relevo_core::inbox::operate::{self, Plan, ReplayState};
use relevo_core::inbox::{Arrival, Entry, State as Known};

use super::desk::{Desk, Replay, Waiting};
use crate::state::{Micros, State, timestamp};

impl Desk {
    /// Begins a replay; gives its number.
    pub(crate) fn begin_replay(&mut self, plan: &Plan, now: Micros) -> u32 {
        let number = self.replays.last_key_value().map_or(0, |(number, _)| *number) + 1;
        let replay = Replay { plan: plan.clone(), state: ReplayState::Running, fed: 0, cursor: None, began: now };
        self.replays.insert(number, replay);
        number
    }

    /// Whether a replay runs; one that made too many dead letters is stopped here.
    pub(crate) fn runs(&mut self, number: u32, now: Micros) -> bool {
        let dead = self.count(number, &[Known::Dead]);
        let Some(replay) = self.replays.get(&number).filter(|replay| replay.state == ReplayState::Running) else {
            return false;
        };
        let stops = dead > 0 && dead >= replay.plan.dead_max;
        if stops {
            self.stop_replay(number, now);
        }
        !stops
    }

    /// Puts messages into the retry table that are not there yet.
    pub(crate) fn feed(&mut self, number: u32, fed: &[Arrival], cursor: Option<&str>, now: Micros) {
        let mut new = 0;
        for arrival in fed {
            let entry = Entry { replay: number, ..arrival.entry };
            if !self.rows.contains_key(&entry) {
                new += 1;
                self.know(entry, Known::Waiting, now);
                self.append(Waiting::fresh(Arrival { entry, ..arrival.clone() }), now);
            }
        }
        if let Some(replay) = self.replays.get_mut(&number) {
            replay.fed += new;
            match cursor {
                Some(cursor) => replay.cursor = Some(cursor.to_owned()),
                None => replay.state = ReplayState::Finished,
            }
        }
    }

    /// Stops a replay, and takes out what of it nobody has begun.
    pub(crate) fn stop_replay(&mut self, number: u32, now: Micros) {
        if let Some(replay) = self.replays.get_mut(&number) {
            replay.state = ReplayState::Stopped;
        }
        let Self { queues, rows, .. } = self;
        for queue in queues.values_mut() {
            let begun = queue.first().filter(|_| queue.is_claimed(now));
            queue.messages.retain(|place, waiting| {
                let stays = waiting.arrival.entry.replay != number || Some(*place) == begun;
                if !stays {
                    // No broker repeats what came from a replay: the row protects nothing.
                    rows.remove(&waiting.arrival.entry);
                }
                stays
            });
        }
        queues.retain(|_, queue| !queue.messages.is_empty() || queue.is_claimed(now) || !queue.held.is_empty());
    }

    fn count(&self, number: u32, states: &[Known]) -> u64 {
        let rows = self.rows.iter().filter(|(entry, row)| entry.replay == number && states.contains(&row.state));
        rows.count() as u64
    }
}

impl State {
    /// The replays of a consumer, newest first.
    pub(crate) fn replays(&self, consumer: &str) -> Vec<operate::Replay> {
        let Some(desk) = self.desks.get(consumer) else { return Vec::new() };
        let newest_first = desk.replays.iter().rev();
        newest_first
            .map(|(number, replay)| operate::Replay {
                number: *number,
                plan: replay.plan.clone(),
                state: replay.state,
                fed: replay.fed,
                done: desk.count(*number, &[Known::Done, Known::Skipped]),
                dead: desk.count(*number, &[Known::Dead]),
                cursor: replay.cursor.clone(),
                began_at: timestamp(self.settings.started_at, replay.began),
            })
            .collect()
    }
}
