//! Implements the store ports with SQLite.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::dead_letters::{DeadLetter, DeadLetterAdmin, DeadLetterFilter, MarkRequest};
use relevo_core::outbox::leases::{Lease, LeaseRequest, LeaseResponse, ShardLeases, TakenShard};
use relevo_core::outbox::log::{OutboxReader, Page, PageRequest, SettleResult, Settlement, WindowLimit};
use relevo_core::outbox::maintenance::{Maintenance, MaintenanceReport};
use relevo_core::outbox::parked::{ParkedBatch, ParkedReader, ParkedResult, ParkedSettlement};
use relevo_core::outbox::{LogEntry, Position};
use relevo_core::store::StoreError;
use sqlx::sqlite::SqliteConnection;
use tokio::time::timeout;
use uuid::Uuid;

use crate::classify::Error;
use crate::config::Config;
use crate::connection::{Connection, Durability};
use crate::queries::{self, column, dead_letters, leases, now, parked, retention, settle};
use crate::{classify, disk};

/// Maximum number of scheduled messages that one transaction moves into the log.
const SCHEDULED_BATCH: i64 = 1000;
/// The time that one call may take on the disk, in addition to the busy timeout.
pub(crate) const DISK_TIMEOUT: Duration = Duration::from_secs(30);

/// The outbox of one destination, as a relay uses it.
///
/// One connection reads and another leases and settles, so that reading ahead overlaps with settling.
pub struct Store {
    pub(crate) file: PathBuf,
    pub(crate) destination: String,
    pub(crate) read_connection: Connection,
    pub(crate) write_connection: Connection,
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

    /// Reads, and acquires the write lock briefly, so that a read-only file fails now. If another connection holds the
    /// lock, the write check is skipped.
    async fn check_writable(&self) -> Result<(), Error> {
        self.read_connection.acquire().await?.release();
        let mut session = match self.write_connection.begin(Durability::Normal).await {
            Ok(session) => session,
            Err(Error::Busy) => return Ok(()),
            Err(error) => return Err(error),
        };
        // The UPDATE changes nothing, but it needs a writable file. On a read-only file BEGIN alone succeeds as a read.
        sqlx::query("UPDATE relevo_settings SET only_row = 1 WHERE false").execute(&mut *session).await?;
        session.commit().await
    }

