//! Deliveries in memory, by lane and queue, and the order in which lanes are served.

use std::collections::{BTreeMap, VecDeque};

use bytestring::ByteString;
use relevo_core::Lane;
use relevo_core::inbox::LaneLease;
use tokio::time::Instant;

use crate::delivery::PendingDelivery;
use crate::settled_offset::SettledOffset;

/// Deliveries of one queue: those of a key, or a single message if no order is kept.
#[derive(Debug, Default)]
struct KeyQueue {
    deliveries: VecDeque<PendingDelivery>,
    state: QueueState,
}

/// State of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum QueueState {
    /// Its first message may be handled.
    #[default]
    Ready,
    /// A worker has some of its messages.
    Running,
    /// Its first message is delayed.
    Sleeping,
}

/// One lane, with its deliveries in this process.
#[derive(Debug)]
pub(crate) struct LaneQueue {
    /// The lane lease, if this member holds it.
    pub(crate) lease: Option<LaneLease>,
    /// When the lease is requested next.
    pub(crate) acquire_at: Instant,
    /// Since when it has messages here while another member holds the lease. A warning is logged if this lasts.
    pub(crate) wanted_since: Option<Instant>,
    /// When the last of its messages left.
    pub(crate) idle_since: Instant,
    /// The broker assigned it to another consumer since its last message arrived.
    pub(crate) revoked: bool,
    /// Whether it is paused at the broker.
    pub(crate) paused: bool,
    pub(crate) settled_offset: SettledOffset,
    queues: BTreeMap<ByteString, KeyQueue>,
    ready: VecDeque<ByteString>,
    /// Number of its messages in memory, including those at workers.
    count: usize,
}

impl LaneQueue {
    fn new(now: Instant) -> Self {
        Self {
            lease: None,
            acquire_at: now,
            wanted_since: None,
            idle_since: now,
            revoked: false,
            paused: false,
            settled_offset: SettledOffset::default(),
            queues: BTreeMap::new(),
            ready: VecDeque::new(),
            count: 0,
        }
    }

    /// Whether it has no message in memory.
    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a message waits for a worker.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Number of queues that wait for a worker.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// The next messages for one worker: a single one, or up to `size` that can share a worker, in order per queue. At
    /// most `from_first` come from the first queue, because no other worker can take those meanwhile.
    pub(crate) fn next_batch(&mut self, size: usize, from_first: usize) -> Vec<PendingDelivery> {
        let Some(queue) = self.ready.pop_front() else { return Vec::new() };
        let mut batch = Vec::new();
        self.take_batch(&queue, &mut batch, size.max(from_first));
        if !batch[0].can_batch {
            return batch;
        }
        let mut skipped = VecDeque::new();
        while batch.len() < size
            && let Some(queue) = self.ready.pop_front()
        {
            if self.queues[&queue].deliveries.front().is_some_and(|first| first.can_batch) {
                self.take_batch(&queue, &mut batch, size);
            } else {
                skipped.push_back(queue);
            }
        }
        skipped.append(&mut self.ready);
        self.ready = skipped;
        batch
    }

    /// Takes the first message of a queue, and those behind it that can share its transaction.
    fn take_batch(&mut self, name: &ByteString, batch: &mut Vec<PendingDelivery>, size: usize) {
        let queue = self.queues.get_mut(name).expect("a ready queue exists");
        queue.state = QueueState::Running;
        let first = queue.deliveries.pop_front().expect("a ready queue has a message");
        let can_batch = first.can_batch;
        batch.push(first);
        while can_batch && batch.len() < size && queue.deliveries.front().is_some_and(|first| first.can_batch) {
            batch.extend(queue.deliveries.pop_front());
        }
    }

    /// Returns a message to the front of its queue.
    pub(crate) fn requeue(&mut self, delivery: PendingDelivery) {
        let queue = self.queues.get_mut(delivery.queue()).expect("a queue exists while a worker has its messages");
        queue.deliveries.push_front(delivery);
    }

    /// Records that no worker has messages of this queue any more. If `asleep`, the queue waits for [`LaneQueues::sleep_until`].
    pub(crate) fn finish_batch(&mut self, name: &ByteString, asleep: bool) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        if queue.state != QueueState::Running {
            return; // another message of the same batch belonged to this queue
        }
        if queue.deliveries.is_empty() {
            self.queues.remove(name);
        } else if asleep {
            queue.state = QueueState::Sleeping;
        } else {
            queue.state = QueueState::Ready;
            self.ready.push_back(name.clone());
        }
    }

    /// Makes a queue ready again after the delay of its first message.
    fn wake(&mut self, name: &ByteString) {
        if let Some(queue) = self.queues.get_mut(name)
            && queue.state == QueueState::Sleeping
        {
            queue.state = QueueState::Ready;
            self.ready.push_back(name.clone());
        }
    }

    /// Number of messages in delayed queues and in this queue, without those that a worker has.
    pub(crate) fn stalled(&self, running: &ByteString) -> usize {
        let is_stalled =
            |(name, queue): &(&ByteString, &KeyQueue)| queue.state == QueueState::Sleeping || *name == running;
        self.queues.iter().filter(is_stalled).map(|(_, queue)| queue.deliveries.len()).sum()
    }

    /// Removes a message that was settled at the broker.
    pub(crate) fn remove_message(&mut self, now: Instant) {
        self.count -= 1;
        self.idle_since = now;
    }
}

