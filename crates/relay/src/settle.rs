//! Open pages, and how much of them can be settled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytestring::ByteString;
use relevo_core::AfterDead;
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::{ParkAction, ParkedMessage, PublishFailure, ReadShard, SettleResult, Settlement};
use relevo_core::outbox::{LogEntry, Position};
use relevo_core::slot::shard_of;
use relevo_core::trace::ActiveSpan;
use tracing::{info, warn};

use crate::buffer::BufferId;
use crate::parked::holds::held_address;
use crate::relay::{Pending, Relay};
use crate::status::add;
use crate::store_calls::StoreReply;

/// The state of one entry of a page.
#[derive(Clone, Debug)]
pub(crate) enum EntryState {
    /// Not known yet.
    Pending,
    /// Confirmed, or not matched by any route of this destination.
    Done,
    /// Waits behind a parked head of its key. The message stays in memory until this is settled.
    WaitsBehind(BufferId),
    /// Failed.
    Failed(Box<PublishFailure>),
    /// Parked, and recorded in the store.
    Parked,
}

#[derive(Debug)]
struct PageEntry {
    seq: i64,
    slot: u16,
    key: ByteString,
    state: EntryState,
    /// Ends when the entry is settled.
    span: Option<ActiveSpan>,
}

#[derive(Debug)]
struct OpenPage {
    id: u64,
    shards: Vec<ReadShard>,
    /// How often later empty pages of the same shards extended it.
    extensions: u32,
    entries: Vec<PageEntry>,
    pending: usize,
    bytes: usize,
}

/// Open pages in reading order. They are settled in that order.
#[derive(Debug, Default)]
pub(crate) struct OpenPages {
    pages: VecDeque<OpenPage>,
    next_id: u64,
    bytes: usize,
    messages: usize,
}

/// The content of a settlement. It is applied to the pages after the store has recorded it.
#[derive(Debug)]
pub(crate) struct PendingSettlement {
    settlement: Settlement,
    /// The number of complete pages, from the front.
    pages: usize,
    /// How often the last of these pages was extended when the settlement was made.
    extensions: u32,
}

impl OpenPages {
    /// Adds a page with pending entries and returns its number.
    pub(crate) fn push(&mut self, shards: Vec<ReadShard>, entries: &[LogEntry]) -> u64 {
        let leases = |shards: &[ReadShard]| shards.iter().map(|shard| shard.lease).collect::<Vec<_>>();
        if let Some(last) = self.pages.back_mut()
            && entries.is_empty()
            && leases(&last.shards) == leases(&shards)
        {
            // There are no entries for these shards, so the page before is extended.
            for (last, shard) in last.shards.iter_mut().zip(shards) {
                last.end = shard.end;
            }
            last.extensions += 1;
            return last.id;
        }
        let id = self.next_id;
        self.next_id += 1;
        let open_entry = |entry: &LogEntry| PageEntry {
            seq: entry.seq,
            slot: entry.slot,
            key: entry.message.key.clone(),
            state: EntryState::Pending,
            span: None,
        };
        let bytes = entries.iter().map(|entry| entry.message.memory_bytes()).sum();
        self.bytes += bytes;
        self.messages += entries.len();
        self.pages.push_back(OpenPage {
            id,
            shards,
            extensions: 0,
            entries: entries.iter().map(open_entry).collect(),
            pending: entries.len(),
            bytes,
        });
        id
    }

    /// Sets the state of an entry.
    pub(crate) fn resolve(&mut self, page: u64, index: usize, state: EntryState) {
        let Some(page) = self.page(page) else { return };
        let entry = &mut page.entries[index];
        let was_pending = matches!(entry.state, EntryState::Pending);
        let is_pending = matches!(state, EntryState::Pending);
        entry.state = state;
        match (was_pending, is_pending) {
            (true, false) => page.pending -= 1,
            (false, true) => page.pending += 1,
            _ => {}
        }
    }

