//! The log: rows, transaction numbers, snapshots, ticks and windows, as in PostgreSQL.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use relevo_core::Message;
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::{Page, PageRequest, ReadShard, WindowLimit};
use relevo_core::outbox::{LogEntry, Position, rules};
use relevo_core::slot::{SLOTS, slot_of};
use relevo_core::store::StoreError;

use crate::state::Micros;

/// The first transaction number. Any value works, because numbers are only compared with each other.
const FIRST_XID: i64 = 1000;

/// The transactions visible at one moment: those below `xmax` that are not in `xip`.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    xmax: i64,
    /// Open transactions below `xmax`.
    xip: BTreeSet<i64>,
}

impl Snapshot {
    /// Rows of rolled-back transactions are deleted, so an ended transaction has committed.
    pub(crate) fn sees(&self, xid: i64) -> bool {
        xid < self.xmax && !self.xip.contains(&xid)
    }
}

/// A moment of the log at which windows start and end.
#[derive(Clone, Debug)]
pub(crate) struct Tick {
    pub(crate) snapshot: Snapshot,
    /// The last assigned sequence number, read after the snapshot.
    last_seq: i64,
    /// The next transaction number, read after `last_seq`.
    next_xid: i64,
    pub(crate) created_at: Micros,
}

#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) xid: i64,
    pub(crate) entry: LogEntry,
    pub(crate) inserted_at: Micros,
}

#[derive(Debug)]
pub(crate) struct Log {
    next_xid: i64,
    /// The last assigned sequence number, whether or not its transaction commits.
    last_seq: i64,
    /// Open transactions that have a number.
    running: BTreeSet<i64>,
    ended_max: i64,
    /// Rows by sequence number, including those of open transactions.
    pub(crate) rows: BTreeMap<i64, Row>,
    /// The (xid, seq) of each row, to find rows of late transactions.
    by_xid: BTreeSet<(i64, i64)>,
    pub(crate) ticks: BTreeMap<i64, Tick>,
    /// Every message ever committed, in commit order. Oracles compare with it.
    pub(crate) history: Vec<LogEntry>,
}

impl Log {
    pub(crate) fn new() -> Self {
        let snapshot = Snapshot { xmax: FIRST_XID, xip: BTreeSet::new() };
        let genesis = Tick { snapshot, last_seq: 0, next_xid: FIRST_XID, created_at: 0 };
        Self {
            next_xid: FIRST_XID,
            last_seq: 0,
            running: BTreeSet::new(),
            ended_max: FIRST_XID - 1,
            rows: BTreeMap::new(),
            by_xid: BTreeSet::new(),
            ticks: BTreeMap::from([(0, genesis)]),
            history: Vec::new(),
        }
    }

    /// Assigns a number to a transaction.
    pub(crate) fn assign_xid(&mut self) -> i64 {
        let xid = self.next_xid;
        self.next_xid += 1;
        self.running.insert(xid);
        xid
    }

    /// Adds a row to an open transaction and assigns the next sequence number.
    pub(crate) fn insert(&mut self, xid: i64, message: Arc<Message>, inserted_at: Micros) -> i64 {
        self.last_seq += 1;
        let seq = self.last_seq;
        let entry = LogEntry { seq, slot: slot_of(&message.key), message };
        self.rows.insert(seq, Row { xid, entry, inserted_at });
        self.by_xid.insert((xid, seq));
        seq
    }

    /// Removes a row after a rollback or by retention. Its sequence number is never used again.
    pub(crate) fn remove(&mut self, seq: i64) -> Option<Row> {
        let row = self.rows.remove(&seq)?;
        self.by_xid.remove(&(row.xid, seq));
        Some(row)
    }

    /// Ends a transaction. From now on, snapshots see its remaining rows.
    pub(crate) fn end(&mut self, xid: i64) {
        let entries = self.by_xid.range((xid, 0)..=(xid, i64::MAX)).filter_map(|(_, seq)| self.rows.get(seq));
        self.history.extend(entries.map(|row| row.entry.clone()));
        self.running.remove(&xid);
        self.ended_max = self.ended_max.max(xid);
    }

    fn snapshot(&self) -> Snapshot {
        let xmax = self.ended_max + 1;
        Snapshot { xmax, xip: self.running.range(..xmax).copied().collect() }
    }

    /// Whether the transaction of a row has committed.
    pub(crate) fn is_committed(&self, row: &Row) -> bool {
        !self.running.contains(&row.xid)
    }

