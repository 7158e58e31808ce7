//! Implements the store ports with PostgreSQL.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::outbox::leases::{Lease, LeaseRequest, LeaseResponse, ShardLeases, TakenShard};
use relevo_core::outbox::log::{OutboxReader, Page, PageRequest, ReadShard, SettleResult, Settlement, WindowLimit};
use relevo_core::outbox::maintenance::{Maintenance, MaintenanceReport};
use relevo_core::outbox::parked::{ParkedBatch, ParkedReader, ParkedResult, ParkedSettlement};
use relevo_core::outbox::{Position, rules};
use relevo_core::store::StoreError;
use tokio::time::Instant;
use uuid::Uuid;

use crate::classify::Error;
use crate::config::Config;
use crate::connection::Connection;
use crate::queries::{leases, parked, read, settle};
use crate::tick::Tick;
use crate::{migrate, queries};

/// Maximum number of cached ticks. Other ticks are read again.
const CACHED_TICKS_MAX: usize = 64;
/// Maintenance of a long history takes longer than a call of the hot path may.
const MAINTENANCE_TIMEOUT: Duration = Duration::from_mins(1);

/// The outbox of one destination, as a relay uses it.
///
/// One connection reads and another leases and settles, so that reading ahead overlaps with settling. A third runs
/// maintenance.
pub struct Store {
    schema: String,
    destination: String,
    read_connection: Connection,
    write_connection: Connection,
    /// Slow or failed maintenance must not affect a lease.
    maintenance_connection: Connection,
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
            maintenance_connection: Connection::new(config.connect_options, MAINTENANCE_TIMEOUT),
            ticks: Mutex::default(),
            timeline: AtomicI64::new(0),
        };
        migrate::check_connection(&store.write_connection, &config.schema).await?;
        Ok(store)
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
        self.read_connection.query(read::move_due_scheduled(&self.schema)).await?;
        Ok(self.make_tick().await?.0)
    }

    async fn make_tick(&self) -> Result<(Arc<Tick>, bool), Error> {
        let new = read::new_tick(&self.read_connection.query(read::make_tick(&self.schema)).await?)?;
        let tick = self.cache_tick(new.tick);
        let known = self.timeline.load(Ordering::Relaxed);
        // The initial tick has no timeline. A process that loses the race for the first tick gets it.
        if known != 0 && new.timeline != 0 && known != new.timeline {
            return Err(Error::TimelineChanged { from: known, to: new.timeline });
        }
        Ok((tick, new.is_due))
    }

    async fn tick(&self, id: i64) -> Result<Arc<Tick>, Error> {
        if let Some(tick) = self.ticks.lock().get(&id) {
            return Ok(Arc::clone(tick));
        }
        let rows = self.read_connection.query(read::select_tick(&self.schema, id)).await?;
        let row = rows.first().ok_or(Error::MissingTick(id))?;
        Ok(self.cache_tick(read::tick(row)?))
    }

    fn cache_tick(&self, tick: Tick) -> Arc<Tick> {
        let mut ticks = self.ticks.lock();
        let tick = Arc::clone(ticks.entry(tick.id).or_insert_with(|| Arc::new(tick)));
        while ticks.len() > CACHED_TICKS_MAX {
            ticks.pop_first();
        }
        tick
    }

    /// Reads the state of newly acquired shards.
    async fn taken_shards(&self, leases: &[Lease]) -> Result<Vec<TakenShard>, Error> {
        let Some(first) = leases.first() else { return Ok(Vec::new()) };
        let rows = self.write_connection.query(leases::positions(&self.schema, &self.destination)).await?;
        let mut shards = leases::taken_shards(&rows, leases)?;
        let sql = leases::parked_keys(&self.schema, &self.destination, leases);
        leases::add_parked(self.write_connection.copy_out(sql).await?, first.shard_count, &mut shards)?;
        Ok(shards)
    }

    async fn read_page(&self, request: PageRequest<'_>) -> Result<Page, Error> {
        let Some((after, leases)) = rules::oldest_group(request.shards) else { return Ok(Page::default()) };
        let has_all_shards = leases.len() == request.shards.len();
        // Nothing was read.
        let empty = Page { caught_up: has_all_shards, ..Page::default() };
        let (to, settled_seq) = match (after.is_exhausted(), request.window_limit) {
            (false, _) => (self.tick(after.to_tick()).await?, after.settled_seq()),
            (true, WindowLimit::CurrentWindow) => return Ok(empty),
            (true, WindowLimit::UntilTick(tick)) if tick <= after.from_tick() => return Ok(empty),
            (true, WindowLimit::UntilTick(tick)) => (self.tick(tick).await?, 0),
            (true, WindowLimit::Unlimited) => (self.newest_tick().await?, 0),
        };
        if to.id <= after.from_tick() {
            return Ok(empty);
        }
        let from = self.tick(after.from_tick()).await?;
        let sql = read::page(&self.schema, &request, &leases, &from, &to, settled_seq);
        let mut rows = read::page_rows(self.read_connection.copy_out(sql).await?)?;
        let found = rows.len();
        let mut bytes = 0;
        rows.retain(|row| {
            let fits = bytes < request.bytes_max;
            bytes += row.size;
            fits
        });
        let end = match rows.last() {
            Some(last) if found >= request.messages_max || found > rows.len() => {
                Position::in_window(from.id, to.id, last.seq)
            }
            _ => Position::at(to.id),
        };
        let missing: Vec<i64> = rows.iter().filter(|row| !row.has_payload).map(|row| row.seq).collect();
        let mut payloads = BTreeMap::new();
        if !missing.is_empty() {
            let answer = self.read_connection.copy_out(read::payloads(&self.schema, &missing)).await?;
            payloads = read::payload_rows(answer)?;
        }
        let entries = rows.into_iter().map(|row| row.with_payload(&mut payloads)).collect::<Result<Vec<_>, _>>()?;
        let start = Position::in_window(from.id, to.id, settled_seq);
        let read = |lease| ReadShard { lease, start: start.clone(), end: end.clone() };
        let caught_up = entries.is_empty() && has_all_shards && after.is_exhausted();
        Ok(Page { entries, shards: leases.into_iter().map(read).collect(), caught_up })
    }
}

