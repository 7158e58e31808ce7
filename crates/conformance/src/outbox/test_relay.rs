//! A minimal relay for the cases: it leases, reads and settles, but publishes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use relevo_core::Draft;
use relevo_core::MessageId;
use relevo_core::outbox::leases::{Lease, LeaseRequest, LeaseResponse, ShardLeases, TakenShard};
use relevo_core::outbox::log::{
    OutboxReader, PageRequest, ParkAction, ParkedMessage, PublishFailure, SettleResult, Settlement, WindowLimit,
};
use relevo_core::outbox::parked::{ParkedBatch, ParkedReader, ParkedResult, ParkedSettlement};
use relevo_core::outbox::{LogEntry, Position};
use relevo_core::store::StoreError;
use uuid::Uuid;

use crate::outbox::harness::{Harness, WriteTransaction, draft};

/// More bytes than any page has.
pub(crate) const ANY_BYTES: usize = 1 << 40;
/// A lease that outlasts every case.
pub(crate) const LONG: Duration = Duration::from_mins(10);
/// A lease that a case lets expire explicitly. It is long enough not to expire on a slow machine.
pub(crate) const LEASE: Duration = Duration::from_mins(1);
/// A pause that a case lets pass explicitly; it does not pass on its own.
pub(crate) const RETRY_DELAY: Duration = Duration::from_mins(1);

/// Unwraps a store result; an error fails the case.
pub(crate) fn must<T>(result: Result<T, StoreError>) -> T {
    result.unwrap_or_else(|error| panic!("the store failed: {error:?}"))
}

/// A page of shards that are all at one position.
pub(crate) struct ReadPage {
    pub(crate) entries: Vec<LogEntry>,
    /// The position of all shards after the page.
    pub(crate) end: Position,
}

pub(crate) struct TestRelay<S> {
    pub(crate) store: S,
    pub(crate) owner: Uuid,
    pub(crate) leases: Vec<Lease>,
    pub(crate) window_limit: WindowLimit,
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
            window_limit: WindowLimit::Unlimited,
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
    pub(crate) async fn lease(&mut self, duration: Duration) -> LeaseResponse {
        self.lease_and_release(duration, Vec::new()).await
    }

    pub(crate) async fn lease_and_release(&mut self, duration: Duration, release: Vec<Lease>) -> LeaseResponse {
        let held = self.positions.keys().copied().collect();
        let request =
            LeaseRequest { owner: self.owner, name: format!("relay {}", self.owner), duration, held, release };
        let response = must(self.store.acquire_leases(request).await);
        self.leases.clone_from(&response.leases);
        self.window_limit = response.window_limit;
        self.positions.retain(|lease, _| response.leases.contains(lease));
        for shard in &response.taken {
            assert!(response.leases.contains(&shard.lease), "a taken shard is leased");
            let known = self.positions.insert(shard.lease, shard.position.clone());
            assert_eq!(known, None, "the state of a shard is reported once");
        }
        assert_eq!(self.positions.len(), self.leases.len(), "every leased shard has a position");
        response
    }

    /// The state of all leased shards, as their next owner would receive it.
    pub(crate) async fn load_shards(&self) -> Vec<TakenShard> {
        let (owner, name) = (self.owner, format!("relay {}", self.owner));
        let request = LeaseRequest { owner, name, duration: LONG, held: Vec::new(), release: Vec::new() };
        must(self.store.acquire_leases(request).await).taken
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
        let found = self.leases.iter().find(|lease| lease.has_slot(slot));
        *found.expect("the relay holds the slot's shard")
    }

    pub(crate) fn position(&self, lease: &Lease) -> Position {
        self.positions[lease].clone()
    }

    /// Reads the next page of each group of shards at the same position. Cases with a single group use `read`.
    pub(crate) async fn read_groups(&self, limit: usize) -> Vec<(Vec<Lease>, ReadPage)> {
        let mut groups: Vec<(Position, Vec<Lease>)> = Vec::new();
        for (lease, position) in &self.positions {
            match groups.iter_mut().find(|(at, _)| at == position) {
                Some((_, leases)) => leases.push(*lease),
                None => groups.push((position.clone(), vec![*lease])),
            }
        }
        let mut pages = Vec::new();
        for (after, leases) in groups {
            pages.push((leases.clone(), self.read_at(&leases, &after, limit, ANY_BYTES).await));
        }
        pages
    }

    /// Reads the next page of shards that are at this position.
    pub(crate) async fn read_at(
        &self,
        leases: &[Lease],
        after: &Position,
        messages_max: usize,
        bytes_max: usize,
    ) -> ReadPage {
        let shards: Vec<(Lease, Position)> = leases.iter().map(|lease| (*lease, after.clone())).collect();
        let request = PageRequest { shards: &shards, messages_max, bytes_max, window_limit: self.window_limit };
        let page = must(self.store.read(request).await);
        assert!(page.entries.len() <= messages_max, "a page is no longer than its limit");
        assert!(page.entries.is_sorted_by(|a, b| a.seq < b.seq), "a page is in sequence order");
        assert!(page.entries.is_empty() || !page.caught_up, "a relay reads on after a page with messages");
        let Some(first) = page.shards.first() else {
            assert!(page.entries.is_empty() && page.caught_up, "nothing was read");
            return ReadPage { entries: page.entries, end: after.clone() };
        };
        let read: BTreeSet<Lease> = page.shards.iter().map(|read| read.lease).collect();
        assert_eq!(read, leases.iter().copied().collect(), "shards at one position are read together");
        assert!(page.shards.iter().all(|read| read.end == first.end && read.start == first.start));
        ReadPage { entries: page.entries, end: first.end.clone() }
    }

