//! The operator port of the inboxes.

use async_trait::async_trait;
use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::dead_letters::DeadLetterState;
use relevo_core::inbox::admin::{
    ConsumerAdmin, ConsumerControl, ConsumerDetails, ConsumerSummary, InboxRecord, LaneInfo, MemberInfo, RemoveOutcome,
    RetryQueueInfo,
};
use relevo_core::inbox::replays::{ConsumerReplays, EnqueueOutcome, Replay, ReplayBatch, ReplayPlan, ReplayState};
use relevo_core::store::StoreError;

use super::lock_timeout::or_busy_error;
use super::tables::{self, ConsumerTables};
use crate::operator::Operator;
use crate::state::{Micros, Tables, timestamp};

/// Counts of messages and dead letters stop here.
const COUNT_MAX: usize = 10_000;

#[async_trait]
impl ConsumerAdmin for Operator {
    async fn list_consumers(&self) -> Result<Vec<ConsumerSummary>, StoreError> {
        let state = self.0.lock();
        let clock = Clock::of(&state);
        let known = state.consumers.iter().filter(|(_, tables)| tables.is_known());
        Ok(known.map(|(name, tables)| tables.summary(name, clock)).collect())
    }

    async fn get_consumer(&self, name: &str, limit: usize) -> Result<Option<ConsumerDetails>, StoreError> {
        let state = self.0.lock();
        let clock = Clock::of(&state);
        Ok(state.known_consumer(name).map(|tables| ConsumerDetails {
            summary: tables.summary(name, clock),
            members: tables.show_members(clock),
            lanes: tables.show_lanes(),
            queues: tables.show_queues(limit, clock),
        }))
    }

    async fn set_control(
        &self,
        consumer: &str,
        lane: Option<&str>,
        control: ConsumerControl,
    ) -> Result<bool, StoreError> {
        let mut state = self.0.lock();
        let tables = state.consumers.get_mut(consumer).filter(|tables| tables.is_known());
        Ok(tables.is_some_and(|tables| tables.set_control(lane, control)))
    }

    async fn remove_consumer(&self, consumer: &str) -> Result<RemoveOutcome, StoreError> {
        Ok(self.0.lock().remove_consumer(consumer))
    }

    async fn find_message(&self, id: MessageId) -> Result<Vec<InboxRecord>, StoreError> {
        let state = self.0.lock();
        let clock = Clock::of(&state);
        let known = state.consumers.iter().flat_map(|(consumer, tables)| {
            let of_id = tables.rows.iter().filter(|(dedup_id, _)| dedup_id.id == id);
            of_id.map(move |(dedup_id, row)| InboxRecord {
                consumer: consumer.clone(),
                dedup_id: *dedup_id,
                state: row.state,
                unfinished_starts: row.unfinished_starts,
                at: Some(clock.timestamp(row.changed_at)),
            })
        });
        Ok(known.collect())
    }
}

#[async_trait]
impl ConsumerReplays for Operator {
    async fn create_replay(&self, plan: &ReplayPlan) -> Result<u32, StoreError> {
        let mut state = self.0.lock();
        let now = state.now();
        Ok(state.consumers.entry(plan.consumer.clone()).or_default().create_replay(plan, now))
    }

    async fn enqueue_replay(
        &self,
        consumer: &str,
        number: u32,
        batch: ReplayBatch<'_>,
    ) -> Result<EnqueueOutcome, StoreError> {
        or_busy_error(&self.0, |state| {
            let now = state.now();
            let Some(tables) = state.consumers.get(consumer) else { return Some(EnqueueOutcome::NotRunning) };
            // Stopping a replay empties queues, so no transaction may be appending to them.
            if tables.must_stop(number) && state.is_any_queue_locked(consumer) {
                return None;
            }
            let tables = state.consumers.get_mut(consumer)?;
            if !tables.is_running(number, now) {
                return Some(EnqueueOutcome::NotRunning);
            }
            if !tables.is_at_cursor(number, batch.cursor) {
                return Some(EnqueueOutcome::CursorMoved);
            }
            tables.enqueue_replay(number, batch, now);
            Some(EnqueueOutcome::Enqueued)
        })
        .await
    }

    async fn stop_replay(&self, consumer: &str, number: u32) -> Result<bool, StoreError> {
        or_busy_error(&self.0, |state| {
            let now = state.now();
            let tables = state.consumers.get(consumer);
            let running = |replay: &tables::ReplayRow| replay.state == ReplayState::Running;
            if !tables.and_then(|tables| tables.replays.get(&number)).is_some_and(running) {
                return Some(false);
            }
            if state.is_any_queue_locked(consumer) {
                return None;
            }
            state.consumers.get_mut(consumer)?.stop_replay(number, now);
            Some(true)
        })
        .await
    }

    async fn resume_replay(&self, consumer: &str, number: u32, dead_more: u64) -> Result<bool, StoreError> {
        let mut state = self.0.lock();
        Ok(state.consumers.get_mut(consumer).is_some_and(|tables| tables.resume_replay(number, dead_more)))
    }

