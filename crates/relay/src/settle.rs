//! Pages in flight, and how much of them can be settled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytestring::ByteString;
use relevo_core::outbox::Position;
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::{Page, ParkAction, ParkedMessage, PublishFailure, Settlement};
use relevo_core::slot::shard_of;
use relevo_core::trace::ActiveSpan;

/// The state of one entry of a page.
#[derive(Clone, Debug)]
pub(crate) enum EntryState {
    /// Not known yet.
    Pending,
    /// Confirmed, or not matched by any route of this destination.
    Done,
    /// Waits behind a parked head of its key. The item stays in memory until this is settled.
    WaitsBehind(usize),
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
    leases: Vec<Lease>,
    window: (i64, i64),
    end: Position,
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
    pub(crate) settlement: Settlement,
    /// The number of complete pages, from the front.
    pages: usize,
    /// The end of the last of these pages when the settlement was made.
    end: Option<Position>,
}

impl OpenPages {
    /// Adds a page with pending entries and returns its number.
    pub(crate) fn push(&mut self, leases: Vec<Lease>, after: Position, page: &Page) -> u64 {
        if let Some(last) = self.pages.back_mut()
            && page.entries.is_empty()
            && last.leases == leases
            && last.end == after
        {
            // The page has no entries for these shards, so the page before is extended.
            last.end = page.end;
            return last.id;
        }
        let id = self.next_id;
        self.next_id += 1;
        let slot = |entry: &relevo_core::outbox::LogEntry| PageEntry {
            seq: entry.seq,
            slot: entry.slot,
            key: entry.message.key.clone(),
            state: EntryState::Pending,
            span: None,
        };
        let bytes = page.entries.iter().map(|entry| entry.message.memory_bytes()).sum();
        self.bytes += bytes;
        self.messages += page.entries.len();
        self.pages.push_back(OpenPage {
            id,
            leases,
            window: (after.from_tick, page.end.to_tick),
            end: page.end,
            entries: page.entries.iter().map(slot).collect(),
            pending: page.entries.len(),
            bytes,
        });
        id
    }

    pub(crate) fn resolve(&mut self, page: u64, index: usize, verdict: EntryState) {
        let Some(flight) = self.page(page) else { return };
        let slot = &mut flight.entries[index];
        let was_pending = matches!(slot.state, EntryState::Pending);
        let is_pending = matches!(verdict, EntryState::Pending);
        slot.state = verdict;
        match (was_pending, is_pending) {
            (true, false) => flight.pending -= 1,
            (false, true) => flight.pending += 1,
            _ => {}
        }
    }

