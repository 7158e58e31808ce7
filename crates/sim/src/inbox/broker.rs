//! The simulated broker. Each consumer's group has every message once in its lanes, and delivers it until it is
//! acknowledged.

mod state;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use relevo_core::inbox::DedupId;
use relevo_core::store::StoreError;
use relevo_core::{AckOutcome, Delivery, DeliveryTag, Lane, RawMessage};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use self::state::{ConnectionState, GroupState, LaneState, Outstanding, StoredMessage};
use crate::history::MessageName;
use crate::inbox::event::{Case, Event, History};
use crate::inbox::message_names::MessageNames;
use crate::inbox::scenario::Scenario;

/// The address of all messages.
pub const ADDRESS: &str = "orders";

/// One consumer's group.
pub struct Group {
    number: usize,
    scenario: Arc<Scenario>,
    history: Arc<History>,
    names: Arc<MessageNames>,
    state: Mutex<GroupState>,
    changed: Notify,
}

impl Group {
    /// Creates a group without messages.
    pub fn new(number: usize, scenario: Arc<Scenario>, history: Arc<History>, names: Arc<MessageNames>) -> Self {
        let lanes = scenario.consumers[number].lanes;
        let state = GroupState { lanes: (0..lanes).map(|_| LaneState::default()).collect(), ..GroupState::default() };
        Self { number, scenario, history, names, state: Mutex::new(state), changed: Notify::new() }
    }

    /// The name of a lane.
    pub fn lane(number: usize) -> Lane {
        Lane::new(format!("lane-{number}"))
    }

    /// Adds a published message.
    pub fn publish(&self, lane: usize, offset: u64, name: MessageName, dedup_id: DedupId, raw: RawMessage) {
        self.names.insert(self.number, dedup_id.id, name.clone());
        let message =
            StoredMessage { offset, name, id: dedup_id, raw, count: 0, retry_count: 0, due_at: Instant::now() };
        self.state.lock().lanes[lane].waiting.insert(offset, message);
        self.changed.notify_waiters();
    }