    /// Adds the span of an entry that is done. It ends when the page is settled.
    pub(crate) fn attach_span(&mut self, page: u64, index: usize, span: Option<ActiveSpan>) {
        if let Some(span) = span
            && let Some(page) = self.page(page)
        {
            page.entries[index].span = Some(span);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    pub(crate) fn holds_shard(&self, shard: u16) -> bool {
        self.pages.iter().any(|page| page.shards.iter().any(|read| read.lease.shard == shard))
    }

    /// Whether an unsettled message of this key failed and blocks its successors.
    pub(crate) fn has_failed_entry(&self, key: &str) -> bool {
        let blocks_key = |entry: &PageEntry| match &entry.state {
            EntryState::Failed(failure) => {
                failure.action != ParkAction::DeadLetter(AfterDead::Continue) && entry.key == key
            }
            EntryState::Pending | EntryState::Done | EntryState::WaitsBehind(_) | EntryState::Parked => false,
        };
        self.pages.iter().flat_map(|page| &page.entries).any(blocks_key)
    }

    /// Whether the oldest pages are complete and contain messages. Empty pages are not worth a settlement.
    pub(crate) fn is_front_complete(&self) -> bool {
        self.pages.iter().take_while(|page| page.pending == 0).any(|page| !page.entries.is_empty())
    }

    /// What can be settled: complete pages from the front, then each shard up to its first pending entry. A slow key
    /// therefore delays only its own shard. `settled_to` returns the position of a shard in the store.
    fn settlement<'a>(&self, settled_to: impl Fn(u16) -> Option<&'a Position>) -> Option<PendingSettlement> {
        let mut progress: BTreeMap<u16, (Lease, Position)> = BTreeMap::new();
        let mut parked = Vec::new();
        let mut blocked_shards = BTreeSet::new();
        let pages = self.pages.iter().take_while(|page| page.pending == 0).count();
        for page in &self.pages {
            page.settle_to(&mut blocked_shards, &mut progress, &mut parked);
        }
        // Skip a shard whose position has not changed, unless it has messages to park.
        let has_parked = |shard: u16, shard_count: u16| {
            parked.iter().any(|message: &ParkedMessage| shard_of(message.slot, shard_count) == shard)
        };
        progress.retain(|shard, (lease, position)| {
            settled_to(*shard).is_none_or(|settled| settled != position) || has_parked(*shard, lease.shard_count)
        });
        let settlement = Settlement { progress: progress.into_values().collect(), parked };
        let last = pages.checked_sub(1).and_then(|last| self.pages.get(last));
        let extensions = last.map_or(0, |page| page.extensions);
        (pages > 0 || !settlement.progress.is_empty()).then_some(PendingSettlement { settlement, pages, extensions })
    }

    /// Applies a recorded settlement. Returns the messages that were kept because they waited behind a parked head.
    fn apply_settlement(&mut self, pending: &PendingSettlement) -> Vec<BufferId> {
        let parked: BTreeSet<i64> = pending.settlement.parked.iter().map(|message| message.seq).collect();
        let mut released = Vec::new();
        if !parked.is_empty() {
            for entry in self.pages.iter_mut().flat_map(|page| &mut page.entries) {
                if parked.contains(&entry.seq) {
                    if let EntryState::WaitsBehind(id) = entry.state {
                        released.push(id);
                    }
                    entry.state = EntryState::Parked;
                }
            }
        }
        let mut extended = None;
        for mut page in self.pages.drain(..pending.pages) {
            self.bytes -= std::mem::take(&mut page.bytes);
            let entries = std::mem::take(&mut page.entries);
            self.messages -= entries.len();
            entries.into_iter().filter_map(|entry| entry.span).for_each(ActiveSpan::end);
            extended = Some(page).filter(|last| last.extensions != pending.extensions);
        }
        // The last page was extended during the settlement. Its new end is still to be settled.
        if let Some(page) = extended {
            self.pages.push_front(page);
        }
        released
    }

    fn page(&mut self, id: u64) -> Option<&mut OpenPage> {
        let first = self.pages.front()?.id;
        self.pages.get_mut(usize::try_from(id.checked_sub(first)?).ok()?)
    }
}

impl OpenPage {
    /// Adds the position up to which each shard is complete, and the messages up to there that must be parked. A shard
    /// with a pending entry is added to `blocked_shards`.
    fn settle_to(
        &self,
        blocked_shards: &mut BTreeSet<u16>,
        progress: &mut BTreeMap<u16, (Lease, Position)>,
        parked: &mut Vec<ParkedMessage>,
    ) {
        let is_open = |read: &&ReadShard| !blocked_shards.contains(&read.lease.shard);
        let open: Vec<&ReadShard> = self.shards.iter().filter(is_open).collect();
        // The position after the last complete entry of each shard.
        let mut reached: BTreeMap<u16, Position> = BTreeMap::new();
        for entry in &self.entries {
            let shard = shard_of(entry.slot, self.shards[0].lease.shard_count);
            if blocked_shards.contains(&shard) {
                continue;
            }
            if matches!(entry.state, EntryState::Pending) {
                blocked_shards.insert(shard);
                continue;
            }
            if self.pending > 0 {
                reached.entry(shard).or_insert_with(|| self.start_of(shard)).advance_past(entry.seq, entry.slot);
            }
            parked.extend(parked_message(entry));
        }
        for read in open {
            let shard = read.lease.shard;
            let position =
                if blocked_shards.contains(&shard) { reached.remove(&shard) } else { Some(read.end.clone()) };
            if let Some(position) = position {
                progress.insert(shard, (read.lease, position));
            }
        }
    }

