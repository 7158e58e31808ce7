//! The operator port of the inboxes.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::inbox::operate::{
    Consumer, DeadFilter, DeadLetter, Fate, Fed, Forgotten, Known, Lane, Mark, Member, Operate, Order, Plan, Portion,
    Queue, Replay, ReplayState, Shown, Trace,
};
use relevo_core::store::StoreError;

use super::desk::{self, Desk};
use super::patience::or_fail;
use crate::outbox::lock;
use crate::state::{Micros, State, timestamp};

/// Counts of messages and dead letters stop here.
const COUNTED_MAX: usize = 10_000;

/// Operator access to all inboxes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Operator(Arc<Mutex<State>>);

impl Operator {
    pub(crate) fn new(state: &Arc<Mutex<State>>) -> Self {
        Self(Arc::clone(state))
    }
}

#[async_trait]
impl Operate for Operator {
    async fn consumers(&self) -> Result<Vec<Consumer>, StoreError> {
        let state = lock(&self.0);
        let clock = Clock::of(&state);
        let known = state.desks.iter().filter(|(_, desk)| desk.is_known());
        Ok(known.map(|(name, desk)| desk.list(name, clock)).collect())
    }

    async fn consumer(&self, name: &str, limit: usize) -> Result<Option<Shown>, StoreError> {
        let state = lock(&self.0);
        let clock = Clock::of(&state);
        Ok(state.known(name).map(|desk| Shown {
            consumer: desk.list(name, clock),
            members: desk.show_members(clock),
            lanes: desk.show_lanes(),
            queues: desk.show_queues(limit, clock),
        }))
    }

    async fn order(&self, consumer: &str, lane: Option<&str>, order: Order) -> Result<bool, StoreError> {
        let mut state = lock(&self.0);
        let desk = state.desks.get_mut(consumer).filter(|desk| desk.is_known());
        Ok(desk.is_some_and(|desk| desk.order(lane, order)))
    }

    async fn forget(&self, consumer: &str) -> Result<Forgotten, StoreError> {
        Ok(lock(&self.0).forget(consumer))
    }

    async fn dead(&self, filter: &DeadFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        Ok(lock(&self.0).dead_letters(filter, limit))
    }

    async fn redrive(&self, mark: &Mark) -> Result<u64, StoreError> {
        or_fail(&self.0, |state| state.redrive(mark)).await
    }

    async fn archive(&self, mark: &Mark) -> Result<u64, StoreError> {
        or_fail(&self.0, |state| state.archive(mark)).await
    }

    async fn trace(&self, id: MessageId) -> Result<Vec<Trace>, StoreError> {
        let state = lock(&self.0);
        let told = Clock::of(&state);
        let traces = state.desks.iter().flat_map(|(consumer, desk)| {
            let of_id = desk.traces.iter().filter(|(entry, _)| entry.id == id);
            of_id.map(move |(_, trace)| trace.show(consumer, told))
        });
        Ok(traces.collect())
    }

    async fn known(&self, id: MessageId) -> Result<Vec<Known>, StoreError> {
        let state = lock(&self.0);
        let clock = Clock::of(&state);
        let known = state.desks.iter().flat_map(|(consumer, desk)| {
            let of_id = desk.rows.iter().filter(|(entry, _)| entry.id == id);
            of_id.map(move |(entry, row)| Known {
                consumer: consumer.clone(),
                entry: *entry,
                state: row.state,
                started: row.started,
                at: Some(clock.told(row.changed)),
            })
        });
        Ok(known.collect())
    }

    async fn begin_replay(&self, plan: &Plan) -> Result<u32, StoreError> {
        let mut state = lock(&self.0);
        let now = state.now();
        Ok(state.desks.entry(plan.consumer.clone()).or_default().begin_replay(plan, now))
    }

    async fn feed(&self, consumer: &str, number: u32, portion: Portion<'_>) -> Result<Fed, StoreError> {
        or_fail(&self.0, |state| {
            let now = state.now();
            let Some(desk) = state.desks.get(consumer) else { return Some(Fed::Ended) };
            // Stopping a replay empties queues, so no transaction may be appending to them.
            if desk.must_stop(number) && state.is_any_queue_locked(consumer) {
                return None;
            }
            let desk = state.desks.get_mut(consumer)?;
            if !desk.runs(number, now) {
                return Some(Fed::Ended);
            }
            if !desk.stands_at(number, portion.from) {
                return Some(Fed::Moved);
            }
            desk.feed(number, portion, now);
            Some(Fed::Kept)
        })
        .await
    }

    async fn stop_replay(&self, consumer: &str, number: u32) -> Result<bool, StoreError> {
        or_fail(&self.0, |state| {
            let now = state.now();
            let desk = state.desks.get(consumer);
            let running = |replay: &desk::Replay| replay.state == ReplayState::Running;
            if !desk.and_then(|desk| desk.replays.get(&number)).is_some_and(running) {
                return Some(false);
            }
            if state.is_any_queue_locked(consumer) {
                return None;
            }
            state.desks.get_mut(consumer)?.stop_replay(number, now);
            Some(true)
        })
        .await
    }

