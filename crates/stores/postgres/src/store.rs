//! Implements the store ports with PostgreSQL.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::store::{
    Advance, Advanced, Ask, Ceiling, Lease, Leased, Leases, Maintained, OutboxReader, Page, ParkedKeys, Position, Read,
    Run, Settled, Settlement, Standing, StoreError, Upkeep,
};
use sqlx::Row as _;
use uuid::Uuid;

use crate::classify::Error;
use crate::config::{Config, Schema};
use crate::link::Link;
use crate::snapshot::Tick;
use crate::{migrate, queries};

/// Maximum number of cached ticks. Other ticks are read again.
const TICKS_MAX: usize = 64;
/// Maintenance of a long history takes longer than a call of the hot path may.
const UPKEEP_DEADLINE: Duration = Duration::from_mins(1);
/// Maximum number of scheduled messages that one transaction moves into the log.
const ENTER_MAX: u32 = 1000;

/// The outbox of one destination, as a relay uses it.
///
/// One connection reads and another leases and settles, so that reading ahead overlaps with settling. A third runs
/// maintenance, and a fourth runs operator queries.
pub struct Store {
    pub(crate) schema: String,
    pub(crate) destination: String,
    pub(crate) reading: Link,
    pub(crate) settling: Link,
    /// Slow or failed maintenance must not affect a lease.
    tending: Link,
    /// Slow operator queries must not affect a lease either. It connects on first use.
    pub(crate) asking: Link,
    ticks: Mutex<BTreeMap<i64, Arc<Tick>>>,
    /// The timeline on which the leases were acquired. 0 before the first lease.
    timeline: AtomicI64,
}

impl Store {
    /// Connects and checks that this program supports the schema version.
    pub async fn open(config: Config) -> Result<Self, StoreError> {
        let store = Self {
            schema: config.schema.quoted(),
            destination: config.destination,
            reading: Link::new(config.connect.clone(), config.call_deadline),
            settling: Link::new(config.connect.clone(), config.call_deadline),
            tending: Link::new(config.connect.clone(), UPKEEP_DEADLINE),
            asking: Link::new(config.connect, config.call_deadline),
            ticks: Mutex::default(),
            timeline: AtomicI64::new(0),
        };
        migrate::check(&config.schema, store.newest(&config.schema).await?)?;
        Ok(store)
    }

    /// Returns the newest schema version and the oldest program that runs on it.
    async fn newest(&self, schema: &Schema) -> Result<Option<(i32, Option<i32>)>, Error> {
        let rows = self.settling.call(migrate::exists_query(schema)).await?;
        let row = rows.first().ok_or(Error::Answer("no row"))?;
        if queries::column::<Option<String>>(row, 0)?.is_none() {
            return Ok(None);
        }
        let rows = self.settling.call(migrate::applied_query(schema)).await?;
        rows.last().map(|row| Ok((queries::column(row, 0)?, queries::column(row, 1)?))).transpose()
    }

    /// Clears the cached ticks after a break, because a promoted standby may number ticks differently.
    fn forget(&self) {
        lock(&self.ticks).clear();
    }

    fn failed(&self, error: Error) -> StoreError {
        self.forget();
        error.into()
    }

    /// Creates a tick or returns the newest. If scheduled messages are due, moves them into the log first.
    async fn newest_tick(&self) -> Result<Arc<Tick>, Error> {
        let (tick, due) = self.make_tick().await?;
        if !due {
            return Ok(tick);
        }
        // This needs its own transaction, because a transaction that creates a tick must not write messages.
        self.reading.call(format!("SELECT {}.move_due_scheduled({ENTER_MAX})", self.schema)).await?;
        Ok(self.make_tick().await?.0)
    }

    async fn make_tick(&self) -> Result<(Arc<Tick>, bool), Error> {
        let rows = self.reading.call(format!("SELECT * FROM {}.make_tick()", self.schema)).await?;
        let row = rows.first().ok_or(Error::Answer("no tick"))?;
        let tick = self.remember(queries::tick(row)?);
        let line: i32 = row.try_get(4)?;
        let known = self.timeline.load(Ordering::Relaxed);
        // The initial tick has no timeline. A process that loses the race for the first tick gets it.
        if known != 0 && line != 0 && known != i64::from(line) {
            return Err(Error::Timeline { from: known, to: line.into() });
        }
        Ok((tick, row.try_get(5)?))
    }

    async fn tick(&self, no: i64) -> Result<Arc<Tick>, Error> {
        if let Some(tick) = lock(&self.ticks).get(&no) {
            return Ok(Arc::clone(tick));
        }
        let sql = format!(
            "SELECT tick, snapshot::text, max_seq, late_xids::text FROM {}.tick WHERE tick = {no}",
            self.schema
        );
        let rows = self.reading.call(sql).await?;
        let row = rows.first().ok_or(Error::Answer("a tick that progress names is gone"))?;
        Ok(self.remember(queries::tick(row)?))
    }

    fn remember(&self, tick: Tick) -> Arc<Tick> {
        let mut ticks = lock(&self.ticks);
        let tick = Arc::clone(ticks.entry(tick.no).or_insert_with(|| Arc::new(tick)));
        while ticks.len() > TICKS_MAX {
            ticks.pop_first();
        }
        tick
    }