    fn start_of(&self, shard: u16) -> Position {
        let read = self.shards.iter().find(|read| read.lease.shard == shard);
        read.expect("a page has only messages of its shards").start.clone()
    }
}

fn parked_message(entry: &PageEntry) -> Option<ParkedMessage> {
    let failure = match &entry.state {
        EntryState::WaitsBehind(_) => None,
        EntryState::Failed(failure) => Some((**failure).clone()),
        EntryState::Pending | EntryState::Done | EntryState::Parked => return None,
    };
    Some(ParkedMessage { seq: entry.seq, slot: entry.slot, key: entry.key.clone(), failure })
}

impl Relay {
    /// Settles all progress, if there is any.
    pub(crate) fn settle_call(&self) -> Option<Pending<StoreReply>> {
        let settled_to = |shard| self.leases.shards.get(&shard).map(|shard| &shard.settled_to);
        let pending = self.pages.settlement(settled_to)?;
        let store = Arc::clone(&self.store);
        Some(Box::pin(async move {
            let result = store.settle(pending.settlement.clone()).await;
            StoreReply::Settlement { pending, result }
        }))
    }

    pub(crate) fn apply_settlement(&mut self, pending: &PendingSettlement, result: &SettleResult) {
        if !result.lost_shards.is_empty() {
            self.status.count_lost_leases(result.lost_shards.len());
            warn!(relay = %self.config.name, shards = ?result.lost_shards, "leases lost, settlement rejected");
            self.discard_unsettled();
            return;
        }
        if !result.reread.is_empty() {
            // An operator freed the head. Reading again publishes the messages that waited behind it before later ones
            // of their key.
            info!(relay = %self.config.name, messages = result.reread.len(), "parked key was freed, reading again");
            self.discard_unsettled();
            return;
        }
        add(&self.status.counters.settlements, 1);
        for (lease, position) in &pending.settlement.progress {
            if let Some(shard) = self.leases.shards.get_mut(&lease.shard) {
                shard.settled_to.clone_from(position);
            }
        }
        for id in self.pages.apply_settlement(pending) {
            let message = self.buffer.remove(id);
            self.parked.remove_waiting(&message.entry.message.key, id);
        }
        let failures = pending.settlement.parked.iter().filter_map(|message| message.failure.as_ref());
        self.parked.held.mark_settled(failures.filter_map(held_address).map(|address| &**address));
    }
}
