//! Implements the relay ports with SQLite.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::outbox::leases::{Lease, LeaseRequest, LeaseResponse, ShardLeases};
use relevo_core::outbox::log::{OutboxReader, Page, PageRequest, ReadShard, SettleResult, Settlement, WindowLimit};
use relevo_core::outbox::maintenance::{Maintenance, MaintenanceReport};
use relevo_core::outbox::parked::{ParkedBatch, ParkedReader, ParkedResult, ParkedSettlement};
use relevo_core::outbox::{Position, rules};
use relevo_core::store::StoreError;
use sqlx::sqlite::SqliteConnection;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::classify::Error;
use crate::config::Config;
use crate::connection::{Connection, Durability};
use crate::queries::leases::{self, LeaseTable};
use crate::queries::{parked, read, retention, settle};
use crate::{classify, disk};

/// The time that one call may take on the disk, in addition to the busy timeout.
pub(crate) const DISK_TIMEOUT: Duration = Duration::from_secs(30);

/// The outbox of one destination, as a relay uses it.
///
/// One connection reads and another leases and settles, so that reading ahead overlaps with settling.
pub struct Store {
    file: PathBuf,
    destination: String,
    read_connection: Connection,
    write_connection: Connection,
    timeout: Duration,
    /// Everything up to this number survives a power failure.
    flushed_to: AtomicI64,
    /// The file was opened before, so a failure to open it now may be temporary.
    opened: AtomicBool,
}

impl Store {
    /// Opens the file. Checks that this program supports its schema version and that it is on a local disk.
    pub async fn open(config: Config) -> Result<Self, StoreError> {
        let file = config.path;
        classify::check_local(&file, config.allow_network_file_system)?;
        let store = Self {
            read_connection: Connection::new(&file, config.busy_timeout),
            write_connection: Connection::new(&file, config.busy_timeout),
            timeout: config.busy_timeout + DISK_TIMEOUT,
            destination: config.destination,
            flushed_to: AtomicI64::new(0),
            opened: AtomicBool::new(false),
            file,
        };
        store.with_timeout(store.check_writable()).await?;
        store.opened.store(true, Ordering::Relaxed);
        Ok(store)
    }

    /// Connects, and acquires the write lock briefly, so that a read-only file fails now. If another connection holds
    /// the lock, the write check is skipped.
    async fn check_writable(&self) -> Result<(), Error> {
        self.read_connection.acquire().await?.release();
        match self.write_connection.write(Durability::Normal, async |c| read::check_writable(c).await).await {
            Err(Error::Busy) => Ok(()),
            other => other,
        }
    }

