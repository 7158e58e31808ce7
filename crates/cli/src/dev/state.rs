//! The state of the demo for the terminal and the page: switches, counts, latencies and events.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use relevo_core::MessageId;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::orders;
use super::verify::Consistency;

/// The number of seconds in the chart of the page.
const HISTORY: usize = 60;
/// The number of events on the page.
const EVENTS: usize = 40;
/// The maximum number of messages whose commit time is remembered for their latency.
const IN_PROGRESS_MAX: usize = 100_000;

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeyState {
    /// Its messages flow.
    Normal,
    /// Its message was rejected and is retried.
    Parked,
    /// Its message was dead-lettered, and the key waits for an operator.
    Dead,
}

/// The numbers of waiting messages, as the outbox and the broker last reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct QueueDepths {
    pub(crate) pending: i64,
    pub(crate) parked: i64,
    pub(crate) dead: i64,
    /// Messages at the broker that shipping has not settled.
    pub(crate) lag: i64,
}

/// The median and the 99th percentile of some latencies, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// The counts of this run. `committed` and `applied` include earlier runs in the data directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) committed: u64,
    pub(crate) rolled_back: u64,
    /// Messages that relays passed to the broker.
    pub(crate) sent: u64,
    /// Messages that the broker confirmed.
    pub(crate) published: u64,
    pub(crate) applied: u64,
    /// Repeats that the inbox recognised.
    pub(crate) duplicates: u64,
}

/// Messages per second in the last second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Rates {
    pub(crate) committed: f64,
    pub(crate) sent: f64,
    pub(crate) published: f64,
    pub(crate) applied: f64,
}

/// The relay, as its supervisor sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RelayState {
    pub(crate) name: String,
    /// Leased shards. None after a crash, until the leases of the crashed relay expire.
    pub(crate) shards: u64,
    /// The remaining time of the crashed relay's leases.
    pub(crate) lease_remaining_ms: Option<u64>,
}

/// One second of the demo.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DemoSample {
    pub(crate) rates: Rates,
    pub(crate) latency: Latency,
    pub(crate) depths: QueueDepths,
    pub(crate) counts: Counts,
    pub(crate) parked_keys: usize,
}

/// Everything that the parts of the demo report, and the switches that the page sets.
#[derive(Debug)]
pub(crate) struct DemoState {
    started: Instant,
    /// Commands for another terminal.
    commands: Vec<String>,
    broker_up: watch::Sender<bool>,
    /// Whether the demo provokes failures by itself.
    automatic: AtomicBool,
    /// Whether the next message of the shop is rejected.
    reject_next: AtomicBool,
    data: Mutex<DemoData>,
}

#[derive(Debug)]
struct DemoData {
    counts: Counts,
    /// Changes that earlier runs applied.
    applied_before: u64,
    depths: QueueDepths,
    relay: RelayState,
    consistency: Consistency,
    changes: BTreeMap<u32, u64>,
    /// When messages in progress were committed.
    in_progress: HashMap<MessageId, Instant>,
    /// Latencies from commit to effect since the last sample.
    latencies: Vec<Duration>,
    latency: Latency,
    sampled_at: Instant,
    sampled: Counts,
    rates: Rates,
    /// One entry per second, the newest last. `None` if nothing was applied.
    history: VecDeque<Option<Latency>>,
    events: VecDeque<Event>,
    /// Events that the terminal has not printed yet.
    unprinted: Vec<String>,
    /// Keys that do not flow.
    held: BTreeMap<String, KeyState>,
}

#[derive(Clone, Debug, Serialize)]
struct Event {
    seconds: f64,
    text: String,
}

/// An order on the page.
#[derive(Debug, Serialize)]
struct Order {
    number: u32,
    changes: u64,
    state: KeyState,
}

/// The page's view of the state.
#[derive(Debug, Serialize)]
pub(crate) struct PageState {
    seconds: f64,
    commands: Vec<String>,
    broker_up: bool,
    automatic: bool,
    counts: Counts,
    rates: Rates,
    depths: QueueDepths,
    relay: RelayState,
    /// The last check of the guarantees.
    checked: Consistency,
    latency: Latency,
    history: Vec<Option<Latency>>,
    orders: Vec<Order>,
    events: Vec<Event>,
}

