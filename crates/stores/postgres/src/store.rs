//! Implements the store ports with PostgreSQL.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::outbox::Position;
use relevo_core::outbox::leases::{Lease, LeaseRequest, LeaseResponse, ShardLeases, TakenShard};
use relevo_core::outbox::log::{OutboxReader, Page, PageRequest, SettleResult, Settlement, WindowLimit};
use relevo_core::outbox::maintenance::{Maintenance, MaintenanceReport};
use relevo_core::outbox::parked::{ParkedBatch, ParkedReader, ParkedResult, ParkedSettlement};
use relevo_core::store::StoreError;
use sqlx::Row as _;
use uuid::Uuid;

use crate::classify::Error;
use crate::config::{Config, Schema};
use crate::connection::Connection;
use crate::tick::Tick;
use crate::{migrate, queries};

/// Maximum number of cached ticks. Other ticks are read again.
const CACHED_TICKS_MAX: usize = 64;
/// Maintenance of a long history takes longer than a call of the hot path may.
const MAINTENANCE_TIMEOUT: Duration = Duration::from_mins(1);
/// Maximum number of scheduled messages that one transaction moves into the log.
const SCHEDULED_BATCH: u32 = 1000;

/// The outbox of one destination, as a relay uses it.
///
/// One connection reads and another leases and settles, so that reading ahead overlaps with settling. A third runs
/// maintenance, and a fourth runs operator queries.
pub struct Store {
    pub(crate) schema: String,
    pub(crate) destination: String,
    pub(crate) read_connection: Connection,
    pub(crate) write_connection: Connection,
    /// Slow or failed maintenance must not affect a lease.
    maintenance_connection: Connection,
    /// Slow operator queries must not affect a lease either. It connects on first use.
    pub(crate) operator_connection: Connection,
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
            read_connection: Connection::new(config.connect_options.clone(), config.call_timeout),
            write_connection: Connection::new(config.connect_options.clone(), config.call_timeout),
            maintenance_connection: Connection::new(config.connect_options.clone(), MAINTENANCE_TIMEOUT),
            operator_connection: Connection::new(config.connect_options, config.call_timeout),
            ticks: Mutex::default(),
            timeline: AtomicI64::new(0),
        };
        migrate::check(&config.schema, store.newest_migration(&config.schema).await?)?;
        Ok(store)
    }

    /// Returns the newest schema version and the oldest program that runs on it.
    async fn newest_migration(&self, schema: &Schema) -> Result<Option<(i32, Option<i32>)>, Error> {
        let rows = self.write_connection.query(migrate::exists_query(schema)).await?;
        let row = rows.first().ok_or(Error::UnexpectedResponse("no row"))?;
        if queries::column::<Option<String>>(row, 0)?.is_none() {
            return Ok(None);
        }
        let rows = self.write_connection.query(migrate::applied_query(schema)).await?;
        rows.last().map(|row| Ok((queries::column(row, 0)?, queries::column(row, 1)?))).transpose()
    }

    /// Clears the cached ticks after a break, because a promoted standby may number ticks differently.
    fn clear_ticks(&self) {
        self.ticks.lock().clear();
    }

    fn store_error(&self, error: Error) -> StoreError {
        self.clear_ticks();
        error.into()
    }

    /// Creates a tick or returns the newest. If scheduled messages are due, moves them into the log first.
    async fn newest_tick(&self) -> Result<Arc<Tick>, Error> {
        let (tick, due) = self.make_tick().await?;
        if !due {
            return Ok(tick);
        }
        // This needs its own transaction, because a transaction that creates a tick must not write messages.
        self.read_connection.query(format!("SELECT {}.move_due_scheduled({SCHEDULED_BATCH})", self.schema)).await?;
        Ok(self.make_tick().await?.0)
    }

    async fn make_tick(&self) -> Result<(Arc<Tick>, bool), Error> {
        let rows = self.read_connection.query(format!("SELECT * FROM {}.make_tick()", self.schema)).await?;
        let row = rows.first().ok_or(Error::UnexpectedResponse("no tick"))?;
        let tick = self.cache_tick(queries::tick(row)?);
        let line: i32 = row.try_get(4)?;
        let known = self.timeline.load(Ordering::Relaxed);
        // The initial tick has no timeline. A process that loses the race for the first tick gets it.
        if known != 0 && line != 0 && known != i64::from(line) {
            return Err(Error::TimelineChanged { from: known, to: line.into() });
        }
        Ok((tick, row.try_get(5)?))
    }

    async fn tick(&self, no: i64) -> Result<Arc<Tick>, Error> {
        if let Some(tick) = self.ticks.lock().get(&no) {
            return Ok(Arc::clone(tick));
        }
        let sql = format!(
            "SELECT tick, snapshot::text, max_seq, late_xids::text FROM {}.tick WHERE tick = {no}",
            self.schema
        );
        let rows = self.read_connection.query(sql).await?;
        let row = rows.first().ok_or(Error::UnexpectedResponse("a tick that progress names is gone"))?;
        Ok(self.cache_tick(queries::tick(row)?))
    }

    fn cache_tick(&self, tick: Tick) -> Arc<Tick> {
        let mut ticks = self.ticks.lock();
        let tick = Arc::clone(ticks.entry(tick.id).or_insert_with(|| Arc::new(tick)));
        while ticks.len() > CACHED_TICKS_MAX {
            ticks.pop_first();
        }
        tick
    }

    async fn read_page(&self, read: PageRequest<'_>) -> Result<Page, Error> {
        let after = read.after;
        let nothing = Page { entries: Vec::new(), end: after };
        let (to, place) = match (after.is_exhausted(), read.window_limit) {
            (false, _) => (self.tick(after.to_tick).await?, after.settled_seq),
            (true, WindowLimit::CurrentWindow) => return Ok(nothing),
            (true, WindowLimit::UntilTick(no)) if no <= after.from_tick => return Ok(nothing),
            (true, WindowLimit::UntilTick(no)) => (self.tick(no).await?, 0),
            (true, WindowLimit::Unlimited) => (self.newest_tick().await?, 0),
        };
        if to.id <= after.from_tick || read.leases.is_empty() {
            return Ok(nothing);
        }
        let from = self.tick(after.from_tick).await?;
        let sql = queries::page(&self.schema, &read, &from, &to, place);
        let mut rows = queries::page_rows(self.read_connection.copy_out(sql).await?)?;
        let found = rows.len();
        let mut bytes = 0;
        rows.retain(|row| {
            let fits = bytes < read.bytes_max;
            bytes += row.size;
            fits
        });
        let end = match rows.last() {
            Some(last) if found >= read.messages_max || found > rows.len() => {
                Position { from_tick: from.id, to_tick: to.id, settled_seq: last.seq }
            }
            _ => Position::at(to.id),
        };
        let missing: Vec<i64> = rows.iter().filter(|row| !row.has_payload).map(|row| row.seq).collect();
        let mut payloads = BTreeMap::new();
        if !missing.is_empty() {
            let answer = self.read_connection.copy_out(queries::payloads(&self.schema, &missing)).await?;
            payloads = queries::payload_rows(answer)?;
        }
        let entries = rows.into_iter().map(|row| row.with_payload(&mut payloads)).collect::<Result<_, _>>()?;
        Ok(Page { entries, end })
    }
}