    /// Connects a consumer.
    pub fn connect(&self) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let number = state.next;
        state.connections.insert(number, ConnectionState { present: true, ..ConnectionState::default() });
        state.assign_lanes(self.is_shared());
        drop(state);
        self.changed.notify_waiters();
        number
    }

    /// Simulates a consumer that does not respond. Its lanes go to others until it responds again.
    pub fn mark_missing(&self, connection: u64) {
        self.change(|state, shared| {
            if let Some(connected) = state.connections.get_mut(&connection) {
                connected.present = false;
            }
            state.cut(connection);
            state.assign_lanes(shared);
        });
    }

    /// Closes a consumer.
    pub fn close(&self, connection: u64) {
        self.change(|state, shared| {
            if let Some(connected) = state.connections.get_mut(&connection) {
                (connected.present, connected.closed) = (false, true);
            }
            state.cut(connection);
            state.assign_lanes(shared);
        });
    }

    /// Breaks a connection. Its outstanding messages are delivered again.
    pub fn cut(&self, connection: u64) {
        self.change(|state, _| state.cut(connection));
    }

    /// Pauses or resumes a lane for one consumer. `control` numbers these calls, so that a late call is ignored.
    pub fn pause(&self, connection: u64, control: u64, lane: &Lane, pause: bool) {
        self.change(|state, _| {
            let number = (0..state.lanes.len()).find(|number| Self::lane(*number) == *lane);
            let connected = state.connections.get_mut(&connection).filter(|connected| connected.last_control < control);
            if let (Some(number), Some(connected)) = (number, connected) {
                connected.last_control = control;
                if pause {
                    connected.paused.insert(number);
                } else {
                    connected.paused.remove(&number);
                }
            }
        });
    }

    /// Simulates a spontaneous action of a broker. Random numbers choose the action and its target.
    pub fn inject_fault(&self, action: u64, target: usize) {
        let loses_acks = self.plan().forgets_acks;
        let fault = self.change(|state, shared| {
            let lane = target % state.lanes.len();
            let others: Vec<u64> = state.present().filter(|number| Some(*number) != state.lanes[lane].owner).collect();
            match action % 5 {
                0 if !shared && !others.is_empty() => {
                    state.redeliver_lane(lane);
                    state.lanes[lane].owner = Some(others[target % others.len()]);
                    "a lane goes to another member"
                }
                1 if loses_acks => {
                    state.crash();
                    "the broker forgets acknowledgements"
                }
                2 if !self.plan().ordered => {
                    state.duplicate_lane(lane);
                    "messages go to two members at once"
                }
                3 => {
                    let present: Vec<u64> = state.present().collect();
                    if !present.is_empty() {
                        state.cut(present[target % present.len()]);
                    }
                    "a connection to the broker breaks"
                }
                _ => {
                    state.redeliver_lane(lane);
                    "a lane is delivered again"
                }
            }
        });
        self.history.record(Event::Fault(fault));
    }

    /// Waits for the next deliveries to a connection.
    pub async fn receive(self: Arc<Self>, connection: u64, limit: usize) -> Result<DeliveryBatch, StoreError> {
        let cuts = self.mark_present(connection);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let due = {
                let mut state = self.state.lock();
                match state.connections.get(&connection) {
                    Some(connected) if !connected.closed && connected.present && connected.cuts == cuts => {}
                    Some(connected) if !connected.closed => {
                        return Err(StoreError::Unavailable("the connection broke".into()));
                    }
                    _ => return Ok(DeliveryBatch::new(self.clone(), connection, Vec::new())),
                }
                let deliveries = self.deliver(&mut state, connection, limit);
                if !deliveries.is_empty() {
                    drop(state);
                    return Ok(DeliveryBatch::new(self.clone(), connection, deliveries));
                }
                let now = Instant::now();
                let waiting = state.lanes.iter().flat_map(|lane| lane.waiting.values());
                waiting.map(|message| message.due_at).filter(|due| *due > now).min()
            };
            let due = due.unwrap_or_else(|| Instant::now() + Duration::from_hours(1));
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(due) => {}
            }
        }
    }

    /// Marks a consumer as responding again. Returns how often its connection broke.
    fn mark_present(&self, connection: u64) -> u64 {
        self.change(|state, shared| {
            let Some(connected) = state.connections.get_mut(&connection) else { return 0 };
            let (was_present, cuts) = (connected.present || connected.closed, connected.cuts);
            if !was_present {
                connected.present = true;
                state.assign_lanes(shared);
            }
            cuts
        })
    }

    fn deliver(&self, state: &mut GroupState, connection: u64, limit: usize) -> Vec<Delivery> {
        let (now, plan) = (Instant::now(), self.plan());
        let mut deliveries = Vec::new();
        let (count, first) = (state.lanes.len(), usize::try_from(state.next).unwrap_or_default());
        for number in (0..count).map(|offset| (first + offset) % count) {
            let is_paused = state.connections.get(&connection).is_some_and(|own| own.paused.contains(&number));
            if is_paused || !(plan.shared || state.lanes[number].owner == Some(connection)) {
                continue;
            }
            let outstanding = state
                .outstanding
                .values()
                .filter(|outstanding| outstanding.lane == number && outstanding.to == connection)
                .count();
            let room = plan.prefetch.saturating_sub(outstanding).min(limit - deliveries.len());
            let waiting = state.lanes[number].waiting.values().filter(|message| message.due_at <= now);
            let offsets: Vec<u64> = waiting.take(room).map(|message| message.offset).collect();
            for offset in offsets {
                let Some(mut message) = state.lanes[number].waiting.remove(&offset) else { continue };
                message.count += 1;
                state.next += 1;
                let tag = DeliveryTag::new(state.next);
                let case = self.case(&message);
                self.history.record(Event::Delivered { case, to: connection, count: message.count });
                deliveries.push(Delivery {
                    tag,
                    raw: message.raw.clone(),
                    address: ADDRESS.into(),
                    lane: Self::lane(number),
                    offset: Some(offset),
                    redelivered: message.count > 1,
                    retry_count: message.retry_count,
                });
                state.outstanding.insert(tag, Outstanding { to: connection, lane: number, message });
            }
        }
        deliveries
    }

    /// Acknowledges deliveries, or delays them.
    pub fn settle(&self, connection: u64, deliveries: &[(DeliveryTag, Option<Duration>)]) -> Vec<AckOutcome> {
        self.change(|state, _| {
            let settle = |(tag, delay): &(DeliveryTag, Option<Duration>)| match state.outstanding.remove(tag) {
                Some(outstanding) if outstanding.to == connection => {
                    self.settle_one(state, outstanding, *delay);
                    AckOutcome::Acknowledged
                }
                Some(outstanding) => {
                    state.outstanding.insert(*tag, outstanding);
                    AckOutcome::Stale
                }
                None => AckOutcome::Stale,
            };
            deliveries.iter().map(settle).collect()
        })
    }

    fn settle_one(&self, state: &mut GroupState, outstanding: Outstanding, delay: Option<Duration>) {
        let Outstanding { lane, mut message, .. } = outstanding;
        let case = self.case(&message);
        if let Some(delay) = delay {
            self.history.record(Event::RetryScheduled(case));
            message.due_at = Instant::now() + delay;
            message.retry_count += 1;
            if !state.settled.contains(&message.offset) {
                state.lanes[lane].waiting.insert(message.offset, message);
            }
        } else {
            self.history.record(Event::Acknowledged(case));
            state.lanes[lane].waiting.remove(&message.offset);
            state.settled.insert(message.offset);
            state.acknowledged.push((lane, message));
        }
    }

    /// Whether every message was acknowledged.
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.outstanding.is_empty() && state.lanes.iter().all(|lane| lane.waiting.is_empty())
    }

    /// The published messages that the broker has not deleted, in the order of publication.
    pub fn log(&self) -> Vec<(usize, u64, DedupId, RawMessage)> {
        let state = self.state.lock();
        let waiting = state
            .lanes
            .iter()
            .enumerate()
            .flat_map(|(lane, queue)| queue.waiting.values().map(move |message| (lane, message)));
        let all = waiting
            .chain(state.outstanding.values().map(|out| (out.lane, &out.message)))
            .chain(state.acknowledged.iter().map(|(lane, message)| (*lane, message)));
        let by_offset: BTreeMap<u64, (usize, u64, DedupId, RawMessage)> = all
            .map(|(lane, message)| (message.offset, (lane, message.offset, message.id, message.raw.clone())))
            .collect();
        by_offset.into_values().collect()
    }

    fn case(&self, message: &StoredMessage) -> Case {
        Case { consumer: self.number, replay: 0, name: message.name.clone() }
    }

    fn plan(&self) -> &crate::inbox::scenario::ConsumerPlan {
        &self.scenario.consumers[self.number]
    }

    /// The maximum number of outstanding deliveries per lane.
    pub fn prefetch(&self) -> usize {
        self.plan().prefetch
    }

    /// Whether every member receives every lane.
    pub fn is_shared(&self) -> bool {
        self.plan().shared
    }

    fn change<T>(&self, change: impl FnOnce(&mut GroupState, bool) -> T) -> T {
        let result = change(&mut self.state.lock(), self.is_shared());
        self.changed.notify_waiters();
        result
    }
}

/// Deliveries on their way. If they are dropped without being taken, their connection broke.
pub struct DeliveryBatch {
    group: Arc<Group>,
    connection: u64,
    deliveries: Option<Vec<Delivery>>,
}

impl DeliveryBatch {
    const fn new(group: Arc<Group>, connection: u64, deliveries: Vec<Delivery>) -> Self {
        Self { group, connection, deliveries: Some(deliveries) }
    }

    /// Takes the deliveries on arrival.
    pub fn take(mut self) -> Vec<Delivery> {
        self.deliveries.take().unwrap_or_default()
    }
}

impl Drop for DeliveryBatch {
    fn drop(&mut self) {
        if self.deliveries.take().is_some_and(|deliveries| !deliveries.is_empty()) {
            self.group.cut(self.connection);
        }
    }
}
