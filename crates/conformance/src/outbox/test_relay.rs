//! A minimal relay for the cases: it leases, reads and settles, but publishes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use relevo_core::MessageId;
use relevo_core::outbox::leases::{Lease, LeaseRequest, LeaseResponse, ShardLeases};
use relevo_core::outbox::log::{
    OutboxReader, Page, PageRequest, ParkAction, ParkedMessage, PublishFailure, SettleResult, Settlement, WindowLimit,
};
use relevo_core::outbox::parked::{ParkedBatch, ParkedReader, ParkedResult, ParkedSettlement};
use relevo_core::outbox::{LogEntry, Position};
use relevo_core::slot::shard_of;
use relevo_core::store::StoreError;
use uuid::Uuid;

use crate::outbox::harness::{Draft, Harness, WriteTransaction};

/// More bytes than any page has.
pub(crate) const ANY_BYTES: usize = 1 << 40;
/// A lease that outlasts every case.
pub(crate) const LONG: Duration = Duration::from_mins(10);
/// A lease that a case lets expire explicitly. It is long enough not to expire on a slow machine.
pub(crate) const LEASE: Duration = Duration::from_mins(1);
/// A pause that a case lets pass explicitly; it does not pass on its own.
pub(crate) const RETRY_DELAY: Duration = Duration::from_mins(1);

/// Unwraps a store result; an error fails the case.
pub(crate) fn must<T>(answer: Result<T, StoreError>) -> T {
    answer.unwrap_or_else(|error| panic!("the store failed: {error:?}"))
}

pub(crate) struct TestRelay<S> {
    pub(crate) store: S,
    pub(crate) owner: Uuid,
    pub(crate) leases: Vec<Lease>,
    pub(crate) ceiling: WindowLimit,
    positions: BTreeMap<Lease, Position>,
    /// Pages read while the only writer was open, to be settled after it has ended.
    unsettled: Vec<(Vec<Lease>, Position)>,
}