    /// Runs one call with the deadline. Errors name the file.
    pub(crate) async fn with_timeout<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
        let result = timeout(self.timeout, work).await.unwrap_or(Err(Error::Timeout(self.timeout)));
        result.map_err(|error| {
            // The next call may open another file.
            self.flushed_to.store(0, Ordering::Relaxed);
            if self.opened.load(Ordering::Relaxed) { error.after_open(&self.file) } else { error.at_open(&self.file) }
        })
    }

    /// Returns the highest committed number. If scheduled messages are due, moves them into the log first.
    async fn newest_with_scheduled(&self) -> Result<i64, Error> {
        let (newest, due) = self.newest_seq().await?;
        if !due {
            return Ok(newest);
        }
        // Another writer delays scheduled messages, but not the messages of the log.
        if self.move_due_scheduled().await? { Ok(self.newest_seq().await?.0) } else { Ok(newest) }
    }

    /// Polls for new and due messages. It costs two B-tree lookups.
    async fn newest_seq(&self) -> Result<(i64, bool), Error> {
        let sql = concat!(
            "SELECT coalesce((SELECT max(seq) FROM relevo_message), 0), \
             coalesce((SELECT min(due_at_ms) FROM relevo_scheduled) <= ",
            now!(),
            ", 0)"
        );
        let mut session = self.read_connection.acquire().await?;
        let row = sqlx::query(sql).fetch_one(&mut *session).await?;
        session.release();
        Ok((column(&row, 0)?, column(&row, 1)?))
    }

    /// Moves due scheduled messages to the log in order of their due times. Returns false while another connection
    /// writes.
    async fn move_due_scheduled(&self) -> Result<bool, Error> {
        let Some(mut session) = self.write_connection.try_begin(Durability::Full).await? else { return Ok(false) };
        let now: i64 = column(&sqlx::query(concat!("SELECT ", now!())).fetch_one(&mut *session).await?, 0)?;
        for sql in [
            "INSERT INTO relevo_message (slot, id, created_at_ms, topic, key, type, content_type, headers, payload) \
             SELECT slot, id, ?1, topic, key, type, content_type, headers, payload FROM relevo_scheduled \
             WHERE due_at_ms <= ?1 ORDER BY due_at_ms, ordinal LIMIT ?2",
            "DELETE FROM relevo_scheduled WHERE ordinal IN ( \
             SELECT ordinal FROM relevo_scheduled WHERE due_at_ms <= ?1 ORDER BY due_at_ms, ordinal LIMIT ?2)",
        ] {
            sqlx::query(sql).bind(now).bind(SCHEDULED_BATCH).execute(&mut *session).await?;
        }
        session.commit().await?;
        Ok(true)
    }

    async fn read_page(&self, read: PageRequest<'_>) -> Result<Page, Error> {
        let mut window = read.after;
        if window.is_exhausted() {
            let to = match read.window_limit {
                WindowLimit::Unlimited => self.newest_with_scheduled().await?,
                WindowLimit::CurrentWindow => window.from_tick,
                WindowLimit::UntilTick(tick) => tick,
            };
            window = Position { from_tick: window.from_tick, to_tick: to.max(window.from_tick), settled_seq: 0 };
        }
        if window.is_exhausted() || read.leases.is_empty() {
            return Ok(Page { entries: Vec::new(), end: read.after });
        }
        let mut session = self.read_connection.acquire().await?;
        let (entries, is_cut) = page(&mut session, &read, window).await?;
        session.release();
        let end = match entries.last() {
            Some(last) if is_cut => Position { settled_seq: last.seq, ..window },
            _ => Position::at(window.to_tick),
        };
        if !entries.is_empty() {
            self.flush(window.to_tick).await?;
        }
        Ok(Page { entries, end })
    }

    /// Flushes the whole window before any of it is published. Once per window, not once per page.
    async fn flush(&self, to: i64) -> Result<(), Error> {
        if self.flushed_to.load(Ordering::Relaxed) < to {
            disk::flush(&self.file).await?;
            self.flushed_to.fetch_max(to, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Reads the messages of a window after its position. Returns whether there may be more.
async fn page(
    connection: &mut SqliteConnection,
    read: &PageRequest<'_>,
    window: Position,
) -> Result<(Vec<LogEntry>, bool), Error> {
    let limit = read.messages_max.max(1);
    // Payloads up to this length cannot exceed the byte limit, even in a full page. Larger ones are left out, so that
    // the size of the page is limited before it is known.
    let small = i64::try_from((read.bytes_max / limit).max(1)).unwrap_or(i64::MAX);
    let sql = "SELECT seq, slot, id, created_at_ms, topic, key, type, content_type, headers, \
               CASE WHEN length(payload) <= ?4 THEN payload END, length(payload) FROM relevo_message \
               WHERE seq > ?1 AND seq <= ?2 AND (?5 IS NULL OR slot IN (SELECT value FROM json_each(?5))) \
               ORDER BY seq LIMIT ?3";
    let select = sqlx::query(sql).bind(queries::settled_through(&window)).bind(window.to_tick);
    let select = select.bind(i64::try_from(limit).unwrap_or(i64::MAX)).bind(small).bind(queries::slots(read.leases));
    let rows = select.fetch_all(&mut *connection).await?;
    let mut entries = Vec::with_capacity(rows.len());
    let mut bytes = 0;
    for row in &rows {
        if bytes >= read.bytes_max {
            break;
        }
        let length: i64 = column(row, 10)?;
        bytes += usize::try_from(length).unwrap_or(0);
        let mut entry = queries::entry(row, 0)?;
        if length > small {
            entry = full_entry(connection, entry.seq).await?;
        }
        entries.push(entry);
    }
    let is_cut = rows.len() >= limit || entries.len() < rows.len();
    Ok((entries, is_cut))
}

async fn full_entry(connection: &mut SqliteConnection, seq: i64) -> Result<LogEntry, Error> {
    let sql = "SELECT seq, slot, id, created_at_ms, topic, key, type, content_type, headers, payload \
               FROM relevo_message WHERE seq = ?1";
    queries::entry(&sqlx::query(sql).bind(seq).fetch_one(connection).await?, 0)
}

#[async_trait]
impl ShardLeases for Store {
    async fn acquire_leases(&self, ask: LeaseRequest) -> Result<LeaseResponse, StoreError> {
        self.with_timeout(leases::acquire_leases(&self.write_connection, &self.destination, &ask)).await
    }

    async fn standing(&self, leases: &[Lease]) -> Result<Vec<TakenShard>, StoreError> {
        self.with_timeout(leases::shard_positions(&self.write_connection, &self.destination, leases)).await
    }

    async fn release_leases(&self, owner: Uuid) -> Result<(), StoreError> {
        self.with_timeout(leases::release_leases(&self.write_connection, &self.destination, owner)).await
    }
}

#[async_trait]
impl OutboxReader for Store {
    async fn read(&self, read: PageRequest<'_>) -> Result<Page, StoreError> {
        self.with_timeout(self.read_page(read)).await
    }

    async fn settle(&self, settlement: Settlement) -> Result<SettleResult, StoreError> {
        if settlement.progress.is_empty() {
            return Ok(SettleResult::default());
        }
        self.with_timeout(settle::settle(&self.write_connection, &self.destination, &settlement)).await
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
        self.with_timeout(parked::read_parked(&self.write_connection, &self.destination, leases, keys, messages)).await
    }

    async fn settle_parked(&self, advances: Vec<ParkedSettlement>) -> Result<Vec<ParkedResult>, StoreError> {
        if advances.is_empty() {
            return Ok(Vec::new());
        }
        self.with_timeout(parked::settle_parked(&self.write_connection, &self.destination, &advances)).await
    }
}

#[async_trait]
impl Maintenance for Store {
    async fn maintain(&self) -> Result<MaintenanceReport, StoreError> {
        self.with_timeout(retention::maintain(&self.write_connection)).await
    }
}

#[async_trait]
impl DeadLetterAdmin for Store {
    async fn list_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        self.with_timeout(dead_letters::list_dead_letters(&self.write_connection, &self.destination, filter, limit))
            .await
    }

    async fn redrive(&self, mark: &MarkRequest) -> Result<u64, StoreError> {
        self.with_timeout(dead_letters::mark_dead_letters(&self.write_connection, &self.destination, "redriving", mark))
            .await
    }

    async fn discard(&self, mark: &MarkRequest) -> Result<u64, StoreError> {
        self.with_timeout(dead_letters::mark_dead_letters(
            &self.write_connection,
            &self.destination,
            "discarding",
            mark,
        ))
        .await
    }
}