/// All lanes with recent messages.
#[derive(Debug, Default)]
pub(crate) struct LaneQueues {
    pub(crate) map: BTreeMap<Lane, LaneQueue>,
    count: usize,
    /// The lane that was served last.
    last_lane: Option<Lane>,
    /// Queues whose first message is delayed, by the end of the delay and a number that makes the key unique.
    sleeping: BTreeMap<(Instant, u64), (Lane, ByteString)>,
    next_sleeping: u64,
}

impl LaneQueues {
    /// Number of messages in memory, including those at workers.
    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    /// Adds a delivery.
    pub(crate) fn push(&mut self, delivery: PendingDelivery, now: Instant) {
        let lane = self.map.entry(delivery.message.lane.clone()).or_insert_with(|| LaneQueue::new(now));
        lane.revoked = false;
        lane.count += 1;
        self.count += 1;
        if let Some(offset) = delivery.message.offset {
            lane.settled_offset.received(offset);
        }
        let name = delivery.queue().clone();
        let queue = lane.queues.entry(name.clone()).or_default();
        let is_first = queue.deliveries.is_empty() && queue.state == QueueState::Ready;
        queue.deliveries.push_back(delivery);
        if is_first {
            lane.ready.push_back(name);
        }
    }

    /// Removes a message that was settled.
    pub(crate) fn remove_message(&mut self, lane: &Lane, now: Instant) {
        self.count -= 1;
        if let Some(lane) = self.map.get_mut(lane) {
            lane.remove_message(now);
        }
    }

    /// Delays a queue whose batch finished asleep.
    pub(crate) fn sleep_until(&mut self, until: Instant, lane: Lane, queue: ByteString) {
        self.next_sleeping += 1;
        self.sleeping.insert((until, self.next_sleeping), (lane, queue));
    }

    /// Makes the queues ready whose delay is over.
    pub(crate) fn wake(&mut self, now: Instant) {
        while let Some(entry) = self.sleeping.first_entry()
            && entry.key().0 <= now
        {
            let (lane, queue) = entry.remove();
            if let Some(lane) = self.map.get_mut(&lane) {
                lane.wake(&queue);
            }
        }
    }

    /// When the next delay ends.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.sleeping.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next lane to serve: one with a message for a worker, for which `may` returns `true`.
    pub(crate) fn next_lane(&mut self, may: impl Fn(&Lane, &LaneQueue) -> bool) -> Option<Lane> {
        let fits = |(lane, state): &(&Lane, &LaneQueue)| state.is_ready() && may(lane, state);
        let after = self.last_lane.as_ref().and_then(|last| {
            use std::ops::Bound::{Excluded, Unbounded};
            self.map.range::<Lane, _>((Excluded(last), Unbounded)).find(fits)
        });
        let next = after.or_else(|| self.map.iter().find(fits)).map(|(lane, _)| lane.clone());
        self.last_lane.clone_from(&next);
        next
    }

