//! A fake broker consumer in memory and virtual time, with lanes, prefetch, tags, pauses and redelivery. The tests with
//! the embedded broker cover the rest of a real broker's behaviour.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::{
    AckOutcome, BrokerConsumer, Class, ConsumerCapabilities, DelayedRetry, Delivery, DeliveryTag, Failure, Lane,
    RawMessage,
};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Messages of the group, shared by its consumers.
#[derive(Clone, Default)]
pub(crate) struct FakeBroker(Arc<BrokerInner>);

#[derive(Default)]
struct BrokerInner {
    state: Mutex<BrokerState>,
    changed: Notify,
    /// Acknowledging and closing wait for each other.
    connection: tokio::sync::Mutex<()>,
}

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fault that a test switches on")]
struct BrokerState {
    lanes: BTreeMap<Lane, VecDeque<StoredMessage>>,
    outstanding: BTreeMap<DeliveryTag, (u64, StoredMessage)>,
    /// Lanes paused by each consumer.
    paused: BTreeSet<(u64, Lane)>,
    /// The consumer of each lane. Lanes that were never moved belong to consumer 1.
    owners: BTreeMap<Lane, u64>,
    closed: BTreeSet<u64>,
    next: u64,
    /// Offsets of settled deliveries, each with the delay of its retry, if any.
    settled: Vec<(u64, Option<Duration>)>,
    failing: bool,
    /// Settling these offsets fails.
    refused: BTreeSet<u64>,
    /// The broker does not report ordered lanes.
    unordered: bool,
    /// The broker does not support delayed retries.
    without_retries: bool,
    /// Number of calls that failed because of `refused`.
    refusals: u64,
    /// How long each call to acknowledge takes.
    ack_duration: Duration,
    /// The reply to the next pause is lost.
    lose_pause_reply: bool,
    received: u64,
}

#[derive(Clone)]
struct StoredMessage {
    lane: Lane,
    raw: RawMessage,
    offset: u64,
    redelivered: bool,
    retry_count: u32,
    due_at: Instant,
}

/// One consumer of the group.
pub(crate) struct FakeConsumer {
    broker: FakeBroker,
    number: u64,
    prefetch: usize,
}

impl FakeBroker {
    /// A consumer that receives the messages of its lanes.
    pub(crate) fn consumer(&self, number: u64) -> FakeConsumer {
        FakeConsumer { broker: self.clone(), number, prefetch: 100 }
    }

    /// Adds a message to a lane and returns its offset.
    pub(crate) fn publish(&self, lane: &str, raw: RawMessage) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        let place = state.next;
        let lane = Lane::new(lane);
        let stored = StoredMessage {
            lane: lane.clone(),
            raw,
            offset: place,
            redelivered: false,
            retry_count: 0,
            due_at: Instant::now(),
        };
        state.lanes.entry(lane).or_default().push_back(stored);
        drop(state);
        self.0.changed.notify_waiters();
        place
    }

    /// Redelivers all outstanding deliveries, as after a crash of their consumer.
    pub(crate) fn redeliver(&self) {
        let mut state = self.lock();
        let mut back: Vec<StoredMessage> =
            std::mem::take(&mut state.outstanding).into_values().map(|(_, stored)| stored).collect();
        back.sort_by_key(|stored| stored.offset);
        for stored in back.into_iter().rev() {
            state.lanes.entry(stored.lane.clone()).or_default().push_front(stored);
        }
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// Assigns a lane to another consumer, which receives its outstanding deliveries again.
    pub(crate) fn move_lane(&self, lane: &str, to: u64) {
        let lane = Lane::new(lane);
        self.lock().owners.insert(lane.clone(), to);
        self.redeliver();
    }

    /// Makes every call fail, or succeed again.
    pub(crate) fn fail(&self, failing: bool) {
        self.lock().failing = failing;
        self.0.changed.notify_waiters();
    }

    /// Reports no ordered lanes, like a broker that assigns a lane to several consumers at once.
    pub(crate) fn without_order(&self) {
        self.lock().unordered = true;
    }

    /// Makes it a broker without delayed retries.
    pub(crate) fn without_retries(&self) {
        self.lock().without_retries = true;
    }

    /// Makes settling this offset fail.
    pub(crate) fn refuse(&self, place: u64) {
        self.lock().refused.insert(place);
    }

    /// Makes settling this offset succeed again.
    pub(crate) fn accept(&self, place: u64) {
        self.lock().refused.remove(&place);
    }

    /// Number of calls that failed because of [`refuse`](Self::refuse).
    pub(crate) fn refusals(&self) -> u64 {
        self.lock().refusals
    }

    /// Makes each call to acknowledge take this long.
    pub(crate) fn slow_acks(&self, duration: Duration) {
        self.lock().ack_duration = duration;
    }

    /// Whether a call to acknowledge is in progress.
    pub(crate) fn is_acknowledging(&self) -> bool {
        self.0.connection.try_lock().is_err()
    }

    /// Applies the next pause, but loses its reply.
    pub(crate) fn lose_next_pause_reply(&self) {
        self.lock().lose_pause_reply = true;
    }

    /// Settled deliveries by offset, in order of settling: acknowledged, or retried after a delay.
    pub(crate) fn settled(&self) -> Vec<(u64, Option<Duration>)> {
        self.lock().settled.clone()
    }

    /// Acknowledged offsets, sorted.
    pub(crate) fn acknowledged(&self) -> Vec<u64> {
        let mut places: Vec<u64> =
            self.settled().into_iter().filter(|(_, delay)| delay.is_none()).map(|(place, _)| place).collect();
        places.sort_unstable();
        places
    }

    /// Number of messages that are neither acknowledged nor outstanding at a consumer.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().lanes.values().map(VecDeque::len).sum()
    }

    /// Number of deliveries so far.
    pub(crate) fn received(&self) -> u64 {
        self.lock().received
    }

    /// Whether consumer 1 paused this lane.
    pub(crate) fn is_paused(&self, lane: &str) -> bool {
        self.lock().paused.contains(&(1, Lane::new(lane)))
    }

    fn lock(&self) -> MutexGuard<'_, BrokerState> {
        self.0.state.lock().expect("nothing panics with it")
    }
}

