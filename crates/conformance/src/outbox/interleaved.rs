//! Many concurrent writers that commit in any order, read through pages of any length.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::MessageId;
use relevo_core::outbox::LogEntry;

use crate::outbox::harness::{Harness, WriteTransaction, draft};
use crate::outbox::test_relay::{LONG, TestRelay};

/// A small random generator, so that a failure can name its seed.
struct Random(u64);

impl Random {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % sides
    }
}

/// The history of the case: writers with the keys they locked, and the committed messages.
struct Writers<W> {
    open: Vec<OpenWriter<W>>,
    /// Committed messages per key, in the order of the locks.
    committed: BTreeMap<usize, Vec<MessageId>>,
}

/// A writer, the keys it has locked, and the messages it emitted.
type OpenWriter<W> = (W, BTreeSet<usize>, Vec<(usize, MessageId)>);

impl<W: WriteTransaction> Writers<W> {
    fn new() -> Self {
        Self { open: Vec::new(), committed: BTreeMap::new() }
    }

    /// Performs one random action: begin, emit under a lock that lasts until the end, commit or roll back.
    async fn random_step(&mut self, h: &impl Harness<Writer = W>, dice: &mut Random) {
        let action = dice.roll(10);
        if self.open.is_empty() || (action == 0 && self.open.len() < 6) {
            match h.try_begin_second().await {
                Some(writer) => self.open.push((writer, BTreeSet::new(), Vec::new())),
                None => assert!(h.capabilities().single_writer && !self.open.is_empty(), "only one writer is open"),
            }
            return;
        }
        let index = dice.roll(self.open.len());
        if action < 7 {
            let key = dice.roll(12);
            if self.open.iter().enumerate().any(|(other, (_, keys, _))| other != index && keys.contains(&key)) {
                return; // another writer holds the lock of the key, so a real one would wait
            }
            let (writer, keys, emitted) = &mut self.open[index];
            keys.insert(key);
            emitted.push((key, writer.emit(draft(&format!("key-{key}"))).await.expect("a new id")));
        } else {
            let (writer, _, emitted) = self.open.swap_remove(index);
            if action == 7 {
                writer.rollback().await;
            } else {
                writer.commit().await;
                for (key, id) in emitted {
                    self.committed.entry(key).or_default().push(id);
                }
            }
        }
    }

    /// Whether the only writer is open, so that relays can only read.
    fn blocks_other_writers(&self, h: &impl Harness) -> bool {
        h.capabilities().single_writer && !self.open.is_empty()
    }

    async fn finish(&mut self) {
        for (writer, _, emitted) in self.open.drain(..) {
            writer.commit().await;
            for (key, id) in emitted {
                self.committed.entry(key).or_default().push(id);
            }
        }
    }

    /// Checks that all committed messages were read once, in order per key.
    fn assert_all_read_in_order(&self, read: &[LogEntry], seed: u64) {
        for (key, expected) in &self.committed {
            let name = format!("key-{key}");
            let actual: Vec<MessageId> =
                read.iter().filter(|entry| *entry.message.key == *name).map(|entry| entry.message.id).collect();
            assert_eq!(&actual, expected, "seed {seed}, key {key}");
        }
        let total: usize = self.committed.values().map(Vec::len).sum();
        assert_eq!(read.len(), total, "seed {seed}: every message was read once");
    }
}

/// One relay and many writers.
pub async fn interleaved_writers_lose_repeat_and_reorder_nothing(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let mut read = Vec::new();
    let mut writers = Writers::new();
    let seed = 7;
    let mut dice = Random(seed);
    for _ in 0..600 {
        writers.random_step(h, &mut dice).await;
        if dice.roll(6) == 0 {
            for (leases, page) in relay.read_groups(1 + dice.roll(7)).await {
                // Without settling, the same messages are read again later.
                if !writers.blocks_other_writers(h) {
                    read.extend(page.entries);
                    relay.settle_some(&leases, page.end, Vec::new()).await;
                }
            }
        }
    }
    writers.finish().await;
    read.extend(relay.drain(3).await);
    writers.assert_all_read_in_order(&read, seed);
}

/// Two relays that come and go, so that shards are at different positions and change owners.
pub async fn interleaved_writers_and_moving_shards_lose_and_repeat_nothing(h: &mut impl Harness) {
    let mut relays = [TestRelay::new(h.store().await, 1), TestRelay::new(h.store().await, 2)];
    let mut read = Vec::new();
    let mut writers = Writers::new();
    let seed = 11;
    let mut dice = Random(seed);
    for _ in 0..600 {
        writers.random_step(h, &mut dice).await;
        let relay = &mut relays[dice.roll(2)];
        let action = dice.roll(24);
        if action < 7 && writers.blocks_other_writers(h) {
            relay.read_groups(1 + dice.roll(7)).await;
            continue;
        }
        match action {
            0..4 => {
                for (leases, page) in relay.read_groups(1 + dice.roll(7)).await {
                    // Some groups are not settled and read the same messages again later.
                    if dice.roll(3) > 0 {
                        read.extend(page.entries);
                        relay.settle_some(&leases, page.end, Vec::new()).await;
                    }
                }
            }
            4..6 => {
                relay.lease(LONG).await;
            }
            6 => relay.release_all().await,
            _ => {}
        }
    }
    writers.finish().await;
    let [mut first, mut second] = relays;
    first.release_all().await;
    second.release_all().await;
    first.lease(LONG).await;
    read.extend(first.drain(3).await);
    writers.assert_all_read_in_order(&read, seed);
}