    /// Takes the messages that no worker has and that were attempted before, so that their attempts can be recorded.
    pub(crate) fn drain_attempted(&mut self) -> Vec<(Option<LaneLease>, PendingDelivery)> {
        let mut attempted = Vec::new();
        for lane in self.map.values_mut() {
            for queue in lane.queues.values_mut() {
                // Only the first message of a queue can have been attempted; the broker redelivers those behind it
                // unchanged.
                if queue.deliveries.front().is_some_and(|first| {
                    first.message.attempts > 0 || first.unrecorded_failure.is_some() || first.start_record.is_some()
                }) {
                    attempted.extend(queue.deliveries.pop_front().map(|first| (lane.lease.clone(), first)));
                }
            }
        }
        attempted
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use relevo_core::inbox::{DedupId, InboxMessage};
    use relevo_core::retry::ExponentialBackoff;
    use relevo_core::{DeliveryTag, MessageId, RawMessage};

    use super::*;

    fn delivery(lane: &str, queue: &str, number: u64, can_batch: bool) -> PendingDelivery {
        let message = InboxMessage {
            dedup_id: DedupId { id: MessageId::v7(number, [0; 10]), replay: 0 },
            queue: queue.into(),
            raw: RawMessage::default(),
            address: "orders".into(),
            lane: Lane::new(lane),
            offset: Some(number),
            attempts: 0,
        };
        let incoming = Err("not decoded".to_owned());
        PendingDelivery {
            tag: DeliveryTag::new(number),
            redelivered: false,
            message,
            incoming,
            can_batch,
            start_record: None,
            out_of_order: false,
            store_backoff: ExponentialBackoff::new(Duration::ZERO, Duration::ZERO),
            unrecorded_failure: None,
            span: None,
        }
    }

    fn lanes(deliveries: impl IntoIterator<Item = PendingDelivery>) -> LaneQueues {
        let mut lanes = LaneQueues::default();
        deliveries.into_iter().for_each(|delivery| lanes.push(delivery, Instant::now()));
        lanes
    }

    fn numbers(batch: &[PendingDelivery]) -> Vec<u64> {
        batch.iter().map(|delivery| delivery.tag.number()).collect()
    }

    #[test]
    fn a_key_has_one_message_in_progress_and_keys_run_in_parallel() {
        let mut lanes =
            lanes([delivery("a", "k", 1, false), delivery("a", "k", 2, false), delivery("a", "l", 3, false)]);
        let lane = lanes.map.get_mut(&Lane::new("a")).unwrap();
        assert_eq!(
            (numbers(&lane.next_batch(9, 9)), numbers(&lane.next_batch(9, 9)), numbers(&lane.next_batch(9, 9))),
            (vec![1], vec![3], vec![])
        );
        lane.finish_batch(&"k".into(), false);
        assert_eq!(numbers(&lane.next_batch(9, 9)), [2]);
    }

    #[test]
    fn a_requeued_message_is_the_first_of_its_queue() {
        let mut lanes = lanes([delivery("a", "k", 1, false), delivery("a", "k", 2, false)]);
        let lane = lanes.map.get_mut(&Lane::new("a")).unwrap();
        let mut batch = lane.next_batch(1, 1);
        lane.requeue(batch.remove(0));
        lane.finish_batch(&"k".into(), true);
        assert!(!lane.is_ready(), "it sleeps");
        lane.wake(&"k".into());
        assert_eq!(numbers(&lane.next_batch(1, 1)), [1]);
    }

    #[test]
    fn a_batch_takes_batchable_messages_in_key_order() {
        let all = [("k", 1, true), ("k", 2, true), ("l", 3, false), ("m", 4, true), ("k", 5, false), ("m", 6, true)];
        let mut lanes = lanes(all.map(|(queue, number, can_batch)| delivery("a", queue, number, can_batch)));
        let lane = lanes.map.get_mut(&Lane::new("a")).unwrap();
        assert_eq!(numbers(&lane.next_batch(3, 3)), [1, 2, 4]);
        assert_eq!(numbers(&lane.next_batch(3, 3)), [3], "a skipped message is next");
        lane.finish_batch(&"k".into(), false);
        assert_eq!(numbers(&lane.next_batch(3, 3)), [5]);
    }

    #[test]
    fn a_requeued_batch_keeps_its_order() {
        let mut lanes = lanes((1..=3).map(|number| delivery("a", "k", number, true)));
        let lane = lanes.map.get_mut(&Lane::new("a")).unwrap();
        let batch = lane.next_batch(9, 9);
        for mut delivery in batch.into_iter().rev() {
            delivery.can_batch = false;
            lane.requeue(delivery);
        }
        lane.finish_batch(&"k".into(), false);
        lane.finish_batch(&"k".into(), false);
        assert_eq!((numbers(&lane.next_batch(9, 9)), lane.ready()), (vec![1], 0));
    }

    #[test]
    fn stalled_messages_are_those_of_delayed_queues() {
        let mut lanes = lanes(
            [("k", 1), ("k", 2), ("l", 3), ("m", 4), ("m", 5)]
                .map(|(queue, number)| delivery("a", queue, number, false)),
        );
        let lane = lanes.map.get_mut(&Lane::new("a")).unwrap();
        let mut first = lane.next_batch(1, 1);
        assert_eq!(lane.stalled(&"k".into()), 1, "the one behind the running message");
        lane.requeue(first.remove(0));
        lane.finish_batch(&"k".into(), true);
        assert_eq!((lane.stalled(&"l".into()), lane.stalled(&"m".into())), (3, 4));
    }

    #[test]
    fn lanes_take_turns() {
        let mut lanes = lanes(["a", "b", "c"].map(|lane| delivery(lane, lane, 1, false)));
        lanes.push(delivery("a", "other", 2, false), Instant::now());
        let mut served = Vec::new();
        while let Some(lane) = lanes.next_lane(|lane, _| lane.name() != "b") {
            lanes.map.get_mut(&lane).unwrap().next_batch(1, 1);
            served.push(lane.name().to_owned());
        }
        assert_eq!(served, ["a", "c", "a"]);
    }

    #[test]
    fn a_lane_is_empty_after_its_last_message() {
        let mut lanes = lanes([delivery("a", "k", 1, false)]);
        let then = Instant::now() + Duration::from_secs(1);
        lanes.remove_message(&Lane::new("a"), then);
        let lane = &lanes.map[&Lane::new("a")];
        assert_eq!((lane.is_empty(), lane.idle_since, lanes.len()), (true, then, 0));
    }
}