    async fn read_page(&self, read: Read<'_>) -> Result<Page, Error> {
        let after = read.after;
        let nothing = Page { entries: Vec::new(), end: after };
        let (to, place) = match (after.is_exhausted(), read.ceiling) {
            (false, _) => (self.tick(after.to).await?, after.place),
            (true, Ceiling::NoNewWindow) => return Ok(nothing),
            (true, Ceiling::Tick(no)) if no <= after.from => return Ok(nothing),
            (true, Ceiling::Tick(no)) => (self.tick(no).await?, 0),
            (true, Ceiling::Open) => (self.newest_tick().await?, 0),
        };
        if to.no <= after.from || read.leases.is_empty() {
            return Ok(nothing);
        }
        let from = self.tick(after.from).await?;
        let sql = queries::page(&self.schema, &read, &from, &to, place);
        let mut rows = queries::page_rows(self.reading.copy(sql).await?)?;
        let found = rows.len();
        let mut bytes = 0;
        rows.retain(|row| {
            let fits = bytes < read.bytes;
            bytes += row.size;
            fits
        });
        let end = match rows.last() {
            Some(last) if found >= read.limit || found > rows.len() => {
                Position { from: from.no, to: to.no, place: last.seq }
            }
            _ => Position::at(to.no),
        };
        let missing: Vec<i64> = rows.iter().filter(|row| !row.is_whole).map(|row| row.seq).collect();
        let mut payloads = BTreeMap::new();
        if !missing.is_empty() {
            let answer = self.reading.copy(queries::payloads(&self.schema, &missing)).await?;
            payloads = queries::payload_rows(answer)?;
        }
        let entries = rows.into_iter().map(|row| row.complete(&mut payloads)).collect::<Result<_, _>>()?;
        Ok(Page { entries, end })
    }
}

#[async_trait]
impl Leases for Store {
    async fn lease(&self, ask: Ask) -> Result<Leased, StoreError> {
        let call = async {
            let sql = queries::take_leases(&self.schema, &self.destination, &ask);
            let answer = queries::json_answer(&self.settling.call(sql).await?)?;
            queries::leased(&answer, &ask)
        };
        let (leased, timeline) = call.await.map_err(|error| self.failed(error))?;
        if self.timeline.swap(timeline, Ordering::Relaxed) != timeline {
            self.forget();
        }
        Ok(leased)
    }

    async fn standing(&self, leases: &[Lease]) -> Result<Vec<Standing>, StoreError> {
        let Some(first) = leases.first() else { return Ok(Vec::new()) };
        let call = async {
            let rows = self.settling.call(queries::positions(&self.schema, &self.destination)).await?;
            let mut standings = queries::standing(&rows, leases)?;
            let answer = self.settling.copy(queries::parked_keys(&self.schema, &self.destination, leases)).await?;
            queries::add_parked(answer, first.shards, &mut standings)?;
            Ok(standings)
        };
        call.await.map_err(|error| self.failed(error))
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        let sql = format!("SELECT {}.release_leases({}, '{owner}')", self.schema, queries::literal(&self.destination));
        self.settling.call(sql).await.map_err(|error| self.failed(error))?;
        Ok(())
    }
}

#[async_trait]
impl OutboxReader for Store {
    async fn read(&self, read: Read<'_>) -> Result<Page, StoreError> {
        self.read_page(read).await.map_err(|error| self.failed(error))
    }

    async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        if settlement.progress.is_empty() {
            return Ok(Settled::default());
        }
        let call = async {
            let sql = queries::settle(&self.schema, &self.destination, &settlement);
            queries::settled(&queries::json_answer(&self.settling.call(sql).await?)?)
        };
        call.await.map_err(|error| self.failed(error))
    }
}

#[async_trait]
impl ParkedKeys for Store {
    async fn due(&self, leases: &[Lease], keys: usize, messages: usize) -> Result<Vec<Run>, StoreError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let sql = queries::due(&self.schema, &self.destination, leases, keys, messages);
        let call = async { queries::runs(self.settling.copy(sql).await?) };
        call.await.map_err(|error| self.failed(error))
    }

    async fn advance(&self, advances: Vec<Advance>) -> Result<Vec<Advanced>, StoreError> {
        if advances.is_empty() {
            return Ok(Vec::new());
        }
        let call = async {
            let sql = queries::advance(&self.schema, &self.destination, &advances);
            let answer = queries::json_answer(&self.settling.call(sql).await?)?;
            let answers = answer.as_array().ok_or(Error::Answer("runs are malformed"))?;
            if answers.len() != advances.len() {
                return Err(Error::Answer("runs are missing"));
            }
            let word = |value: &serde_json::Value| match value.as_str() {
                Some("lost") => Ok(Advanced::Lost),
                Some("unparked") => Ok(Advanced::Unparked),
                Some("waits") => Ok(Advanced::Waits),
                _ => Err(Error::Answer("runs are malformed")),
            };
            answers.iter().map(word).collect()
        };
        call.await.map_err(|error| self.failed(error))
    }
}

#[async_trait]
impl Upkeep for Store {
    async fn maintain(&self) -> Result<Maintained, StoreError> {
        let call = async {
            let rows = self.tending.call(format!("SELECT {}.maintain()::text", self.schema)).await?;
            let answer = queries::json_answer(&rows)?;
            let count = |name: &str| u32::try_from(answer[name].as_u64().unwrap_or(0)).unwrap_or(u32::MAX);
            let warnings = answer["warnings"].as_array().map_or_else(Vec::new, |list| {
                list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
            });
            Ok(Maintained {
                busy: answer["busy"].as_bool().unwrap_or(false),
                prepared: count("partitions_created"),
                dropped: count("partitions_emptied"),
                warnings,
            })
        };
        call.await.map_err(|error: Error| error.into())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // The map of ticks is consistent after every change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
