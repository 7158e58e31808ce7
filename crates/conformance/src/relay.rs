//! A relay reduced to what cases need: it leases, reads and settles, and publishes nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use relevo_core::MessageId;
use relevo_core::slot::shard_of;
use relevo_core::store::{
    Advance, Advanced, Ask, Ceiling, Entry, Lease, Leased, Leases, OutboxReader, Page, Park, ParkedKeys, Position,
    Read, Run, Settled, Settlement, Stop, Stopped, StoreError,
};
use uuid::Uuid;

use crate::harness::{Draft, StoreHarness, Writer};

/// More than any page has.
pub(crate) const ANY_BYTES: usize = 1 << 40;
/// A lease that no case outlives.
pub(crate) const LONG: Duration = Duration::from_mins(10);
/// A lease that a case lets expire, and that no machine is slow enough to.
pub(crate) const LEASE: Duration = Duration::from_mins(1);
/// A pause that a case lets pass, and that does not pass by itself.
pub(crate) const PAUSE: Duration = Duration::from_mins(1);

/// What the store answered; a case goes on only if it did.
pub(crate) fn ok<T>(answer: Result<T, StoreError>) -> T {
    answer.unwrap_or_else(|error| panic!("the store failed: {error:?}"))
}

pub(crate) struct Relay<S> {
    pub(crate) store: S,
    pub(crate) owner: Uuid,
    pub(crate) leases: Vec<Lease>,
    pub(crate) ceiling: Ceiling,
    positions: BTreeMap<Lease, Position>,
    /// What was read while the only writer was open, and is settled once it has ended.
    unsettled: Vec<(Vec<Lease>, Position)>,
}

impl<S: Leases + OutboxReader + ParkedKeys> Relay<S> {
    /// A relay that holds nothing yet; `number` makes its token.
    pub(crate) fn new(store: S, number: u128) -> Self {
        let owner = Uuid::from_u128(number << 64 | 0x0bad_cafe);
        Self {
            store,
            owner,
            leases: Vec::new(),
            ceiling: Ceiling::Open,
            positions: BTreeMap::new(),
            unsettled: Vec::new(),
        }
    }

    /// A relay that has leased what it can get, for long.
    pub(crate) async fn start(store: S, number: u128) -> Self {
        let mut relay = Self::new(store, number);
        relay.lease(LONG).await;
        relay
    }

    /// Takes and renews leases, and learns where new ones stand.
    pub(crate) async fn lease(&mut self, lasts: Duration) -> Leased {
        self.lease_giving(lasts, Vec::new()).await
    }

    pub(crate) async fn lease_giving(&mut self, lasts: Duration, give_back: Vec<Lease>) -> Leased {
        let ask = Ask { owner: self.owner, name: format!("relay {}", self.owner), lease: lasts, give_back };
        let leased = ok(self.store.lease(ask).await);
        self.leases.clone_from(&leased.leases);
        self.ceiling = leased.ceiling;
        self.positions.retain(|lease, _| leased.leases.contains(lease));
        let new: Vec<Lease> =
            leased.leases.iter().filter(|lease| !self.positions.contains_key(lease)).copied().collect();
        for standing in ok(self.store.standing(&new).await) {
            let lease = new.iter().find(|lease| lease.shard == standing.shard).expect("a shard that was asked for");
            self.positions.insert(*lease, standing.position);
        }
        assert_eq!(self.positions.len(), self.leases.len(), "every leased shard stands somewhere");
        leased
    }

    pub(crate) async fn leave(&mut self) {
        ok(self.store.leave(self.owner).await);
        self.leases.clear();
        self.positions.clear();
    }

    /// The lease of the shard that a key belongs to.
    pub(crate) fn lease_of(&self, entry: &Entry) -> Lease {
        self.lease_of_slot(entry.slot)
    }

    pub(crate) fn lease_of_slot(&self, slot: u16) -> Lease {
        let found = self.leases.iter().find(|lease| shard_of(slot, lease.shards) == lease.shard);
        *found.expect("the relay holds the slot's shard")
    }

    pub(crate) fn position(&self, lease: &Lease) -> Position {
        self.positions[lease]
    }