    /// Adds the span of an entry that is done. It ends when the page is settled.
    pub(crate) fn attach_span(&mut self, page: u64, index: usize, span: Option<ActiveSpan>) {
        if let Some(span) = span
            && let Some(flight) = self.page(page)
        {
            flight.entries[index].span = Some(span);
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
        self.pages.iter().any(|flight| flight.leases.iter().any(|lease| lease.shard == shard))
    }

    /// Whether an unsettled message of this key failed and blocks its successors.
    pub(crate) fn has_failed_entry(&self, key: &str) -> bool {
        let holds = |slot: &PageEntry| match &slot.state {
            EntryState::Failed(stopped) => stopped.action != ParkAction::DeadContinue && slot.key == key,
            EntryState::Pending | EntryState::Done | EntryState::WaitsBehind(_) | EntryState::Parked => false,
        };
        self.pages.iter().flat_map(|flight| &flight.entries).any(holds)
    }

    /// Whether the oldest pages are complete and contain messages. Empty pages are not worth a settlement.
    pub(crate) fn is_front_complete(&self) -> bool {
        self.pages.iter().take_while(|flight| flight.pending == 0).any(|flight| !flight.entries.is_empty())
    }

    /// What can be settled: complete pages from the front, then each shard up to its first pending entry. A slow key
    /// therefore delays only its own shard. `settled` is the position of each shard in the store.
    pub(crate) fn settlement(&self, settled: &BTreeMap<u16, (Lease, Position)>) -> Option<PendingSettlement> {
        let mut progress: BTreeMap<u16, (Lease, Position)> = BTreeMap::new();
        let mut parks = Vec::new();
        let mut held_up = BTreeSet::new();
        let pages = self.pages.iter().take_while(|flight| flight.pending == 0).count();
        for flight in &self.pages {
            let reached = flight.settled_up_to(&mut held_up);
            let covered = |slot: &&PageEntry| {
                let shard = shard_of(slot.slot, flight.leases[0].shard_count);
                reached.get(&shard).is_some_and(|(_, end)| *end == flight.end || slot.seq <= end.settled_seq)
            };
            parks.extend(flight.entries.iter().filter(covered).filter_map(parked_message));
            progress.extend(reached);
        }
        // Skip a shard whose position has not changed, unless it has messages to park.
        let has_parks =
            |shard: u16, shards: u16| parks.iter().any(|park: &ParkedMessage| shard_of(park.slot, shards) == shard);
        progress.retain(|shard, (lease, position)| {
            settled.get(shard).is_none_or(|(_, known)| known != position) || has_parks(*shard, lease.shard_count)
        });
        let settlement = Settlement { progress: progress.into_values().collect(), parked: parks };
        let end = pages.checked_sub(1).and_then(|last| self.pages.get(last)).map(|flight| flight.end);
        (pages > 0 || !settlement.progress.is_empty()).then_some(PendingSettlement { settlement, pages, end })
    }

    /// Applies a recorded settlement. Returns the items that were kept because they waited behind a parked head.
    pub(crate) fn apply_settlement(&mut self, covered: &PendingSettlement) -> Vec<usize> {
        let parked: BTreeSet<i64> = covered.settlement.parked.iter().map(|park| park.seq).collect();
        let mut released = Vec::new();
        if !parked.is_empty() {
            for slot in self.pages.iter_mut().flat_map(|flight| &mut flight.entries) {
                if parked.contains(&slot.seq) {
                    if let EntryState::WaitsBehind(item) = slot.state {
                        released.push(item);
                    }
                    slot.state = EntryState::Parked;
                }
            }
        }
        let mut extended = None;
        for mut flight in self.pages.drain(..covered.pages) {
            self.bytes -= std::mem::take(&mut flight.bytes);
            let lines = std::mem::take(&mut flight.entries);
            self.messages -= lines.len();
            lines.into_iter().filter_map(|line| line.span).for_each(ActiveSpan::end);
            extended = Some(flight).filter(|last| Some(last.end) != covered.end);
        }
        // The last page was extended during the settlement. Its new end is still to be settled.
        if let Some(flight) = extended {
            self.pages.push_front(flight);
        }
        released
    }

    fn page(&mut self, id: u64) -> Option<&mut OpenPage> {
        let first = self.pages.front()?.id;
        self.pages.get_mut(usize::try_from(id.checked_sub(first)?).ok()?)
    }
}

impl OpenPage {
    /// The position up to which each shard is complete. A shard with a pending entry is added to `held_up`.
    fn settled_up_to(&self, held_up: &mut BTreeSet<u16>) -> BTreeMap<u16, (Lease, Position)> {
        let (from, to) = self.window;
        let free = self.leases.iter().filter(|lease| !held_up.contains(&lease.shard));
        if self.pending == 0 {
            return free.map(|lease| (lease.shard, (*lease, self.end))).collect();
        }
        let mut reached: BTreeMap<u16, (Lease, Position)> = free
            .map(|lease| (lease.shard, (*lease, Position { from_tick: from, to_tick: to, settled_seq: 0 })))
            .collect();
        for slot in &self.entries {
            let shard = shard_of(slot.slot, self.leases[0].shard_count);
            let Some((_, position)) = reached.get_mut(&shard).filter(|_| !held_up.contains(&shard)) else { continue };
            if matches!(slot.state, EntryState::Pending) {
                held_up.insert(shard);
            } else {
                position.settled_seq = slot.seq;
            }
        }
        reached.retain(|shard, (_, position)| {
            if !held_up.contains(shard) {
                *position = self.end;
            }
            !held_up.contains(shard) || position.settled_seq > 0
        });
        reached
    }
}

fn parked_message(slot: &PageEntry) -> Option<ParkedMessage> {
    let stopped = match &slot.state {
        EntryState::WaitsBehind(_) => None,
        EntryState::Failed(stopped) => Some((**stopped).clone()),
        EntryState::Pending | EntryState::Done | EntryState::Parked => return None,
    };
    Some(ParkedMessage { seq: slot.seq, slot: slot.slot, key: slot.key.clone(), failure: stopped })
}