    /// Runs one call with the deadline. Errors name the file.
    async fn with_timeout<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
        let result = timeout(self.timeout, work).await.unwrap_or(Err(Error::Timeout(self.timeout)));
        result.map_err(|error| {
            // The next call may open another file.
            self.flushed_to.store(0, Ordering::Relaxed);
            if self.opened.load(Ordering::Relaxed) { error.after_open(&self.file) } else { error.at_open(&self.file) }
        })
    }

    /// Runs statements in one transaction that survives a power failure.
    async fn change<T>(
        &self,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        self.with_timeout(self.write_connection.write(Durability::Full, work)).await
    }

    /// Relays call this often, so that free shards are acquired soon. Without changes it only reads, so an application
    /// that writes for seconds does not block the relay's leases.
    async fn renew_leases(&self, request: &LeaseRequest) -> Result<LeaseResponse, Error> {
        let destination = &*self.destination;
        let load = self.write_connection.read(async |c| LeaseTable::load(c, destination, request).await);
        let table = load.await?;
        if table.needs_no_write(request) {
            return Ok(table.response(request));
        }
        // A power failure may undo an acquisition, but it also ends every process that has seen it.
        let acquire = async |c: &mut SqliteConnection| leases::acquire(c, destination, request).await;
        self.write_connection.write(Durability::Normal, acquire).await
    }

    /// Returns the highest committed number. If scheduled messages are due, moves them into the log first.
    async fn newest_with_scheduled(&self) -> Result<i64, Error> {
        let (newest, due) = self.read_connection.read(async |c| read::newest_and_due(c).await).await?;
        if !due {
            return Ok(newest);
        }
        // Another writer delays scheduled messages, but not the messages of the log.
        let Some(mut guard) = self.write_connection.try_begin(Durability::Full).await? else { return Ok(newest) };
        read::move_due_scheduled(&mut guard).await?;
        guard.commit().await?;
        self.read_connection.read(async |c| read::newest_seq(c).await).await
    }

    async fn read_page(&self, request: PageRequest<'_>) -> Result<Page, Error> {
        let Some((after, leases)) = rules::oldest_group(request.shards) else { return Ok(Page::default()) };
        let has_all_shards = leases.len() == request.shards.len();
        let start = match (after.is_exhausted(), request.window_limit) {
            (false, _) | (true, WindowLimit::CurrentWindow) => after.clone(),
            (true, WindowLimit::UntilTick(tick)) => rules::open_window(after, tick),
            (true, WindowLimit::Unlimited) => rules::open_window(after, self.newest_with_scheduled().await?),
        };
        if start.is_exhausted() {
            return Ok(Page { caught_up: has_all_shards, ..Page::default() });
        }
        let page = self.read_connection.read(async |c| read::page(c, &request, &leases, &start).await);
        let (entries, is_cut) = page.await?;
        let end = match entries.last() {
            Some(last) if is_cut => Position::in_window(start.from_tick(), start.to_tick(), last.seq),
            _ => Position::at(start.to_tick()),
        };
        if !entries.is_empty() {
            self.flush(start.to_tick()).await?;
        }
        let read = |lease| ReadShard { lease, start: start.clone(), end: end.clone() };
        let caught_up = entries.is_empty() && has_all_shards && after.is_exhausted();
        Ok(Page { entries, shards: leases.into_iter().map(read).collect(), caught_up })
    }

    /// Flushes the whole window before any of it is published. Once per window, not once per page.
    async fn flush(&self, to: i64) -> Result<(), Error> {
        if self.flushed_to.load(Ordering::Relaxed) < to {
            disk::flush(&self.file).await?;
            self.flushed_to.fetch_max(to, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn settle_window(&self, settlement: &Settlement) -> Result<SettleResult, Error> {
        // A power failure may undo progress: it causes repeats, which have the same id. It must not undo parked messages.
        let durability = if settlement.parked.is_empty() { Durability::Normal } else { Durability::Full };
        let settle = async |c: &mut SqliteConnection| settle::settle(c, &self.destination, settlement).await;
        self.write_connection.write(durability, settle).await
    }

    /// Applies the marks of operators, then returns the due messages.
    async fn load_parked(&self, leases: &[Lease], keys: usize, messages: usize) -> Result<Vec<ParkedBatch>, Error> {
        let (connection, destination) = (&self.write_connection, &*self.destination);
        let (marked, due) = connection.read(async |c| parked::has_marks_or_due(c, destination).await).await?;
        if marked {
            // Only marks change rows. Reading due messages needs no write lock.
            let apply = async |c: &mut SqliteConnection| parked::apply_marks(c, destination, leases).await;
            connection.write(Durability::Full, apply).await?;
        }
        if !marked && !due {
            return Ok(Vec::new());
        }
        connection.read(async |c| parked::load_due(c, destination, leases, keys, messages).await).await
    }

    /// Deletes old messages and prunes history, in batches that other calls of the relay run between. It waits for no
    /// writer: if one holds the lock, the next call continues.
    async fn apply_retention(&self, budget: Duration) -> Result<MaintenanceReport, Error> {
        let mut report = MaintenanceReport::default();
        let started = Instant::now();
        loop {
            let Some(mut guard) = self.write_connection.try_begin(Durability::Normal).await? else {
                return Ok(MaintenanceReport { skipped: true, ..report });
            };
            report.more = retention::delete_batch(&mut guard).await?;
            guard.commit().await?;
            if !report.more || started.elapsed() >= budget {
                break;
            }
        }
        report.warnings = self.write_connection.read(async |c| retention::warnings(c).await).await?;
        Ok(report)
    }
}

#[async_trait]
impl ShardLeases for Store {
    async fn acquire_leases(&self, request: LeaseRequest) -> Result<LeaseResponse, StoreError> {
        let call = async {
            let mut response = self.renew_leases(&request).await?;
            // A later statement, so that it sees everything that a former owner settled.
            let new = |lease: &&Lease| !request.held.contains(lease);
            let new: Vec<Lease> = response.leases.iter().filter(new).copied().collect();
            if !new.is_empty() {
                let load = async |c: &mut SqliteConnection| leases::taken_shards(c, &self.destination, &new).await;
                response.taken = self.write_connection.read(load).await?;
            }
            Ok(response)
        };
        self.with_timeout(call).await
    }

    async fn release_leases(&self, owner: Uuid) -> Result<(), StoreError> {
        let release = async |c: &mut SqliteConnection| leases::release_all(c, &self.destination, owner).await;
        self.with_timeout(self.write_connection.write(Durability::Normal, release)).await
    }
}

#[async_trait]
impl OutboxReader for Store {
    async fn read(&self, request: PageRequest<'_>) -> Result<Page, StoreError> {
        self.with_timeout(self.read_page(request)).await
    }

    async fn settle(&self, settlement: Settlement) -> Result<SettleResult, StoreError> {
        if settlement.progress.is_empty() {
            return Ok(SettleResult::default());
        }
        self.with_timeout(self.settle_window(&settlement)).await
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
        self.with_timeout(self.load_parked(leases, keys, messages)).await
    }

    async fn settle_parked(&self, settlements: Vec<ParkedSettlement>) -> Result<Vec<ParkedResult>, StoreError> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        self.change(async |c| parked::settle(c, &self.destination, &settlements).await).await
    }
}

#[async_trait]
impl Maintenance for Store {
    async fn maintain(&self, budget: Duration) -> Result<MaintenanceReport, StoreError> {
        self.with_timeout(self.apply_retention(budget)).await
    }
}
