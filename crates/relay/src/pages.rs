//! Pages in flight, and how much of them can be settled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytestring::ByteString;
use relevo_core::slot::shard_of;
use relevo_core::store::{Lease, Page, Park, Position, Settlement, Stop, Stopped};
use relevo_core::trace::Open;

/// The state of one entry of a page.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// Not known yet.
    Pending,
    /// Confirmed, or not matched by any route of this destination.
    Done,
    /// Waits behind a parked head of its key. The item stays in memory until this is settled.
    Behind(usize),
    /// Failed.
    Stopped(Box<Stopped>),
    /// Parked, and recorded in the store.
    Parked,
}

#[derive(Debug)]
struct Line {
    seq: i64,
    slot: u16,
    key: ByteString,
    verdict: Verdict,
    /// Ends when the entry is settled.
    span: Option<Open>,
}

#[derive(Debug)]
struct Flight {
    id: u64,
    leases: Vec<Lease>,
    window: (i64, i64),
    end: Position,
    slots: Vec<Line>,
    pending: usize,
    bytes: usize,
}

/// Open pages in reading order. They are settled in that order.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    flights: VecDeque<Flight>,
    next_id: u64,
    bytes: usize,
    messages: usize,
}

/// The content of a settlement. It is applied to the pages after the store has recorded it.
#[derive(Debug)]
pub(crate) struct Covered {
    pub(crate) settlement: Settlement,
    /// The number of complete pages, from the front.
    pages: usize,
    /// The end of the last of these pages when the settlement was made.
    end: Option<Position>,
}

impl Pages {
    /// Adds a page with pending entries and returns its number.
    pub(crate) fn push(&mut self, leases: Vec<Lease>, after: Position, page: &Page) -> u64 {
        if let Some(last) = self.flights.back_mut()
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
        let slot = |entry: &relevo_core::store::Entry| Line {
            seq: entry.seq,
            slot: entry.slot,
            key: entry.message.key.clone(),
            verdict: Verdict::Pending,
            span: None,
        };
        let bytes = page.entries.iter().map(|entry| entry.message.weight()).sum();
        self.bytes += bytes;
        self.messages += page.entries.len();
        self.flights.push_back(Flight {
            id,
            leases,
            window: (after.from, page.end.to),
            end: page.end,
            slots: page.entries.iter().map(slot).collect(),
            pending: page.entries.len(),
            bytes,
        });
        id
    }

    pub(crate) fn resolve(&mut self, page: u64, index: usize, verdict: Verdict) {
        let Some(flight) = self.flight(page) else { return };
        let slot = &mut flight.slots[index];
        let was_pending = matches!(slot.verdict, Verdict::Pending);
        let is_pending = matches!(verdict, Verdict::Pending);
        slot.verdict = verdict;
        match (was_pending, is_pending) {
            (true, false) => flight.pending -= 1,
            (false, true) => flight.pending += 1,
            _ => {}
        }
    }

