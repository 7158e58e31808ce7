//! Replays: messages added to the retry table under the replay's number.

use std::collections::BTreeSet;

use relevo_core::inbox::replays;
use relevo_core::inbox::replays::{ReplayBatch, ReplayPlan, ReplayState};
use relevo_core::inbox::{DedupId, InboxMessage, InboxState as Known};

use super::tables::{ConsumerTables, QueuedRow, ReplayRow};
use crate::state::{Micros, Tables, timestamp};

impl ConsumerTables {
    /// Starts a replay and returns its number.
    pub(crate) fn create_replay(&mut self, plan: &ReplayPlan, now: Micros) -> u32 {
        let number = self.replays.last_key_value().map_or(0, |(number, _)| *number) + 1;
        let plan = plan.clone();
        let replay = ReplayRow {
            plan,
            state: ReplayState::Running,
            enqueued: 0,
            cursor: None,
            batches: Vec::new(),
            started_at: now,
        };
        self.replays.insert(number, replay);
        number
    }

    /// Whether a replay is running. Stops a replay that has reached its dead-letter limit.
    pub(crate) fn is_running(&mut self, number: u32, now: Micros) -> bool {
        if self.must_stop(number) {
            self.stop_replay(number, now);
        }
        self.replays.get(&number).is_some_and(|replay| replay.state == ReplayState::Running)
    }

    /// Whether a replay is running and has reached its dead-letter limit.
    pub(crate) fn must_stop(&self, number: u32) -> bool {
        let dead = self.count(number, &[Known::Dead]);
        let running = self.replays.get(&number).filter(|replay| replay.state == ReplayState::Running);
        running.is_some_and(|replay| dead > 0 && dead >= replay.plan.dead_letters_max)
    }

    /// Whether the replay is at the position where this batch starts.
    pub(crate) fn is_at_cursor(&self, number: u32, cursor: Option<&str>) -> bool {
        self.replays.get(&number).is_some_and(|replay| replay.cursor.as_deref() == cursor)
    }

    /// Adds messages to the retry table that are not there yet.
    pub(crate) fn enqueue_replay(&mut self, number: u32, batch: ReplayBatch<'_>, now: Micros) {
        let mut new = Vec::new();
        for message in batch.messages {
            let dedup_id = DedupId { replay: number, ..message.dedup_id };
            if !self.rows.contains_key(&dedup_id) {
                new.push(dedup_id);
                self.set_state(dedup_id, Known::Waiting, now);
                self.append(QueuedRow::new(InboxMessage { dedup_id, ..message.clone() }), now);
            }
        }
        if let Some(replay) = self.replays.get_mut(&number) {
            replay.enqueued += new.len() as u64;
            replay.batches.push((batch.cursor.map(ToOwned::to_owned), new));
            match batch.next_cursor {
                Some(cursor) => replay.cursor = Some(cursor.to_owned()),
                None => replay.state = ReplayState::Finished,
            }
        }
    }

    /// Stops a replay and removes its messages that no member has started. The reader continues before the first of
    /// them.
    pub(crate) fn stop_replay(&mut self, number: u32, now: Micros) {
        let Self { queues, rows, replays, .. } = self;
        let mut removed = BTreeSet::new();
        for queue in queues.values_mut() {
            queue.messages.retain(|_, waiting| {
                let dedup_id = waiting.message.dedup_id;
                let reopened = rows.get(&dedup_id).is_some_and(|row| row.state == Known::Redriven);
                let stays = dedup_id.replay != number
                    || waiting.unfinished_starts > 0
                    || waiting.message.attempts > 0
                    || reopened;
                if !stays {
                    // No broker redelivers a replayed message, so its row is not needed to detect repeats.
                    rows.remove(&dedup_id);
                    removed.insert(dedup_id);
                }
                stays
            });
        }
        queues.retain(|_, queue| !queue.messages.is_empty() || queue.is_claimed(now) || !queue.blocked_by.is_empty());
        if let Some(replay) = replays.get_mut(&number) {
            replay.state = ReplayState::Stopped;
            replay.enqueued -= removed.len() as u64;
            let first =
                replay.batches.iter().find(|(_, enqueued)| enqueued.iter().any(|dedup_id| removed.contains(dedup_id)));
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
            replay.plan.dead_letters_max = dead.saturating_add(dead_more);
            true
        })
    }

    /// The number of messages of a replay that can be handled now.
    fn ready(&self, number: u32, now: Micros) -> u64 {
        let due = self.queues.values().filter(|queue| queue.blocked_by.is_empty() && queue.due_at <= now);
        let waiting = due.flat_map(|queue| queue.messages.values());
        waiting.filter(|waiting| waiting.message.dedup_id.replay == number).count() as u64
    }

    fn count(&self, number: u32, states: &[Known]) -> u64 {
        let rows = self.rows.iter().filter(|(dedup_id, row)| dedup_id.replay == number && states.contains(&row.state));
        rows.count() as u64
    }
}

impl Tables {
    /// The replays of a consumer, newest first.
    pub(crate) fn list_replays(&self, consumer: &str) -> Vec<replays::Replay> {
        let Some(tables) = self.consumers.get(consumer) else { return Vec::new() };
        let newest_first = tables.replays.iter().rev();
        newest_first
            .map(|(number, replay)| replays::Replay {
                number: *number,
                plan: replay.plan.clone(),
                state: replay.state,
                enqueued: replay.enqueued,
                done: tables.count(*number, &[Known::Done, Known::Skipped]),
                dead: tables.count(*number, &[Known::Dead]),
                ready: tables.ready(*number, self.now()),
                cursor: replay.cursor.clone(),
                started_at: timestamp(self.config.started_at, replay.started_at),
            })
            .collect()
    }
}