impl DemoState {
    pub(crate) fn new(commands: Vec<String>, changes: BTreeMap<u32, u64>, consistency: Consistency) -> Self {
        let started = Instant::now();
        let counts = Counts { committed: consistency.committed, applied: consistency.applied, ..Counts::default() };
        let data = DemoData {
            counts,
            applied_before: consistency.applied,
            depths: QueueDepths::default(),
            relay: RelayState::default(),
            consistency,
            changes,
            in_progress: HashMap::new(),
            latencies: Vec::new(),
            latency: Latency::default(),
            sampled_at: started,
            sampled: counts,
            rates: Rates::default(),
            history: VecDeque::new(),
            events: VecDeque::new(),
            unprinted: Vec::new(),
            held: BTreeMap::new(),
        };
        Self {
            started,
            commands,
            broker_up: watch::Sender::new(true),
            automatic: AtomicBool::new(true),
            reject_next: AtomicBool::new(false),
            data: Mutex::new(data),
        }
    }

    /// Whether the broker runs.
    pub(crate) fn is_broker_up(&self) -> bool {
        *self.broker_up.borrow()
    }

    /// Stops or starts the broker.
    pub(crate) fn set_broker_up(&self, up: bool) {
        self.broker_up.send_replace(up);
    }

    /// Waits until the broker is stopped.
    pub(crate) async fn broker_stopped(&self) {
        let mut up = self.broker_up.subscribe();
        up.wait_for(|up| !up).await.expect("the sender is in `self`");
    }

    /// Whether the demo provokes failures by itself.
    pub(crate) fn is_automatic(&self) -> bool {
        self.automatic.load(Ordering::Relaxed)
    }

    /// From now on, only the page provokes failures and redrives dead letters. Returns whether this is new.
    pub(crate) fn end_automatic(&self) -> bool {
        self.automatic.swap(false, Ordering::Relaxed)
    }

    /// Has the next message of the shop rejected.
    pub(crate) fn reject_next(&self) {
        self.reject_next.store(true, Ordering::Relaxed);
    }

    /// Whether to reject the next message. Returns `true` once per request.
    pub(crate) fn take_rejection(&self) -> bool {
        self.reject_next.swap(false, Ordering::Relaxed)
    }

    /// A transaction is about to commit. Call it before the commit: the effect may happen before the commit returns.
    pub(crate) fn commits(&self, id: MessageId) {
        let mut data = self.data();
        if data.in_progress.len() < IN_PROGRESS_MAX {
            data.in_progress.insert(id, Instant::now());
        }
    }

    /// A transaction has committed. `changes` is the number of changes of the order so far.
    pub(crate) fn committed(&self, order: u32, changes: u64) {
        let mut data = self.data();
        data.counts.committed += 1;
        data.changes.insert(order, changes);
    }

    /// A transaction has rolled back.
    pub(crate) fn rolled_back(&self) {
        self.data().counts.rolled_back += 1;
    }

    /// The effects of these messages have committed.
    pub(crate) fn applied(&self, ids: impl Iterator<Item = MessageId>) {
        let mut data = self.data();
        for id in ids {
            if let Some(committed) = data.in_progress.remove(&id) {
                data.latencies.push(committed.elapsed());
            }
        }
    }

    /// Sets the counts of the consumer in this run.
    pub(crate) fn set_handled(&self, applied: u64, duplicates: u64) {
        let mut data = self.data();
        data.counts.applied = data.applied_before + applied;
        data.counts.duplicates = duplicates;
    }

    /// Sets the state and the counts of all relays in this run.
    pub(crate) fn set_relay(&self, relay: RelayState, sent: u64, published: u64) {
        let mut data = self.data();
        data.relay = relay;
        (data.counts.sent, data.counts.published) = (sent, published);
    }

    /// A message of a key was rejected, or the key continues.
    pub(crate) fn set_key(&self, key: &str, state: KeyState) {
        match state {
            KeyState::Parked => self.event(format!("{key}: rejected, parked and retried; all other keys continue")),
            KeyState::Dead => self.event(format!("{key}: rejected and dead-lettered; the key waits for an operator")),
            KeyState::Normal => self.event(format!("{key}: continues in order")),
        }
        let mut data = self.data();
        match state {
            KeyState::Normal => data.held.remove(key),
            KeyState::Parked | KeyState::Dead => data.held.insert(key.to_owned(), state),
        };
    }

    /// Adds an event that the terminal and the page show.
    pub(crate) fn event(&self, text: impl Into<String>) {
        let text = text.into();
        let mut data = self.data();
        data.events.truncate(EVENTS - 1);
        data.events.push_front(Event { seconds: self.started.elapsed().as_secs_f64(), text: text.clone() });
        data.unprinted.push(text);
    }

    /// Sets the numbers of waiting messages.
    pub(crate) fn set_depths(&self, depths: QueueDepths) {
        self.data().depths = depths;
    }