    /// Adds the span of an entry that is done. It ends when the page is settled.
    pub(crate) fn will_settle(&mut self, page: u64, index: usize, span: Option<Open>) {
        if let Some(span) = span
            && let Some(flight) = self.flight(page)
        {
            flight.slots[index].span = Some(span);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.flights.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    pub(crate) fn holds_shard(&self, shard: u16) -> bool {
        self.flights.iter().any(|flight| flight.leases.iter().any(|lease| lease.shard == shard))
    }

    /// Whether an unsettled message of this key failed and blocks its successors.
    pub(crate) fn holds_stopped(&self, key: &str) -> bool {
        let holds = |slot: &Line| match &slot.verdict {
            Verdict::Stopped(stopped) => stopped.stop != Stop::DeadContinue && slot.key == key,
            Verdict::Pending | Verdict::Done | Verdict::Behind(_) | Verdict::Parked => false,
        };
        self.flights.iter().flat_map(|flight| &flight.slots).any(holds)
    }

    /// Whether the oldest pages are complete and contain messages. Empty pages are not worth a settlement.
    pub(crate) fn is_front_done(&self) -> bool {
        self.flights.iter().take_while(|flight| flight.pending == 0).any(|flight| !flight.slots.is_empty())
    }

    /// What can be settled: complete pages from the front, then each shard up to its first pending entry. A slow key
    /// therefore delays only its own shard. `settled` is the position of each shard in the store.
    pub(crate) fn settlement(&self, settled: &BTreeMap<u16, (Lease, Position)>) -> Option<Covered> {
        let mut progress: BTreeMap<u16, (Lease, Position)> = BTreeMap::new();
        let mut parks = Vec::new();
        let mut held_up = BTreeSet::new();
        let pages = self.flights.iter().take_while(|flight| flight.pending == 0).count();
        for flight in &self.flights {
            let reached = flight.reached(&mut held_up);
            let covered = |slot: &&Line| {
                let shard = shard_of(slot.slot, flight.leases[0].shards);
                reached.get(&shard).is_some_and(|(_, end)| *end == flight.end || slot.seq <= end.place)
            };
            parks.extend(flight.slots.iter().filter(covered).filter_map(park));
            progress.extend(reached);
        }
        // Skip a shard whose position has not changed, unless it has messages to park.
        let has_parks = |shard: u16, shards: u16| parks.iter().any(|park: &Park| shard_of(park.slot, shards) == shard);
        progress.retain(|shard, (lease, position)| {
            settled.get(shard).is_none_or(|(_, known)| known != position) || has_parks(*shard, lease.shards)
        });
        let settlement = Settlement { progress: progress.into_values().collect(), parks };
        let end = pages.checked_sub(1).and_then(|last| self.flights.get(last)).map(|flight| flight.end);
        (pages > 0 || !settlement.progress.is_empty()).then_some(Covered { settlement, pages, end })
    }

    /// Applies a recorded settlement. Returns the items that were kept because they waited behind a parked head.
    pub(crate) fn settled(&mut self, covered: &Covered) -> Vec<usize> {
        let parked: BTreeSet<i64> = covered.settlement.parks.iter().map(|park| park.seq).collect();
        let mut released = Vec::new();
        if !parked.is_empty() {
            for slot in self.flights.iter_mut().flat_map(|flight| &mut flight.slots) {
                if parked.contains(&slot.seq) {
                    if let Verdict::Behind(item) = slot.verdict {
                        released.push(item);
                    }
                    slot.verdict = Verdict::Parked;
                }
            }
        }
        let mut extended = None;
        for mut flight in self.flights.drain(..covered.pages) {
            self.bytes -= std::mem::take(&mut flight.bytes);
            let lines = std::mem::take(&mut flight.slots);
            self.messages -= lines.len();
            lines.into_iter().filter_map(|line| line.span).for_each(Open::end);
            extended = Some(flight).filter(|last| Some(last.end) != covered.end);
        }
        // The last page was extended during the settlement. Its new end is still to be settled.
        if let Some(flight) = extended {
            self.flights.push_front(flight);
        }
        released
    }

    fn flight(&mut self, id: u64) -> Option<&mut Flight> {
        let first = self.flights.front()?.id;
        self.flights.get_mut(usize::try_from(id.checked_sub(first)?).ok()?)
    }
}

impl Flight {
    /// The position up to which each shard is complete. A shard with a pending entry is added to `held_up`.
    fn reached(&self, held_up: &mut BTreeSet<u16>) -> BTreeMap<u16, (Lease, Position)> {
        let (from, to) = self.window;
        let free = self.leases.iter().filter(|lease| !held_up.contains(&lease.shard));
        if self.pending == 0 {
            return free.map(|lease| (lease.shard, (*lease, self.end))).collect();
        }
        let mut reached: BTreeMap<u16, (Lease, Position)> =
            free.map(|lease| (lease.shard, (*lease, Position { from, to, place: 0 }))).collect();
        for slot in &self.slots {
            let shard = shard_of(slot.slot, self.leases[0].shards);
            let Some((_, position)) = reached.get_mut(&shard).filter(|_| !held_up.contains(&shard)) else { continue };
            if matches!(slot.verdict, Verdict::Pending) {
                held_up.insert(shard);
            } else {
                position.place = slot.seq;
            }
        }
        reached.retain(|shard, (_, position)| {
            if !held_up.contains(shard) {
                *position = self.end;
            }
            !held_up.contains(shard) || position.place > 0
        });
        reached
    }
}

fn park(slot: &Line) -> Option<Park> {
    let stopped = match &slot.verdict {
        Verdict::Behind(_) => None,
        Verdict::Stopped(stopped) => Some((**stopped).clone()),
        Verdict::Pending | Verdict::Done | Verdict::Parked => return None,
    };
    Some(Park { seq: slot.seq, slot: slot.slot, key: slot.key.clone(), stopped })
}