    /// The next page of every group of shards that stand together; a case that has one group asks for `read`.
    pub(crate) async fn read_groups(&self, limit: usize) -> Vec<(Vec<Lease>, Page)> {
        let mut groups: BTreeMap<Position, Vec<Lease>> = BTreeMap::new();
        for (lease, position) in &self.positions {
            groups.entry(*position).or_default().push(*lease);
        }
        let mut pages = Vec::new();
        for (after, leases) in groups {
            let page = ok(self
                .store
                .read(Read { leases: &leases, after, limit, bytes: ANY_BYTES, ceiling: self.ceiling })
                .await);
            assert!(page.entries.len() <= limit, "a page is no longer than its limit");
            assert!(page.entries.is_sorted_by(|a, b| a.seq < b.seq), "a page is in sequence order");
            pages.push((leases, page));
        }
        pages
    }

    /// The next page of shards that all stand at one position.
    pub(crate) async fn read(&self, limit: usize) -> Page {
        let mut pages = self.read_groups(limit).await;
        assert_eq!(pages.len(), 1, "all shards stand together");
        pages.remove(0).1
    }

    /// Moves all of the shards to `end`, parking these.
    pub(crate) async fn settle(&mut self, end: Position, parks: Vec<Park>) -> Settled {
        self.settle_some(&self.leases.clone(), end, parks).await
    }

    pub(crate) async fn settle_some(&mut self, leases: &[Lease], end: Position, parks: Vec<Park>) -> Settled {
        let progress = leases.iter().map(|lease| (*lease, end)).collect();
        let shards_passed: BTreeSet<(u16, i64)> = parks.iter().map(|park| (park.slot, park.seq)).collect();
        let settled = ok(self.store.settle(Settlement { progress, parks }).await);
        for lease in leases {
            let passed = shards_passed
                .iter()
                .any(|(slot, seq)| settled.passed.contains(seq) && shard_of(*slot, lease.shards) == lease.shard);
            if !passed && !settled.lost.contains(&lease.shard) && self.positions.contains_key(lease) {
                self.positions.insert(*lease, end);
            }
        }
        settled
    }

    /// Reads and settles one page, and gives what was on it.
    pub(crate) async fn deliver(&mut self, limit: usize) -> Vec<Entry> {
        let page = self.read(limit).await;
        assert_eq!(self.settle(page.end, Vec::new()).await, Settled::default());
        page.entries
    }

    /// Reads and settles until there is nothing new; gives what was read, in order of reading.
    pub(crate) async fn drain(&mut self, limit: usize) -> Vec<Entry> {
        for (leases, end) in std::mem::take(&mut self.unsettled) {
            assert_eq!(self.settle_some(&leases, end, Vec::new()).await, Settled::default());
        }
        let mut entries = Vec::new();
        for _ in 0..10_000 {
            let mut moved = false;
            for (leases, page) in self.read_groups(limit).await {
                // The rest of a window may be empty, and the next one not.
                let in_window = leases.iter().any(|lease| !self.position(lease).is_exhausted());
                moved |= in_window || !page.entries.is_empty() || !page.end.is_exhausted();
                entries.extend(page.entries);
                assert_eq!(self.settle_some(&leases, page.end, Vec::new()).await, Settled::default());
            }
            if !moved {
                return entries;
            }
        }
        panic!("the outbox never becomes empty");
    }

    /// The same while another transaction is open. Where that one is the only writer, reading goes on, settling is told
    /// to wait and changes nothing, and the next `drain` settles.
    pub(crate) async fn drain_beside(&mut self, h: &impl StoreHarness, limit: usize) -> Vec<Entry> {
        if !h.capabilities().one_writer {
            return self.drain(limit).await;
        }
        let mut entries = Vec::new();
        for _ in 0..10_000 {
            let pages = self.read_groups(limit).await;
            if pages.iter().all(|(_, page)| page.entries.is_empty() && page.end.is_exhausted()) {
                return entries;
            }
            for (leases, page) in pages {
                entries.extend(page.entries);
                let progress = leases.iter().map(|lease| (*lease, page.end)).collect();
                let refused = self.store.settle(Settlement { progress, parks: Vec::new() }).await;
                assert!(refused.is_err_and(|error| error.is_passing()), "the only writer is open");
                self.positions.extend(leases.iter().map(|lease| (*lease, page.end)));
                self.unsettled.push((leases, page.end));
            }
        }
        panic!("the outbox never becomes empty");
    }