    pub(crate) fn newest_tick(&self) -> i64 {
        self.ticks.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// Creates a tick, unless it would equal the newest one. Returns the number of the newest tick.
    pub(crate) fn tick(&mut self, now: Micros) -> i64 {
        let newest = self.newest_tick();
        let idle = self.ticks.get(&newest).is_some_and(|tick| {
            let mut late = tick.snapshot.xip.iter().copied().chain(tick.snapshot.xmax..tick.next_xid);
            tick.last_seq == self.last_seq && late.all(|xid| self.running.contains(&xid))
        });
        if idle {
            return newest;
        }
        let snapshot = self.snapshot();
        let last_seq = self.last_seq;
        // The tick's own transaction also has a number. It ends here, so that the next snapshot is above it.
        let next_xid = self.assign_xid();
        self.end(next_xid);
        self.ticks.insert(newest + 1, Tick { snapshot, last_seq, next_xid, created_at: now });
        newest + 1
    }

    /// Reads a page. If the window is exhausted, opens a new one.
    pub(crate) fn read(&mut self, request: &PageRequest<'_>, now: Micros) -> Result<Page, StoreError> {
        let Some((after, leases)) = rules::oldest_group(request.shards) else { return Ok(Page::default()) };
        let has_all_shards = leases.len() == request.shards.len();
        let start = match (after.is_exhausted(), request.window_limit) {
            (false, _) | (true, WindowLimit::CurrentWindow) => after.clone(),
            (true, WindowLimit::UntilTick(tick)) => rules::open_window(after, tick),
            (true, WindowLimit::Unlimited) => rules::open_window(after, self.tick(now)),
        };
        if start.is_exhausted() {
            return Ok(Page { caught_up: has_all_shards, ..Page::default() });
        }
        let limit = request.messages_max.max(1);
        let mut entries = self.page(&leases, &start, limit)?;
        let found = entries.len();
        let mut bytes = 0;
        entries.retain(|entry| {
            let fits = bytes < request.bytes_max;
            bytes += entry.message.payload.len();
            fits
        });
        let end = match entries.last() {
            Some(last) if found == limit || found > entries.len() => {
                Position::in_window(start.from_tick(), start.to_tick(), last.seq)
            }
            _ => Position::at(start.to_tick()),
        };
        let read = |lease| ReadShard { lease, start: start.clone(), end: end.clone() };
        let caught_up = entries.is_empty() && has_all_shards && after.is_exhausted();
        Ok(Page { entries, shards: leases.into_iter().map(read).collect(), caught_up })
    }

    fn page(&self, leases: &[Lease], window: &Position, limit: usize) -> Result<Vec<LogEntry>, StoreError> {
        let from = self.find_tick(window.from_tick())?;
        let to = self.find_tick(window.to_tick())?;
        let slots = slots_of(leases);
        let is_new =
            |row: &Row| slots[usize::from(row.entry.slot)] && to.snapshot.sees(row.xid) && !from.snapshot.sees(row.xid);
        let late = self.late(from, window.settled_seq());
        let young = self.rows.range(window.settled_seq().max(from.last_seq) + 1..).map(|(_, row)| row);
        let young = young.take_while(|row| row.entry.seq <= to.last_seq);
        let rows = late.iter().filter_map(|seq| self.rows.get(seq)).chain(young);
        Ok(rows.filter(|row| is_new(row)).take(limit).map(|row| row.entry.clone()).collect())
    }

    /// Rows after `after_seq` of transactions that had a number at the tick but were still open.
    fn late(&self, tick: &Tick, after_seq: i64) -> Vec<i64> {
        let listed = tick.snapshot.xip.iter();
        let listed = listed.flat_map(|xid| self.by_xid.range((*xid, after_seq + 1)..=(*xid, i64::MAX)));
        // No snapshot lists transactions that began after the last ended one.
        let unlisted = self.by_xid.range((tick.snapshot.xmax, 0)..(tick.next_xid, 0));
        let seqs = listed.chain(unlisted).map(|(_, seq)| *seq);
        let mut late: Vec<i64> = seqs.filter(|seq| after_seq < *seq && *seq <= tick.last_seq).collect();
        late.sort_unstable();
        late
    }

    fn find_tick(&self, number: i64) -> Result<&Tick, StoreError> {
        self.ticks.get(&number).ok_or_else(|| StoreError::Unexpected(format!("tick {number} does not exist").into()))
    }
}

/// Marks the slots that belong to the leased shards.
fn slots_of(leases: &[Lease]) -> Vec<bool> {
    let mut slots = vec![false; usize::from(SLOTS)];
    for lease in leases {
        for slot in (lease.shard..SLOTS).step_by(usize::from(lease.shard_count.max(1))) {
            slots[usize::from(slot)] = true;
        }
    }
    slots
}