#[async_trait]
impl ShardLeases for Store {
    async fn acquire_leases(&self, ask: LeaseRequest) -> Result<LeaseResponse, StoreError> {
        let call = async {
            let sql = queries::acquire_leases(&self.schema, &self.destination, &ask);
            let answer = queries::json_response(&self.write_connection.query(sql).await?)?;
            queries::lease_response(&answer, &ask)
        };
        let (leased, timeline) = call.await.map_err(|error| self.store_error(error))?;
        if self.timeline.swap(timeline, Ordering::Relaxed) != timeline {
            self.clear_ticks();
        }
        Ok(leased)
    }

    async fn standing(&self, leases: &[Lease]) -> Result<Vec<TakenShard>, StoreError> {
        let Some(first) = leases.first() else { return Ok(Vec::new()) };
        let call = async {
            let rows = self.write_connection.query(queries::positions(&self.schema, &self.destination)).await?;
            let mut standings = queries::taken_shards(&rows, leases)?;
            let answer =
                self.write_connection.copy_out(queries::parked_keys(&self.schema, &self.destination, leases)).await?;
            queries::add_parked(answer, first.shard_count, &mut standings)?;
            Ok(standings)
        };
        call.await.map_err(|error| self.store_error(error))
    }

    async fn release_leases(&self, owner: Uuid) -> Result<(), StoreError> {
        let sql = format!("SELECT {}.release_leases({}, '{owner}')", self.schema, queries::literal(&self.destination));
        self.write_connection.query(sql).await.map_err(|error| self.store_error(error))?;
        Ok(())
    }
}