impl<S: ShardLeases + OutboxReader + ParkedReader> TestRelay<S> {
    /// A relay without leases; `number` determines its owner token.
    pub(crate) fn new(store: S, number: u128) -> Self {
        let owner = Uuid::from_u128(number << 64 | 0x0bad_cafe);
        Self {
            store,
            owner,
            leases: Vec::new(),
            ceiling: WindowLimit::Unlimited,
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
    pub(crate) async fn lease(&mut self, lasts: Duration) -> LeaseResponse {
        self.lease_and_release(lasts, Vec::new()).await
    }

    pub(crate) async fn lease_and_release(&mut self, lasts: Duration, give_back: Vec<Lease>) -> LeaseResponse {
        let ask = LeaseRequest {
            owner: self.owner,
            name: format!("relay {}", self.owner),
            duration: lasts,
            release: give_back,
        };
        let leased = must(self.store.acquire_leases(ask).await);
        self.leases.clone_from(&leased.leases);
        self.ceiling = leased.window_limit;
        self.positions.retain(|lease, _| leased.leases.contains(lease));
        let new: Vec<Lease> =
            leased.leases.iter().filter(|lease| !self.positions.contains_key(lease)).copied().collect();
        for standing in must(self.store.standing(&new).await) {
            let lease = new.iter().find(|lease| lease.shard == standing.shard).expect("a shard that was asked for");
            self.positions.insert(*lease, standing.position);
        }
        assert_eq!(self.positions.len(), self.leases.len(), "every leased shard stands somewhere");
        leased
    }

    pub(crate) async fn release_all(&mut self) {
        must(self.store.release_leases(self.owner).await);
        self.leases.clear();
        self.positions.clear();
    }

    /// The lease of the shard that contains the entry's key.
    pub(crate) fn lease_of(&self, entry: &LogEntry) -> Lease {
        self.lease_of_slot(entry.slot)
    }

    pub(crate) fn lease_of_slot(&self, slot: u16) -> Lease {
        let found = self.leases.iter().find(|lease| shard_of(slot, lease.shard_count) == lease.shard);
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
            let page = must(
                self.store
                    .read(PageRequest {
                        leases: &leases,
                        after,
                        messages_max: limit,
                        bytes_max: ANY_BYTES,
                        window_limit: self.ceiling,
                    })
                    .await,
            );
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
    pub(crate) async fn settle(&mut self, end: Position, parks: Vec<ParkedMessage>) -> SettleResult {
        self.settle_some(&self.leases.clone(), end, parks).await
    }

    pub(crate) async fn settle_some(
        &mut self,
        leases: &[Lease],
        end: Position,
        parks: Vec<ParkedMessage>,
    ) -> SettleResult {
        let progress = leases.iter().map(|lease| (*lease, end)).collect();
        let shards_passed: BTreeSet<(u16, i64)> = parks.iter().map(|park| (park.slot, park.seq)).collect();
        let settled = must(self.store.settle(Settlement { progress, parked: parks }).await);
        for lease in leases {
            let passed = shards_passed
                .iter()
                .any(|(slot, seq)| settled.reread.contains(seq) && shard_of(*slot, lease.shard_count) == lease.shard);
            if !passed && !settled.lost_shards.contains(&lease.shard) && self.positions.contains_key(lease) {
                self.positions.insert(*lease, end);
            }
        }
        settled
    }

    /// Reads and settles one page; returns its entries.
    pub(crate) async fn deliver(&mut self, limit: usize) -> Vec<LogEntry> {
        let page = self.read(limit).await;
        assert_eq!(self.settle(page.end, Vec::new()).await, SettleResult::default());
        page.entries
    }

    /// Reads and settles until nothing new is left; returns the entries in reading order.
    pub(crate) async fn drain(&mut self, limit: usize) -> Vec<LogEntry> {
        for (leases, end) in std::mem::take(&mut self.unsettled) {
            assert_eq!(self.settle_some(&leases, end, Vec::new()).await, SettleResult::default());
        }
        let mut entries = Vec::new();
        for _ in 0..10_000 {
            let mut moved = false;
            for (leases, page) in self.read_groups(limit).await {
                // The rest of a window may be empty while the next window is not.
                let in_window = leases.iter().any(|lease| !self.position(lease).is_exhausted());
                moved |= in_window || !page.entries.is_empty() || !page.end.is_exhausted();
                entries.extend(page.entries);
                assert_eq!(self.settle_some(&leases, page.end, Vec::new()).await, SettleResult::default());
            }
            if !moved {
                return entries;
            }
        }
        panic!("the outbox never becomes empty");
    }

    /// Like `drain`, while another transaction is open. If that is the only writer, reading continues but settling
    /// fails without effect; the next `drain` settles these pages.
    pub(crate) async fn drain_during_write(&mut self, h: &impl Harness, limit: usize) -> Vec<LogEntry> {
        if !h.capabilities().single_writer {
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
                let refused = self.store.settle(Settlement { progress, parked: Vec::new() }).await;
                assert!(refused.is_err_and(|error| error.is_retryable()), "the only writer is open");
                self.positions.extend(leases.iter().map(|lease| (*lease, page.end)));
                self.unsettled.push((leases, page.end));
            }
        }
        panic!("the outbox never becomes empty");
    }

    /// All due runs, without a limit that matters.
    pub(crate) async fn read_parked(&self) -> Vec<ParkedBatch> {
        must(self.store.read_parked(&self.leases, 100, 100).await)
    }

    /// Records the result of one run.
    pub(crate) async fn settle_parked(
        &self,
        run: &ParkedBatch,
        delivered: usize,
        stop: Option<PublishFailure>,
    ) -> ParkedResult {
        self.settle_parked_releasing(run, delivered, stop, None).await
    }

    pub(crate) async fn settle_parked_releasing(
        &self,
        run: &ParkedBatch,
        delivered: usize,
        stop: Option<PublishFailure>,
        released: Option<&str>,
    ) -> ParkedResult {
        let advance = ParkedSettlement {
            lease: self.lease_of_slot(run.slot),
            key: run.key.clone(),
            delivered: run.messages[..delivered].iter().map(|(number, _)| *number).collect(),
            failed: stop.map(|stopped| (run.messages[delivered].0, stopped)),
            released_address: released.map(Arc::from),
        };
        let mut answers = must(self.store.settle_parked(vec![advance]).await);
        assert_eq!(answers.len(), 1, "one answer a run");
        answers.remove(0)
    }
}

/// Emits one message of this key in its own transaction.
pub(crate) async fn emit(h: &impl Harness, key: &str) -> MessageId {
    emit_draft(h, Draft::of(key)).await
}

pub(crate) async fn emit_draft(h: &impl Harness, draft: Draft) -> MessageId {
    let mut writer = h.begin().await;
    let id = writer.emit(draft).await.expect("a new id");
    writer.commit().await;
    id
}

/// Emits one message per key, each in its own transaction.
pub(crate) async fn emit_all(h: &impl Harness, keys: &[&str]) -> Vec<MessageId> {
    let mut ids = Vec::new();
    for key in keys {
        ids.push(emit(h, key).await);
    }
    ids
}

/// Like `emit_all`, while another transaction is open. If only one writer is allowed, it checks that a second is
/// rejected and emits nothing.
pub(crate) async fn emit_during_write(h: &impl Harness, keys: &[&str]) -> Vec<MessageId> {
    if h.capabilities().single_writer {
        assert!(h.try_begin_second().await.is_none(), "there is one writer at a time");
        return Vec::new();
    }
    emit_all(h, keys).await
}

pub(crate) fn ids(entries: &[LogEntry]) -> Vec<MessageId> {
    entries.iter().map(|entry| entry.message.id).collect()
}

pub(crate) fn batch_ids(run: &ParkedBatch) -> Vec<MessageId> {
    run.messages.iter().map(|(_, entry)| entry.message.id).collect()
}

/// The keys of runs, in order.
pub(crate) fn batch_keys(runs: &[ParkedBatch]) -> Vec<String> {
    runs.iter().map(|run| run.key.to_string()).collect()
}

pub(crate) fn retry(after: Duration, attempts: u32) -> PublishFailure {
    failed(ParkAction::Retry { after }, attempts)
}

pub(crate) fn failed(stop: ParkAction, attempts: u32) -> PublishFailure {
    PublishFailure {
        action: stop,
        attempts,
        class: "transient",
        error: "it was refused".to_owned(),
        route: "everything".into(),
    }
}

pub(crate) fn park(entry: &LogEntry, stopped: PublishFailure) -> ParkedMessage {
    ParkedMessage { seq: entry.seq, slot: entry.slot, key: entry.message.key.clone(), failure: Some(stopped) }
}

pub(crate) fn park_behind(entry: &LogEntry) -> ParkedMessage {
    ParkedMessage { seq: entry.seq, slot: entry.slot, key: entry.message.key.clone(), failure: None }
}

/// Emits one message per key and reads them in one page. Parks the first message of each key with `stop` and the others
/// behind it. Returns the entries of the page, whose window is settled.
pub(crate) async fn emit_and_park<S>(
    h: &impl Harness<Store = S>,
    relay: &mut TestRelay<S>,
    keys: &[&str],
    stop: PublishFailure,
) -> Vec<LogEntry>
where
    S: ShardLeases + OutboxReader + ParkedReader,
{
    emit_all(h, keys).await;
    let page = relay.read(100).await;
    assert_eq!(page.entries.len(), keys.len());
    let mut heads = BTreeSet::new();
    let parks = page.entries.iter();
    let parks = parks
        .map(|entry| if heads.insert(&entry.message.key) { park(entry, stop.clone()) } else { park_behind(entry) })
        .collect();
    assert_eq!(relay.settle(page.end, parks).await, SettleResult::default());
    page.entries
}