    async fn list_replays(&self, consumer: &str) -> Result<Vec<Replay>, StoreError> {
        Ok(self.0.lock().list_replays(consumer))
    }
}

/// The current time, and its conversion to a timestamp.
#[derive(Clone, Copy)]
struct Clock {
    started_at: Timestamp,
    now: Micros,
}

impl Clock {
    fn of(state: &Tables) -> Self {
        Self { started_at: state.config.started_at, now: state.now() }
    }

    fn timestamp(self, time: Micros) -> Timestamp {
        timestamp(self.started_at, time)
    }
}

impl ConsumerTables {
    fn summary(&self, name: &str, clock: Clock) -> ConsumerSummary {
        let members = self.members.values();
        let waiting: usize = self.queues.values().map(|queue| queue.messages.len()).sum();
        let dead = self.dead_letters.values().filter(|dead_letter| dead_letter.state == DeadLetterState::Dead).count();
        ConsumerSummary {
            name: name.to_owned(),
            paused: self.paused,
            members: u32::try_from(members.clone().filter(|member| member.expires_at > clock.now).count())
                .unwrap_or(u32::MAX),
            heartbeat_at: members.clone().map(|member| member.heartbeat_at).max().map(|time| clock.timestamp(time)),
            last_message_at: members.filter_map(|member| member.last_message_at).max(),
            waiting: waiting.min(COUNT_MAX) as u64,
            dead: dead.min(COUNT_MAX) as u64,
            done_retention: self.done_retention,
        }
    }

    /// The members, living ones first.
    fn show_members(&self, clock: Clock) -> Vec<MemberInfo> {
        let mut members: Vec<MemberInfo> = self
            .members
            .values()
            .map(|member| MemberInfo {
                name: member.name.clone(),
                alive: member.expires_at > clock.now,
                heartbeat_at: clock.timestamp(member.heartbeat_at),
                last_message_at: member.last_message_at,
            })
            .collect();
        members.sort_by_key(|member| !member.alive);
        members
    }

    fn show_lanes(&self) -> Vec<LaneInfo> {
        let lanes = self.lanes.iter().map(|(lane, row)| LaneInfo {
            name: lane.name().to_owned(),
            owner: row.owner.and_then(|owner| self.members.get(&owner)).map(|member| member.name.clone()),
            epoch: row.epoch,
            settled_offset: row.settled_offset,
            paused: row.paused,
            breaker: row.breaker.clone(),
            breaker_override: row.breaker_override,
        });
        lanes.collect()
    }

    /// The first queues. Those that wait for an operator come last.
    fn show_queues(&self, limit: usize, clock: Clock) -> Vec<RetryQueueInfo> {
        let shown = self.queues.iter().filter_map(|(name, queue)| {
            let blocked_by = queue.blocked_by.first().and_then(|dedup_id| self.dead_letters.get(dedup_id));
            let first = queue.messages.values().next();
            let (head, attempts, error) = match (blocked_by, first) {
                (Some(dead_letter), _) => {
                    (dead_letter.message.dedup_id, dead_letter.message.attempts, &dead_letter.error)
                }
                (None, Some(first)) => (first.message.dedup_id, first.message.attempts, &first.error),
                // The queue is empty and not released yet, so nothing waits in it.
                (None, None) => return None,
            };
            Some(RetryQueueInfo {
                queue: name.clone(),
                head,
                length: queue.messages.len() as u64,
                attempts,
                next_attempt_at: queue.blocked_by.is_empty().then(|| clock.timestamp(queue.due_at)),
                error: error.clone(),
            })
        });
        let mut shown: Vec<RetryQueueInfo> = shown.collect();
        shown.sort_by_key(|queue| (queue.next_attempt_at.is_none(), queue.next_attempt_at));
        shown.truncate(limit);
        shown
    }

    /// Applies an operator's command. Returns `false` if the lane does not exist.
    fn set_control(&mut self, lane: Option<&str>, control: ConsumerControl) -> bool {
        let Some(name) = lane else {
            match control {
                ConsumerControl::Pause | ConsumerControl::Resume => self.paused = control == ConsumerControl::Pause,
                ConsumerControl::OpenBreaker | ConsumerControl::CloseBreaker | ConsumerControl::AutoBreaker => {
                    self.lanes.values_mut().for_each(|row| row.set_control(control));
                }
            }
            return true;
        };
        let found = self.lanes.iter_mut().find(|(lane, _)| lane.name() == name);
        found.map(|(_, row)| row.set_control(control)).is_some()
    }
}

impl tables::LaneRow {
    const fn set_control(&mut self, control: ConsumerControl) {
        match control {
            ConsumerControl::Pause => self.paused = true,
            ConsumerControl::Resume => self.paused = false,
            ConsumerControl::OpenBreaker => self.breaker_override = Some(true),
            ConsumerControl::CloseBreaker => self.breaker_override = Some(false),
            ConsumerControl::AutoBreaker => self.breaker_override = None,
        }
    }
}