#[async_trait]
impl OutboxReader for Store {
    async fn read(&self, read: PageRequest<'_>) -> Result<Page, StoreError> {
        self.read_page(read).await.map_err(|error| self.store_error(error))
    }

    async fn settle(&self, settlement: Settlement) -> Result<SettleResult, StoreError> {
        if settlement.progress.is_empty() {
            return Ok(SettleResult::default());
        }
        let call = async {
            let sql = queries::settle(&self.schema, &self.destination, &settlement);
            queries::settle_result(&queries::json_response(&self.write_connection.query(sql).await?)?)
        };
        call.await.map_err(|error| self.store_error(error))
    }
}

#[async_trait]
impl ParkedReader for Store {
    async fn read_parked(
        &self,
        leases: &[Lease],
        keys: usize,
        messages: usize,
    ) -> Result<Vec<ParkedBatch>, StoreError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let sql = queries::read_parked(&self.schema, &self.destination, leases, keys, messages);
        let call = async { queries::parked_batches(self.write_connection.copy_out(sql).await?) };
        call.await.map_err(|error| self.store_error(error))
    }

    async fn settle_parked(&self, advances: Vec<ParkedSettlement>) -> Result<Vec<ParkedResult>, StoreError> {
        if advances.is_empty() {
            return Ok(Vec::new());
        }
        let call = async {
            let sql = queries::settle_parked(&self.schema, &self.destination, &advances);
            let answer = queries::json_response(&self.write_connection.query(sql).await?)?;
            let answers = answer.as_array().ok_or(Error::UnexpectedResponse("runs are malformed"))?;
            if answers.len() != advances.len() {
                return Err(Error::UnexpectedResponse("runs are missing"));
            }
            let word = |value: &serde_json::Value| match value.as_str() {
                Some("lost") => Ok(ParkedResult::LeaseLost),
                Some("unparked") => Ok(ParkedResult::KeyFreed),
                Some("waits") => Ok(ParkedResult::StillParked),
                _ => Err(Error::UnexpectedResponse("runs are malformed")),
            };
            answers.iter().map(word).collect()
        };
        call.await.map_err(|error| self.store_error(error))
    }
}

#[async_trait]
impl Maintenance for Store {
    async fn maintain(&self) -> Result<MaintenanceReport, StoreError> {
        let call = async {
            let rows = self.maintenance_connection.query(format!("SELECT {}.maintain()::text", self.schema)).await?;
            let answer = queries::json_response(&rows)?;
            let count = |name: &str| u32::try_from(answer[name].as_u64().unwrap_or(0)).unwrap_or(u32::MAX);
            let warnings = answer["warnings"].as_array().map_or_else(Vec::new, |list| {
                list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
            });
            Ok(MaintenanceReport {
                skipped: answer["busy"].as_bool().unwrap_or(false),
                prepared: count("partitions_created"),
                dropped: count("partitions_emptied"),
                warnings,
            })
        };
        call.await.map_err(|error: Error| error.into())
    }
}