    /// Reads the next page of shards that are all at one position.
    pub(crate) async fn read(&self, limit: usize) -> ReadPage {
        let mut pages = self.read_groups(limit).await;
        assert_eq!(pages.len(), 1, "all shards are at one position");
        pages.remove(0).1
    }

    /// Settles all leased shards up to `end`, with these parked messages.
    pub(crate) async fn settle(&mut self, end: Position, parked: Vec<ParkedMessage>) -> SettleResult {
        self.settle_some(&self.leases.clone(), end, parked).await
    }

    pub(crate) async fn settle_some(
        &mut self,
        leases: &[Lease],
        end: Position,
        parked: Vec<ParkedMessage>,
    ) -> SettleResult {
        let progress = leases.iter().map(|lease| (*lease, end.clone())).collect();
        let parked_seqs: BTreeSet<(u16, i64)> = parked.iter().map(|message| (message.slot, message.seq)).collect();
        let settled = must(self.store.settle(Settlement { progress, parked }).await);
        for lease in leases {
            let has_reread =
                parked_seqs.iter().any(|(slot, seq)| settled.reread.contains(seq) && lease.has_slot(*slot));
            if !has_reread && !settled.lost_shards.contains(&lease.shard) && self.positions.contains_key(lease) {
                self.positions.insert(*lease, end.clone());
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
                let progress = leases.iter().map(|lease| (*lease, page.end.clone())).collect();
                let refused = self.store.settle(Settlement { progress, parked: Vec::new() }).await;
                assert!(refused.is_err_and(|error| error.is_retryable()), "the only writer is open");
                self.positions.extend(leases.iter().map(|lease| (*lease, page.end.clone())));
                self.unsettled.push((leases, page.end));
            }
        }
        panic!("the outbox never becomes empty");
    }

    /// All due batches, without a limit that matters.
    pub(crate) async fn read_parked(&self) -> Vec<ParkedBatch> {
        must(self.store.read_parked(&self.leases, 100, 100).await)
    }

    /// Records the result of one batch.
    pub(crate) async fn settle_parked(
        &self,
        batch: &ParkedBatch,
        delivered: usize,
        failure: Option<PublishFailure>,
    ) -> ParkedResult {
        self.settle_parked_releasing(batch, delivered, failure, None).await
    }

    pub(crate) async fn settle_parked_releasing(
        &self,
        batch: &ParkedBatch,
        delivered: usize,
        failure: Option<PublishFailure>,
        released: Option<&str>,
    ) -> ParkedResult {
        let settlement = ParkedSettlement {
            lease: self.lease_of_slot(batch.slot),
            key: batch.key.clone(),
            delivered: batch.messages[..delivered].iter().map(|queued| queued.ordinal).collect(),
            failed: failure.map(|failure| (batch.messages[delivered].ordinal, failure)),
            released_address: released.map(Arc::from),
        };
        let mut results = must(self.store.settle_parked(vec![settlement]).await);
        assert_eq!(results.len(), 1, "one result per batch");
        results.remove(0)
    }
}

/// Emits one message of this key in its own transaction.
pub(crate) async fn emit(h: &impl Harness, key: &str) -> MessageId {
    emit_draft(h, draft(key)).await
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

pub(crate) fn batch_ids(batch: &ParkedBatch) -> Vec<MessageId> {
    batch.messages.iter().map(|queued| queued.entry.message.id).collect()
}

/// The keys of batches, in order.
pub(crate) fn batch_keys(batches: &[ParkedBatch]) -> Vec<String> {
    batches.iter().map(|batch| batch.key.to_string()).collect()
}

pub(crate) fn retry(after: Duration, attempts: u32) -> PublishFailure {
    failed(ParkAction::Retry { after }, attempts)
}

pub(crate) fn failed(action: ParkAction, attempts: u32) -> PublishFailure {
    PublishFailure {
        action,
        attempts,
        class: "transient",
        error: "it was refused".to_owned(),
        route: "everything".into(),
    }
}

pub(crate) fn park(entry: &LogEntry, failure: PublishFailure) -> ParkedMessage {
    ParkedMessage { seq: entry.seq, slot: entry.slot, key: entry.message.key.clone(), failure: Some(failure) }
}

pub(crate) fn park_behind(entry: &LogEntry) -> ParkedMessage {
    ParkedMessage { seq: entry.seq, slot: entry.slot, key: entry.message.key.clone(), failure: None }
}

/// Emits one message per key and reads them in one page. Parks the first message of each key with `failure` and the
/// others behind it. Returns the entries of the page, whose window is settled.
pub(crate) async fn emit_and_park<S>(
    h: &impl Harness<Store = S>,
    relay: &mut TestRelay<S>,
    keys: &[&str],
    failure: PublishFailure,
) -> Vec<LogEntry>
where
    S: ShardLeases + OutboxReader + ParkedReader,
{
    emit_all(h, keys).await;
    let page = relay.read(100).await;
    assert_eq!(page.entries.len(), keys.len());
    let mut heads = BTreeSet::new();
    let parked = page.entries.iter();
    let parked = parked
        .map(|entry| if heads.insert(&entry.message.key) { park(entry, failure.clone()) } else { park_behind(entry) })
        .collect();
    assert_eq!(relay.settle(page.end, parked).await, SettleResult::default());
    page.entries
}