    /// Sets the result of the last check of the guarantees.
    pub(crate) fn set_consistency(&self, consistency: Consistency) {
        self.data().consistency = consistency;
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> Counts {
        self.data().counts
    }

    /// The time since the start.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Events since the last call.
    pub(crate) fn take_unprinted(&self) -> Vec<String> {
        std::mem::take(&mut self.data().unprinted)
    }

    /// The rates and latencies since the last call. It is called about once a second.
    pub(crate) fn sample(&self) -> DemoSample {
        let mut guard = self.data();
        let data = &mut *guard;
        let elapsed = data.sampled_at.elapsed();
        data.sampled_at = Instant::now();
        data.rates = Rates::between(&data.sampled, &data.counts, elapsed);
        data.sampled = data.counts;
        let latency = Latency::of(&mut std::mem::take(&mut data.latencies));
        data.latency = latency.unwrap_or(data.latency);
        if data.history.len() == HISTORY {
            data.history.pop_front();
        }
        data.history.push_back(latency);
        let parked_keys = data.held.values().filter(|state| **state == KeyState::Parked).count();
        let DemoData { rates, latency, depths, counts, .. } = *data;
        DemoSample { rates, latency, depths, counts, parked_keys }
    }

    /// The state that the page shows.
    pub(crate) fn page(&self) -> PageState {
        let data = self.data();
        let order = |(number, changes): (&u32, &u64)| {
            let state = data.held.get(&orders::key(*number)).copied().unwrap_or(KeyState::Normal);
            Order { number: *number, changes: *changes, state }
        };
        PageState {
            seconds: self.started.elapsed().as_secs_f64(),
            commands: self.commands.clone(),
            broker_up: self.is_broker_up(),
            automatic: self.is_automatic(),
            counts: data.counts,
            rates: data.rates,
            depths: data.depths,
            relay: data.relay.clone(),
            checked: data.consistency,
            latency: data.latency,
            history: data.history.iter().copied().collect(),
            orders: data.changes.iter().map(order).collect(),
            events: data.events.iter().cloned().collect(),
        }
    }

    fn data(&self) -> MutexGuard<'_, DemoData> {
        // No code panics while the lock is held.
        self.data.lock()
    }
}

impl Rates {
    fn between(before: &Counts, now: &Counts, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64().max(f64::EPSILON);
        let rate =
            |before: u64, now: u64| f64::from(u32::try_from(now.saturating_sub(before)).unwrap_or(u32::MAX)) / seconds;
        Self {
            committed: rate(before.committed, now.committed),
            sent: rate(before.sent, now.sent),
            published: rate(before.published, now.published),
            applied: rate(before.applied, now.applied),
        }
    }
}

impl Latency {
    /// `None` without latencies.
    fn of(latencies: &mut [Duration]) -> Option<Self> {
        latencies.sort_unstable();
        let at = |percent: usize| {
            let rank = (latencies.len() * percent).div_ceil(100);
            latencies.get(rank.checked_sub(1)?).map(|latency| latency.as_secs_f64() * 1000.0)
        };
        Some(Self { p50_ms: at(50)?, p99_ms: at(99)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> DemoState {
        let consistency = Consistency { committed: 12, applied: 11, missing: 1, ..Consistency::default() };
        DemoState::new(Vec::new(), BTreeMap::from([(1, 5), (2, 7)]), consistency)
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let mut latencies: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(Latency::of(&mut latencies), Some(Latency { p50_ms: 100.0, p99_ms: 198.0 }));
        assert_eq!(Latency::of(&mut []), None);
    }

    #[tokio::test]
    async fn a_run_continues_the_counts_of_the_last_run() {
        let state = state();
        state.committed(1, 6);
        state.set_handled(1, 0);
        let counts = state.counts();
        assert_eq!((counts.committed, counts.applied), (13, 12));
        assert!(state.sample().rates.applied > 0.0);
    }

    #[tokio::test]
    async fn the_page_shows_parked_keys() {
        let state = state();
        state.set_key("order-2", KeyState::Parked);
        assert_eq!(state.page().orders[1].state, KeyState::Parked);
        state.set_key("order-2", KeyState::Normal);
        assert_eq!(state.page().orders[1].state, KeyState::Normal);
        assert_eq!(state.page().events.len(), 2);
    }

    #[tokio::test]
    async fn a_requested_rejection_happens_once() {
        let state = state();
        assert!(!state.take_rejection());
        state.reject_next();
        assert!(state.take_rejection() && !state.take_rejection());
    }
}
