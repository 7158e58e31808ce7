//! Deliveries in memory, by lane and queue, and the order in which lanes are served.

use std::collections::{BTreeMap, VecDeque};

use bytestring::ByteString;
use relevo_core::Lane;
use relevo_core::inbox::Held;
use tokio::time::Instant;

use crate::item::Item;
use crate::marks::Marks;

/// Deliveries of one queue: those of a key, or a single message if no order is kept.
#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    stand: Stand,
}

/// State of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stand {
    /// Its first message may be handled.
    #[default]
    Ready,
    /// A worker has some of its messages.
    Running,
    /// Its first message is delayed.
    Asleep,
}

/// One lane, with its deliveries in this process.
#[derive(Debug)]
pub(crate) struct LaneState {
    /// The lane lease, if this member holds it.
    pub(crate) held: Option<Held>,
    /// When the lease is requested next.
    pub(crate) take_at: Instant,
    /// Since when it has messages here while another member holds the lease. A warning is logged if this lasts.
    pub(crate) wanted_since: Option<Instant>,
    /// When the last of its messages left.
    pub(crate) idle_since: Instant,
    /// The broker assigned it to another consumer since its last message arrived.
    pub(crate) gone: bool,
    /// Whether the broker was asked to pause it.
    pub(crate) paused: bool,
    pub(crate) marks: Marks,
    queues: BTreeMap<ByteString, Queue>,
    ready: VecDeque<ByteString>,
    /// Number of its messages in memory, including those at workers.
    count: usize,
}

impl LaneState {
    fn new(now: Instant) -> Self {
        Self {
            held: None,
            take_at: now,
            wanted_since: None,
            idle_since: now,
            gone: false,
            paused: false,
            marks: Marks::default(),
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
    /// most `deep` come from the first queue, because no other worker can take those meanwhile.
    pub(crate) fn next(&mut self, size: usize, deep: usize) -> Vec<Item> {
        let Some(queue) = self.ready.pop_front() else { return Vec::new() };
        let mut unit = Vec::new();
        self.take_from(&queue, &mut unit, size.max(deep));
        if !unit[0].shares {
            return unit;
        }
        let mut passed_by = VecDeque::new();
        while unit.len() < size
            && let Some(queue) = self.ready.pop_front()
        {
            if self.queues[&queue].items.front().is_some_and(|item| item.shares) {
                self.take_from(&queue, &mut unit, size);
            } else {
                passed_by.push_back(queue);
            }
        }
        passed_by.append(&mut self.ready);
        self.ready = passed_by;
        unit
    }

    /// Takes the first message of a queue, and those behind it that can share its transaction.
    fn take_from(&mut self, name: &ByteString, unit: &mut Vec<Item>, size: usize) {
        let queue = self.queues.get_mut(name).expect("a queue that is ready is there");
        queue.stand = Stand::Running;
        let first = queue.items.pop_front().expect("a queue that is ready has a message");
        let shares = first.shares;
        unit.push(first);
        while shares && unit.len() < size && queue.items.front().is_some_and(|item| item.shares) {
            unit.extend(queue.items.pop_front());
        }
    }

    /// Returns a message to the front of its queue.
    pub(crate) fn put_back(&mut self, item: Item) {
        let queue = self.queues.get_mut(item.queue()).expect("a queue stays while a worker has some of it");
        queue.items.push_front(item);
    }

    /// Records that no worker has messages of this queue any more. If `asleep`, its first message waits until `wake`.
    pub(crate) fn ended(&mut self, name: &ByteString, asleep: bool) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        if queue.stand != Stand::Running {
            return; // another message of the same unit belonged to this queue
        }
        if queue.items.is_empty() {
            self.queues.remove(name);
        } else if asleep {
            queue.stand = Stand::Asleep;
        } else {
            queue.stand = Stand::Ready;
            self.ready.push_back(name.clone());
        }
    }

    /// Makes a queue ready again after the delay of its first message.
    pub(crate) fn wake(&mut self, name: &ByteString) {
        if let Some(queue) = self.queues.get_mut(name)
            && queue.stand == Stand::Asleep
        {
            queue.stand = Stand::Ready;
            self.ready.push_back(name.clone());
        }
    }

    /// Removes a message that was settled at the broker.
    pub(crate) fn left(&mut self, now: Instant) {
        self.count -= 1;
        self.idle_since = now;
    }
}

/// All lanes with recent messages.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    pub(crate) map: BTreeMap<Lane, LaneState>,
    count: usize,
    /// The lane that was served last.
    turn: Option<Lane>,
}

impl Lanes {
    /// Number of messages in memory, including those at workers.
    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    /// Adds a delivery.
    pub(crate) fn push(&mut self, item: Item, now: Instant) {
        let lane = self.map.entry(item.arrival.lane.clone()).or_insert_with(|| LaneState::new(now));
        lane.gone = false;
        lane.count += 1;
        self.count += 1;
        if let Some(place) = item.arrival.place {
            lane.marks.came(place);
        }
        let name = item.queue().clone();
        let queue = lane.queues.entry(name.clone()).or_default();
        let is_first = queue.items.is_empty() && queue.stand == Stand::Ready;
        queue.items.push_back(item);
        if is_first {
            lane.ready.push_back(name);
        }
    }

    /// Removes a message that was settled.
    pub(crate) fn left(&mut self, lane: &Lane, now: Instant) {
        self.count -= 1;
        if let Some(lane) = self.map.get_mut(lane) {
            lane.left(now);
        }
    }

