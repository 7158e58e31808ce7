//! Replays: messages added to the retry table under the replay's number.

use std::collections::BTreeSet;

use relevo_core::inbox::operate::{self, Plan, Portion, ReplayState};
use relevo_core::inbox::{Arrival, Entry, State as Known};

use super::desk::{Desk, Replay, Waiting};
use crate::state::{Micros, State, timestamp};

impl Desk {
    /// Starts a replay and returns its number.
    pub(crate) fn begin_replay(&mut self, plan: &Plan, now: Micros) -> u32 {
        let number = self.replays.last_key_value().map_or(0, |(number, _)| *number) + 1;
        let plan = plan.clone();
        let replay =
            Replay { plan, state: ReplayState::Running, fed: 0, cursor: None, portions: Vec::new(), began: now };
        self.replays.insert(number, replay);
        number
    }

    /// Whether a replay is running. Stops a replay that has reached its dead-letter limit.
    pub(crate) fn runs(&mut self, number: u32, now: Micros) -> bool {
        if self.must_stop(number) {
            self.stop_replay(number, now);
        }
        self.replays.get(&number).is_some_and(|replay| replay.state == ReplayState::Running)
    }

    /// Whether a replay is running and has reached its dead-letter limit.
    pub(crate) fn must_stop(&self, number: u32) -> bool {
        let dead = self.count(number, &[Known::Dead]);
        let running = self.replays.get(&number).filter(|replay| replay.state == ReplayState::Running);
        running.is_some_and(|replay| dead > 0 && dead >= replay.plan.dead_max)
    }

    /// Whether the replay is at the position where this portion starts.
    pub(crate) fn stands_at(&self, number: u32, cursor: Option<&str>) -> bool {
        self.replays.get(&number).is_some_and(|replay| replay.cursor.as_deref() == cursor)
    }

    /// Adds messages to the retry table that are not there yet.
    pub(crate) fn feed(&mut self, number: u32, portion: Portion<'_>, now: Micros) {
        let mut new = Vec::new();
        for arrival in portion.messages {
            let entry = Entry { replay: number, ..arrival.entry };
            if !self.rows.contains_key(&entry) {
                new.push(entry);
                self.know(entry, Known::Waiting, now);
                self.append(Waiting::fresh(Arrival { entry, ..arrival.clone() }), now);
            }
        }
        if let Some(replay) = self.replays.get_mut(&number) {
            replay.fed += new.len() as u64;
            replay.portions.push((portion.from.map(ToOwned::to_owned), new));
            match portion.to {
                Some(cursor) => replay.cursor = Some(cursor.to_owned()),
                None => replay.state = ReplayState::Finished,
            }
        }
    }

    /// Stops a replay and removes its messages that no member has started. The reader continues before the first of
    /// them.
    pub(crate) fn stop_replay(&mut self, number: u32, now: Micros) {
        let Self { queues, rows, replays, .. } = self;
        let mut gone = BTreeSet::new();
        for queue in queues.values_mut() {
            queue.messages.retain(|_, waiting| {
                let entry = waiting.arrival.entry;
                let reopened = rows.get(&entry).is_some_and(|row| row.state == Known::Reopened);
                let stays = entry.replay != number || waiting.started > 0 || waiting.attempts > 0 || reopened;
                if !stays {
                    // No broker redelivers a replayed message, so its row is not needed to detect repeats.
                    rows.remove(&entry);
                    gone.insert(entry);
                }
                stays
            });
        }
        queues.retain(|_, queue| !queue.messages.is_empty() || queue.is_claimed(now) || !queue.held.is_empty());
        if let Some(replay) = replays.get_mut(&number) {
            replay.state = ReplayState::Stopped;
            replay.fed -= gone.len() as u64;
            let first = replay.portions.iter().find(|(_, fed)| fed.iter().any(|entry| gone.contains(entry)));
            if let Some((from, _)) = first {
                replay.cursor.clone_from(from);
            }
        }
    }

    /// Resumes a stopped replay.
    pub(crate) fn resume_replay(&mut self, number: u32, dead_more: u64) -> bool {
        let dead = self.count(number, &[Known::Dead]);
        let stopped = self.replays.get_mut(&number).filter(|replay| replay.state == ReplayState::Stopped);
        stopped.is_some_and(|replay| {
            replay.state = ReplayState::Running;
            replay.plan.dead_max = dead.saturating_add(dead_more);
            true
        })
    }

    /// The number of messages of a replay that can be handled now.
    fn ready(&self, number: u32, now: Micros) -> u64 {
        let due = self.queues.values().filter(|queue| queue.held.is_empty() && queue.next <= now);
        let waiting = due.flat_map(|queue| queue.messages.values());
        waiting.filter(|waiting| waiting.arrival.entry.replay == number).count() as u64
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
                ready: desk.ready(*number, self.now()),
                cursor: replay.cursor.clone(),
                began_at: timestamp(self.settings.started_at, replay.began),
            })
            .collect()
    }
}
