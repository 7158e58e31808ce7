//! A minimal relay for the cases: it leases, reads and settles, but publishes nothing.

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

/// More bytes than any page has.
pub(crate) const ANY_BYTES: usize = 1 << 40;
/// A lease that outlasts every case.
pub(crate) const LONG: Duration = Duration::from_mins(10);
/// A lease that a case lets expire explicitly. It is long enough not to expire on a slow machine.
pub(crate) const LEASE: Duration = Duration::from_mins(1);
/// A pause that a case lets pass explicitly; it does not pass on its own.
pub(crate) const PAUSE: Duration = Duration::from_mins(1);

/// Unwraps a store result; an error fails the case.
pub(crate) fn ok<T>(answer: Result<T, StoreError>) -> T {
    answer.unwrap_or_else(|error| panic!("the store failed: {error:?}"))
}

pub(crate) struct Relay<S> {
    pub(crate) store: S,
    pub(crate) owner: Uuid,
    pub(crate) leases: Vec<Lease>,
    pub(crate) ceiling: Ceiling,
    positions: BTreeMap<Lease, Position>,
    /// Pages read while the only writer was open, to be settled after it has ended.
    unsettled: Vec<(Vec<Lease>, Position)>,
}

impl<S: Leases + OutboxReader + ParkedKeys> Relay<S> {
    /// A relay without leases; `number` determines its owner token.
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

    /// A relay that holds all available leases for a long time.
    pub(crate) async fn start(store: S, number: u128) -> Self {
        let mut relay = Self::new(store, number);
        relay.lease(LONG).await;
        relay
    }

    /// Acquires and renews leases, and loads the positions of new ones.
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

    /// The lease of the shard that contains the entry's key.
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

    /// Reads the next page of each group of shards at the same position. Cases with a single group use `read`.
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

    /// Reads the next page of shards that are all at one position.
    pub(crate) async fn read(&self, limit: usize) -> Page {
        let mut pages = self.read_groups(limit).await;
        assert_eq!(pages.len(), 1, "all shards stand together");
        pages.remove(0).1
    }

    /// Settles all leased shards up to `end`, with these parks.
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

    /// Reads and settles one page; returns its entries.
    pub(crate) async fn deliver(&mut self, limit: usize) -> Vec<Entry> {
        let page = self.read(limit).await;
        assert_eq!(self.settle(page.end, Vec::new()).await, Settled::default());
        page.entries
    }

    /// Reads and settles until nothing new is left; returns the entries in reading order.
    pub(crate) async fn drain(&mut self, limit: usize) -> Vec<Entry> {
        for (leases, end) in std::mem::take(&mut self.unsettled) {
            assert_eq!(self.settle_some(&leases, end, Vec::new()).await, Settled::default());
        }
        let mut entries = Vec::new();
        for _ in 0..10_000 {
            let mut moved = false;
            for (leases, page) in self.read_groups(limit).await {
                // The rest of a window may be empty while the next window is not.
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

    /// Like `drain`, while another transaction is open. If that is the only writer, reading continues but settling
    /// fails without effect; the next `drain` settles these pages.
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

    /// All due runs, without a limit that matters.
    pub(crate) async fn due(&self) -> Vec<Run> {
        ok(self.store.due(&self.leases, 100, 100).await)
    }

    /// Records the result of one run.
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

/// Emits one message of this key in its own transaction.
pub(crate) async fn emit(h: &impl StoreHarness, key: &str) -> MessageId {
    emit_draft(h, Draft::of(key)).await
}

pub(crate) async fn emit_draft(h: &impl StoreHarness, draft: Draft) -> MessageId {
    let mut writer = h.begin().await;
    let id = writer.emit(draft).await.expect("a new id");
    writer.commit().await;
    id
}

/// Emits one message per key, each in its own transaction.
pub(crate) async fn emit_all(h: &impl StoreHarness, keys: &[&str]) -> Vec<MessageId> {
    let mut ids = Vec::new();
    for key in keys {
        ids.push(emit(h, key).await);
    }
    ids
}

/// Like `emit_all`, while another transaction is open. If only one writer is allowed, it checks that a second is
/// rejected and emits nothing.
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

/// Emits one message per key and reads them in one page. Parks the first message of each key with `stop` and the others
/// behind it. Returns the entries of the page, whose window is settled.
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