    /// What is due, with room for everything.
    pub(crate) async fn due(&self) -> Vec<Run> {
        ok(self.store.due(&self.leases, 100, 100).await)
    }

    /// Records what came of one run.
    pub(crate) async fn advance(&self, run: &Run, delivered: usize, stop: Option<Stopped>) -> Advanced {
        self.advance_releasing(run, delivered, stop, None).await
    }

    pub(crate) async fn advance_releasing(
        &self,
        run: &Run,
        delivered: usize,
        stop: Option<Stopped>,
        released: Option<&str>,
    ) -> Advanced {
        let advance = Advance {
            lease: self.lease_of_slot(run.slot),
            key: run.key.clone(),
            delivered: run.messages[..delivered].iter().map(|(number, _)| *number).collect(),
            stopped: stop.map(|stopped| (run.messages[delivered].0, stopped)),
            released: released.map(Arc::from),
        };
        let mut answers = ok(self.store.advance(vec![advance]).await);
        assert_eq!(answers.len(), 1, "one answer a run");
        answers.remove(0)
    }
}

/// Emits one message of this key in a transaction of its own.
pub(crate) async fn emit(h: &impl StoreHarness, key: &str) -> MessageId {
    emit_draft(h, Draft::of(key)).await
}

pub(crate) async fn emit_draft(h: &impl StoreHarness, draft: Draft) -> MessageId {
    let mut writer = h.begin().await;
    let id = writer.emit(draft).await.expect("a new id");
    writer.commit().await;
    id
}

/// One message of each key, each in a transaction of its own.
pub(crate) async fn emit_all(h: &impl StoreHarness, keys: &[&str]) -> Vec<MessageId> {
    let mut ids = Vec::new();
    for key in keys {
        ids.push(emit(h, key).await);
    }
    ids
}

/// The same beside a transaction that is open; nothing where that one is the only writer, and others are told so.
pub(crate) async fn emit_beside(h: &impl StoreHarness, keys: &[&str]) -> Vec<MessageId> {
    if h.capabilities().one_writer {
        assert!(h.begin_beside().await.is_none(), "there is one writer at a time");
        return Vec::new();
    }
    emit_all(h, keys).await
}

pub(crate) fn ids(entries: &[Entry]) -> Vec<MessageId> {
    entries.iter().map(|entry| entry.message.id).collect()
}

pub(crate) fn run_ids(run: &Run) -> Vec<MessageId> {
    run.messages.iter().map(|(_, entry)| entry.message.id).collect()
}

/// The keys of runs, in order.
pub(crate) fn run_keys(runs: &[Run]) -> Vec<String> {
    runs.iter().map(|run| run.key.to_string()).collect()
}

pub(crate) fn retry(after: Duration, attempts: u32) -> Stopped {
    stopped(Stop::Retry { after }, attempts)
}

pub(crate) fn stopped(stop: Stop, attempts: u32) -> Stopped {
    Stopped { stop, attempts, class: "transient", error: "it was refused".to_owned(), route: "everything".into() }
}

pub(crate) fn park(entry: &Entry, stopped: Stopped) -> Park {
    Park { seq: entry.seq, slot: entry.slot, key: entry.message.key.clone(), stopped: Some(stopped) }
}

pub(crate) fn behind(entry: &Entry) -> Park {
    Park { seq: entry.seq, slot: entry.slot, key: entry.message.key.clone(), stopped: None }
}

/// Emits one message of each key, reads them in one page, and parks the first of each key with `stop` and the others
/// behind it. The page, whose window is settled.
pub(crate) async fn parked<S>(
    h: &impl StoreHarness<Store = S>,
    relay: &mut Relay<S>,
    keys: &[&str],
    stop: Stopped,
) -> Vec<Entry>
where
    S: Leases + OutboxReader + ParkedKeys,
{
    emit_all(h, keys).await;
    let page = relay.read(100).await;
    assert_eq!(page.entries.len(), keys.len());
    let mut heads = BTreeSet::new();
    let parks = page.entries.iter();
    let parks = parks
        .map(|entry| if heads.insert(&entry.message.key) { park(entry, stop.clone()) } else { behind(entry) })
        .collect();
    assert_eq!(relay.settle(page.end, parks).await, Settled::default());
    page.entries
}