    async fn resume_replay(&self, consumer: &str, number: u32, dead_more: u64) -> Result<bool, StoreError> {
        let mut state = lock(&self.0);
        Ok(state.desks.get_mut(consumer).is_some_and(|desk| desk.resume_replay(number, dead_more)))
    }

    async fn replays(&self, consumer: &str) -> Result<Vec<Replay>, StoreError> {
        Ok(lock(&self.0).replays(consumer))
    }
}

/// The current time, and its conversion to a timestamp.
#[derive(Clone, Copy)]
struct Clock {
    started_at: Timestamp,
    now: Micros,
}

impl Clock {
    fn of(state: &State) -> Self {
        Self { started_at: state.settings.started_at, now: state.now() }
    }

    fn told(self, time: Micros) -> Timestamp {
        timestamp(self.started_at, time)
    }
}

impl Desk {
    fn list(&self, name: &str, clock: Clock) -> Consumer {
        let members = self.members.values();
        let waiting: usize = self.queues.values().map(|queue| queue.messages.len()).sum();
        let dead = self.letters.values().filter(|letter| letter.fate == Fate::Pending).count();
        Consumer {
            name: name.to_owned(),
            paused: self.paused,
            members: u32::try_from(members.clone().filter(|member| member.until > clock.now).count())
                .unwrap_or(u32::MAX),
            beat_at: members.clone().map(|member| member.beat).max().map(|time| clock.told(time)),
            last_message_at: members.filter_map(|member| member.last_message_at).max(),
            waiting: waiting.min(COUNTED_MAX) as u64,
            dead: dead.min(COUNTED_MAX) as u64,
            remembers: self.remembers,
        }
    }

    /// The members, living ones first.
    fn show_members(&self, clock: Clock) -> Vec<Member> {
        let mut members: Vec<Member> = self
            .members
            .values()
            .map(|member| Member {
                name: member.name.clone(),
                alive: member.until > clock.now,
                beat_at: clock.told(member.beat),
                last_message_at: member.last_message_at,
            })
            .collect();
        members.sort_by_key(|member| !member.alive);
        members
    }

    fn show_lanes(&self) -> Vec<Lane> {
        let lanes = self.lanes.iter().map(|(lane, row)| Lane {
            name: lane.name().to_owned(),
            owner: row.owner.and_then(|owner| self.members.get(&owner)).map(|member| member.name.clone()),
            epoch: row.epoch,
            mark: row.mark,
            paused: row.paused,
            breaker: row.breaker.clone(),
            forced: row.forced,
        });
        lanes.collect()
    }

    /// The first queues. Those that wait for an operator come last.
    fn show_queues(&self, limit: usize, clock: Clock) -> Vec<Queue> {
        let shown = self.queues.iter().filter_map(|(name, queue)| {
            let waited_for = queue.held.first().and_then(|entry| self.letters.get(entry));
            let first = queue.messages.values().next();
            let (head, attempts, error) = match (waited_for, first) {
                (Some(letter), _) => (letter.arrival.entry, letter.attempts, &letter.error),
                (None, Some(first)) => (first.arrival.entry, first.attempts, &first.error),
                // The queue is empty and not released yet, so nothing waits in it.
                (None, None) => return None,
            };
            Some(Queue {
                queue: name.clone(),
                head,
                length: queue.messages.len() as u64,
                attempts,
                next_attempt_at: queue.held.is_empty().then(|| clock.told(queue.next)),
                error: error.clone(),
            })
        });
        let mut shown: Vec<Queue> = shown.collect();
        shown.sort_by_key(|queue| (queue.next_attempt_at.is_none(), queue.next_attempt_at));
        shown.truncate(limit);
        shown
    }

    /// Applies an operator's command. Returns `false` if the lane does not exist.
    fn order(&mut self, lane: Option<&str>, order: Order) -> bool {
        let Some(name) = lane else {
            match order {
                Order::Pause | Order::Resume => self.paused = order == Order::Pause,
                Order::OpenBreaker | Order::CloseBreaker | Order::FreeBreaker => {
                    self.lanes.values_mut().for_each(|row| row.order(order));
                }
            }
            return true;
        };
        let found = self.lanes.iter_mut().find(|(lane, _)| lane.name() == name);
        found.map(|(_, row)| row.order(order)).is_some()
    }
}

impl desk::LaneRow {
    const fn order(&mut self, order: Order) {
        match order {
            Order::Pause => self.paused = true,
            Order::Resume => self.paused = false,
            Order::OpenBreaker => self.forced = Some(true),
            Order::CloseBreaker => self.forced = Some(false),
            Order::FreeBreaker => self.forced = None,
        }
    }
}

impl desk::Trace {
    fn show(&self, consumer: &str, clock: Clock) -> Trace {
        Trace {
            consumer: consumer.to_owned(),
            entry: self.arrival.entry,
            state: self.state,
            repeats: self.repeats,
            address: self.arrival.address.to_string(),
            lane: self.arrival.lane.name().to_owned(),
            place: self.arrival.place,
            correlation: self.arrival.correlation.as_ref().map(ToString::to_string),
            at: clock.told(self.at),
        }
    }
}