#[async_trait]
impl ShardLeases for Store {
    async fn acquire_leases(&self, request: LeaseRequest) -> Result<LeaseResponse, StoreError> {
        let call = async {
            let sql = leases::acquire_leases(&self.schema, &self.destination, &request);
            let answer = queries::json_response(&self.write_connection.query(sql).await?)?;
            let (mut response, timeline) = leases::lease_response(&answer, &request)?;
            // Later statements, so that they see everything that a former owner settled.
            let new: Vec<Lease> =
                response.leases.iter().filter(|lease| !request.held.contains(lease)).copied().collect();
            response.taken = self.taken_shards(&new).await?;
            Ok((response, timeline))
        };
        let (response, timeline) = call.await.map_err(|error| self.store_error(error))?;
        if self.timeline.swap(timeline, Ordering::Relaxed) != timeline {
            self.clear_ticks();
        }
        Ok(response)
    }

    async fn release_leases(&self, owner: Uuid) -> Result<(), StoreError> {
        let sql = leases::release_leases(&self.schema, &self.destination, owner);
        self.write_connection.query(sql).await.map_err(|error| self.store_error(error))?;
        Ok(())
    }
}

#[async_trait]
impl OutboxReader for Store {
    async fn read(&self, request: PageRequest<'_>) -> Result<Page, StoreError> {
        self.read_page(request).await.map_err(|error| self.store_error(error))
    }

    async fn settle(&self, settlement: Settlement) -> Result<SettleResult, StoreError> {
        if settlement.progress.is_empty() {
            return Ok(SettleResult::default());
        }
        let call = async {
            let sql = settle::settle(&self.schema, &self.destination, &settlement);
            settle::settle_result(&queries::json_response(&self.write_connection.query(sql).await?)?)
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
        let sql = parked::read_parked(&self.schema, &self.destination, leases, keys, messages);
        let call = async { parked::parked_batches(self.write_connection.copy_out(sql).await?) };
        call.await.map_err(|error| self.store_error(error))
    }

    async fn settle_parked(&self, settlements: Vec<ParkedSettlement>) -> Result<Vec<ParkedResult>, StoreError> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        let call = async {
            let sql = parked::settle_parked(&self.schema, &self.destination, &settlements);
            let answer = queries::json_response(&self.write_connection.query(sql).await?)?;
            parked::parked_results(&answer, settlements.len())
        };
        call.await.map_err(|error| self.store_error(error))
    }
}

#[async_trait]
impl Maintenance for Store {
    async fn maintain(&self, budget: Duration) -> Result<MaintenanceReport, StoreError> {
        let started = Instant::now();
        let mut report = MaintenanceReport::default();
        loop {
            // Partitions need table locks, so they are maintained once in a call.
            let history_only = report.more;
            let statement = leases::maintain(&self.schema, history_only);
            let rows = self.maintenance_connection.query(statement).await?;
            leases::add_maintenance(&mut report, &queries::json_response(&rows)?);
            if !report.more || started.elapsed() >= budget {
                return Ok(report);
            }
        }
    }
}