impl FakeConsumer {
    pub(crate) fn with_prefetch(self, prefetch: usize) -> Self {
        Self { prefetch, ..self }
    }

    fn settle(&self, tag: DeliveryTag, delay: Option<Duration>) -> AckOutcome {
        let mut state = self.broker.lock();
        let outage = || AckOutcome::Failed(Failure::new(Class::Outage, "simulated outage"));
        let place = match state.outstanding.get(&tag) {
            _ if state.failing => return outage(),
            Some((number, stored)) if *number == self.number => stored.offset,
            _ => return AckOutcome::Stale,
        };
        if state.refused.contains(&place) {
            state.refusals += 1;
            return outage();
        }
        let (_, mut stored) = state.outstanding.remove(&tag).expect("it was just there");
        state.settled.push((place, delay));
        if let Some(delay) = delay {
            stored.due_at = Instant::now() + delay;
            stored.retry_count += 1;
            state.lanes.entry(stored.lane.clone()).or_default().push_back(stored);
        }
        drop(state);
        self.broker.0.changed.notify_waiters();
        AckOutcome::Acknowledged
    }

    fn take_deliveries(&self, limit: usize) -> Result<Option<Vec<Delivery>>, Failure> {
        let mut state = self.broker.lock();
        if state.closed.contains(&self.number) {
            return Ok(Some(Vec::new()));
        }
        if state.failing {
            return Err(Failure::new(Class::Outage, "simulated outage"));
        }
        let now = Instant::now();
        let mut deliveries = Vec::new();
        let lanes: Vec<Lane> = state.lanes.keys().cloned().collect();
        for lane in lanes {
            if state.paused.contains(&(self.number, lane.clone()))
                || *state.owners.get(&lane).unwrap_or(&1) != self.number
            {
                continue;
            }
            let mut room = self.prefetch - state.outstanding.values().filter(|(_, stored)| stored.lane == lane).count();
            while room > 0 && deliveries.len() < limit {
                let queue = state.lanes.get_mut(&lane).expect("it is there");
                let Some(index) = queue.iter().position(|stored| stored.due_at <= now) else { break };
                let mut stored = queue.remove(index).expect("it was found");
                state.next += 1;
                let tag = DeliveryTag::new(state.next);
                deliveries.push(Delivery {
                    tag,
                    raw: stored.raw.clone(),
                    address: "orders".into(),
                    lane: lane.clone(),
                    offset: Some(stored.offset),
                    redelivered: stored.redelivered,
                    retry_count: stored.retry_count,
                });
                stored.redelivered = true;
                state.outstanding.insert(tag, (self.number, stored));
                state.received += 1;
                room -= 1;
            }
        }
        Ok((!deliveries.is_empty()).then_some(deliveries))
    }
}

#[async_trait]
impl DelayedRetry for FakeConsumer {
    async fn retry_later(&self, retries: &[(DeliveryTag, Duration)]) -> Vec<AckOutcome> {
        retries.iter().map(|(tag, delay)| self.settle(*tag, Some(*delay))).collect()
    }
}

#[async_trait]
impl BrokerConsumer for FakeConsumer {
    fn capabilities(&self) -> ConsumerCapabilities {
        ConsumerCapabilities { ordered_lanes: !self.broker.lock().unordered, prefetch: self.prefetch }
    }

    fn delayed_retry(&self) -> Option<&dyn DelayedRetry> {
        if self.broker.lock().without_retries { None } else { Some(self) }
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        loop {
            let changed = self.broker.0.changed.notified();
            if let Some(deliveries) = self.take_deliveries(limit)? {
                return Ok(deliveries);
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(Duration::from_millis(50)) => {} // a retry may be due
            }
        }
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        let _connection = self.broker.0.connection.lock().await;
        let duration = self.broker.lock().ack_duration;
        if !duration.is_zero() {
            tokio::time::sleep(duration).await;
        }
        tags.iter().map(|tag| self.settle(*tag, None)).collect()
    }

    async fn pause(&self, lane: &Lane) -> Result<(), Failure> {
        let mut state = self.broker.lock();
        state.paused.insert((self.number, lane.clone()));
        if std::mem::take(&mut state.lose_pause_reply) {
            return Err(Failure::new(Class::Unknown, "simulated lost reply"));
        }
        Ok(())
    }

    async fn resume(&self, lane: &Lane) -> Result<(), Failure> {
        self.broker.lock().paused.remove(&(self.number, lane.clone()));
        self.broker.0.changed.notify_waiters();
        Ok(())
    }

    async fn lag(&self) -> Result<Vec<(Lane, u64)>, Failure> {
        let state = self.broker.lock();
        if state.failing {
            return Err(Failure::new(Class::Outage, "simulated outage"));
        }
        Ok(state.lanes.iter().map(|(lane, stored)| (lane.clone(), stored.len() as u64)).collect())
    }

    async fn close(&self) -> Result<(), Failure> {
        let _connection = self.broker.0.connection.lock().await;
        self.broker.lock().closed.insert(self.number);
        self.broker.redeliver();
        Ok(())
    }
}