    /// The next lane to serve: one with a message for a worker, for which `may` returns `true`.
    pub(crate) fn turn(&mut self, may: impl Fn(&Lane, &LaneState) -> bool) -> Option<Lane> {
        let fits = |(lane, state): &(&Lane, &LaneState)| state.is_ready() && may(lane, state);
        let after = self.turn.as_ref().and_then(|turn| {
            use std::ops::Bound::{Excluded, Unbounded};
            self.map.range::<Lane, _>((Excluded(turn), Unbounded)).find(fits)
        });
        let next = after.or_else(|| self.map.iter().find(fits)).map(|(lane, _)| lane.clone());
        self.turn.clone_from(&next);
        next
    }

    /// Takes the messages that no worker has and that were attempted before, so that their attempts can be recorded.
    pub(crate) fn take_begun(&mut self) -> Vec<(Option<Held>, Item)> {
        let mut begun = Vec::new();
        for lane in self.map.values_mut() {
            for queue in lane.queues.values_mut() {
                // Only the first message of a queue can have been attempted; the broker redelivers those behind it
                // unchanged.
                if queue
                    .items
                    .front()
                    .is_some_and(|item| item.attempts > 0 || item.decided.is_some() || item.noted.is_some())
                {
                    begun.extend(queue.items.pop_front().map(|item| (lane.held.clone(), item)));
                }
            }
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use relevo_core::inbox::{Arrival, Entry};
    use relevo_core::{DeliveryTag, MessageId, Raw};

    use super::*;

    fn item(lane: &str, queue: &str, number: u64, shares: bool) -> Item {
        let arrival = Arrival {
            entry: Entry { id: MessageId::v7(number, [0; 10]), replay: 0 },
            queue: queue.into(),
            raw: Raw::default(),
            address: "orders".into(),
            lane: Lane::new(lane),
            place: Some(number),
            correlation: None,
        };
        let incoming = Err("not read".to_owned());
        Item {
            tag: DeliveryTag::new(number),
            redelivered: false,
            arrival,
            incoming,
            attempts: 0,
            shares,
            noted: None,
            inverted: false,
            refused: 0,
            decided: None,
            span: None,
        }
    }

    fn lanes(items: impl IntoIterator<Item = Item>) -> Lanes {
        let mut lanes = Lanes::default();
        items.into_iter().for_each(|item| lanes.push(item, Instant::now()));
        lanes
    }

    fn numbers(unit: &[Item]) -> Vec<u64> {
        unit.iter().map(|item| item.tag.number()).collect()
    }

    #[test]
    fn one_message_of_a_queue_is_out_at_a_time_and_queues_go_in_parallel() {
        let mut lanes = lanes([item("a", "k", 1, false), item("a", "k", 2, false), item("a", "l", 3, false)]);
        let lane = lanes.map.get_mut(&Lane::new("a")).unwrap();
        assert_eq!(
            (numbers(&lane.next(9, 9)), numbers(&lane.next(9, 9)), numbers(&lane.next(9, 9))),
            (vec![1], vec![3], vec![])
        );
        lane.ended(&"k".into(), false);
        assert_eq!(numbers(&lane.next(9, 9)), [2]);
    }

    #[test]
    fn a_message_that_goes_back_is_the_first_of_its_queue_again() {
        let mut lanes = lanes([item("a", "k", 1, false), item("a", "k", 2, false)]);
        let lane = lanes.map.get_mut(&Lane::new("a")).unwrap();
        let mut unit = lane.next(1, 1);
        lane.put_back(unit.remove(0));
        lane.ended(&"k".into(), true);
        assert!(!lane.is_ready(), "it sleeps");
        lane.wake(&"k".into());
        assert_eq!(numbers(&lane.next(1, 1)), [1]);
    }

    #[test]
    fn a_unit_shares_what_can_be_shared_each_queue_in_order() {
        let all = [("k", 1, true), ("k", 2, true), ("l", 3, false), ("m", 4, true), ("k", 5, false), ("m", 6, true)];
        let mut lanes = lanes(all.map(|(queue, number, shares)| item("a", queue, number, shares)));
        let lane = lanes.map.get_mut(&Lane::new("a")).unwrap();
        assert_eq!(numbers(&lane.next(3, 3)), [1, 2, 4]);
        assert_eq!(numbers(&lane.next(3, 3)), [3], "what was passed by is the next");
        lane.ended(&"k".into(), false);
        assert_eq!(numbers(&lane.next(3, 3)), [5]);
    }

    #[test]
    fn a_unit_that_goes_back_keeps_its_order() {
        let mut lanes = lanes((1..=3).map(|number| item("a", "k", number, true)));
        let lane = lanes.map.get_mut(&Lane::new("a")).unwrap();
        let unit = lane.next(9, 9);
        for mut item in unit.into_iter().rev() {
            item.shares = false;
            lane.put_back(item);
        }
        lane.ended(&"k".into(), false);
        lane.ended(&"k".into(), false);
        assert_eq!((numbers(&lane.next(9, 9)), lane.ready()), (vec![1], 0));
    }

    #[test]
    fn lanes_take_turns() {
        let mut lanes = lanes(["a", "b", "c"].map(|lane| item(lane, lane, 1, false)));
        lanes.push(item("a", "other", 2, false), Instant::now());
        let mut turns = Vec::new();
        while let Some(lane) = lanes.turn(|lane, _| lane.name() != "b") {
            lanes.map.get_mut(&lane).unwrap().next(1, 1);
            turns.push(lane.name().to_owned());
        }
        assert_eq!(turns, ["a", "c", "a"]);
    }

    #[test]
    fn a_lane_is_empty_once_everything_left() {
        let mut lanes = lanes([item("a", "k", 1, false)]);
        let then = Instant::now() + Duration::from_secs(1);
        lanes.left(&Lane::new("a"), then);
        let lane = &lanes.map[&Lane::new("a")];
        assert_eq!((lane.is_empty(), lane.idle_since, lanes.len()), (true, then, 0));
    }
}
