//! Implements the store ports with SQLite.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::store::{
    Advance, Advanced, Ask, Ceiling, DeadFilter, DeadLetter, DeadLetters, Entry, Lease, Leased, Leases, Maintained,
    Mark, OutboxReader, Page, ParkedKeys, Position, Read, Run, Settled, Settlement, Standing, StoreError, Upkeep,
};
use sqlx::sqlite::SqliteConnection;
use tokio::time::timeout;
use uuid::Uuid;

use crate::classify::Error;
use crate::config::Config;
use crate::link::{Durability, Link};
use crate::queries::{self, column, now};
use crate::{classify, dead, disk, leases, runs, settle, upkeep};

/// Maximum number of scheduled messages that one transaction moves into the log.
const ENTER_MAX: i64 = 1000;
/// The time that one call may take on the disk, in addition to the busy timeout.
pub(crate) const DISK_DEADLINE: Duration = Duration::from_secs(30);

/// The outbox of one destination, as a relay uses it.
///
/// One connection reads and another leases and settles, so that reading ahead overlaps with settling.
pub struct Store {
    pub(crate) file: PathBuf,
    pub(crate) destination: String,
    pub(crate) reading: Link,
    pub(crate) settling: Link,
    deadline: Duration,
    /// Everything up to this number survives a power failure.
    flushed: AtomicI64,
    /// The file was opened before, so a failure to open it now may be temporary.
    opened: AtomicBool,
}

impl Store {
    /// Opens the file. Checks that this program supports its schema version and that it is on a local disk.
    pub async fn open(config: Config) -> Result<Self, StoreError> {
        let file = config.path;
        classify::check_local(&file, config.allow_network_file_system)?;
        let store = Self {
            reading: Link::new(&file, config.busy_timeout),
            settling: Link::new(&file, config.busy_timeout),
            deadline: config.busy_timeout + DISK_DEADLINE,
            destination: config.destination,
            flushed: AtomicI64::new(0),
            opened: AtomicBool::new(false),
            file,
        };
        store.call(store.try_out()).await?;
        store.opened.store(true, Ordering::Relaxed);
        Ok(store)
    }

    /// Reads, and acquires the write lock briefly, so that a read-only file fails now. If another connection holds the
    /// lock, the write check is skipped.
    async fn try_out(&self) -> Result<(), Error> {
        self.reading.take().await?.give_back();
        let mut session = match self.settling.begin(Durability::Process).await {
            Ok(session) => session,
            Err(Error::Busy) => return Ok(()),
            Err(error) => return Err(error),
        };
        // The UPDATE changes nothing, but it needs a writable file. On a read-only file BEGIN alone succeeds as a read.
        sqlx::query("UPDATE relevo_settings SET only_row = 1 WHERE false").execute(&mut *session).await?;
        session.commit().await
    }

    /// Runs one call with the deadline. Errors name the file.
    pub(crate) async fn call<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
        let result = timeout(self.deadline, work).await.unwrap_or(Err(Error::Deadline(self.deadline)));
        result.map_err(|error| {
            // The next call may open another file.
            self.flushed.store(0, Ordering::Relaxed);
            if self.opened.load(Ordering::Relaxed) { error.of_open_file(&self.file) } else { error.of_file(&self.file) }
        })
    }

    /// Returns the highest committed number. If scheduled messages are due, moves them into the log first.
    async fn newest(&self) -> Result<i64, Error> {
        let (newest, due) = self.look().await?;
        if !due {
            return Ok(newest);
        }
        // Another writer delays scheduled messages, but not the messages of the log.
        if self.enter_due().await? { Ok(self.look().await?.0) } else { Ok(newest) }
    }

    /// Polls for new and due messages. It costs two B-tree lookups.
    async fn look(&self) -> Result<(i64, bool), Error> {
        let sql = concat!(
            "SELECT coalesce((SELECT max(seq) FROM relevo_message), 0), \
             coalesce((SELECT min(due_at_ms) FROM relevo_scheduled) <= ",
            now!(),
            ", 0)"
        );
        let mut session = self.reading.take().await?;
        let row = sqlx::query(sql).fetch_one(&mut *session).await?;
        session.give_back();
        Ok((column(&row, 0)?, column(&row, 1)?))
    }

    /// Moves due scheduled messages to the log in order of their due times. Returns false while another connection
    /// writes.
    async fn enter_due(&self) -> Result<bool, Error> {
        let Some(mut session) = self.settling.begin_at_once(Durability::Power).await? else { return Ok(false) };
        let now: i64 = column(&sqlx::query(concat!("SELECT ", now!())).fetch_one(&mut *session).await?, 0)?;
        for sql in [
            "INSERT INTO relevo_message (slot, id, created_at_ms, topic, key, type, content_type, headers, payload) \
             SELECT slot, id, ?1, topic, key, type, content_type, headers, payload FROM relevo_scheduled \
             WHERE due_at_ms <= ?1 ORDER BY due_at_ms, ordinal LIMIT ?2",
            "DELETE FROM relevo_scheduled WHERE ordinal IN ( \
             SELECT ordinal FROM relevo_scheduled WHERE due_at_ms <= ?1 ORDER BY due_at_ms, ordinal LIMIT ?2)",
        ] {
            sqlx::query(sql).bind(now).bind(ENTER_MAX).execute(&mut *session).await?;
        }
        session.commit().await?;
        Ok(true)
    }

    async fn read_page(&self, read: Read<'_>) -> Result<Page, Error> {
        let mut window = read.after;
        if window.is_exhausted() {
            let to = match read.ceiling {
                Ceiling::Open => self.newest().await?,
                Ceiling::NoNewWindow => window.from,
                Ceiling::Tick(tick) => tick,
            };
            window = Position { from: window.from, to: to.max(window.from), place: 0 };
        }
        if window.is_exhausted() || read.leases.is_empty() {
            return Ok(Page { entries: Vec::new(), end: read.after });
        }
        let mut session = self.reading.take().await?;
        let (entries, is_cut) = page(&mut session, &read, window).await?;
        session.give_back();
        let end = match entries.last() {
            Some(last) if is_cut => Position { place: last.seq, ..window },
            _ => Position::at(window.to),
        };
        if !entries.is_empty() {
            self.flush(window.to).await?;
        }
        Ok(Page { entries, end })
    }

    /// Flushes the whole window before any of it is published. Once per window, not once per page.
    async fn flush(&self, to: i64) -> Result<(), Error> {
        if self.flushed.load(Ordering::Relaxed) < to {
            disk::flush(&self.file).await?;
            self.flushed.fetch_max(to, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Reads the messages of a window after its position. Returns whether there may be more.
async fn page(
    connection: &mut SqliteConnection,
    read: &Read<'_>,
    window: Position,
) -> Result<(Vec<Entry>, bool), Error> {
    let limit = read.limit.max(1);
    // Payloads up to this length cannot exceed the byte limit, even in a full page. Larger ones are left out, so that
    // the size of the page is limited before it is known.
    let small = i64::try_from((read.bytes / limit).max(1)).unwrap_or(i64::MAX);
    let sql = "SELECT seq, slot, id, created_at_ms, topic, key, type, content_type, headers, \
               CASE WHEN length(payload) <= ?4 THEN payload END, length(payload) FROM relevo_message \
               WHERE seq > ?1 AND seq <= ?2 AND (?5 IS NULL OR slot IN (SELECT value FROM json_each(?5))) \
               ORDER BY seq LIMIT ?3";
    let select = sqlx::query(sql).bind(queries::upto(&window)).bind(window.to);
    let select = select.bind(i64::try_from(limit).unwrap_or(i64::MAX)).bind(small).bind(queries::slots(read.leases));
    let rows = select.fetch_all(&mut *connection).await?;
    let mut entries = Vec::with_capacity(rows.len());
    let mut bytes = 0;
    for row in &rows {
        if bytes >= read.bytes {
            break;
        }
        let length: i64 = column(row, 10)?;
        bytes += usize::try_from(length).unwrap_or(0);
        let mut entry = queries::entry(row, 0)?;
        if length > small {
            entry = whole(connection, entry.seq).await?;
        }
        entries.push(entry);
    }
    let is_cut = rows.len() >= limit || entries.len() < rows.len();
    Ok((entries, is_cut))
}

async fn whole(connection: &mut SqliteConnection, seq: i64) -> Result<Entry, Error> {
    let sql = "SELECT seq, slot, id, created_at_ms, topic, key, type, content_type, headers, payload \
               FROM relevo_message WHERE seq = ?1";
    queries::entry(&sqlx::query(sql).bind(seq).fetch_one(connection).await?, 0)
}

#[async_trait]
impl Leases for Store {
    async fn lease(&self, ask: Ask) -> Result<Leased, StoreError> {
        self.call(leases::lease(&self.settling, &self.destination, &ask)).await
    }

    async fn standing(&self, leases: &[Lease]) -> Result<Vec<Standing>, StoreError> {
        self.call(leases::standing(&self.settling, &self.destination, leases)).await
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        self.call(leases::leave(&self.settling, &self.destination, owner)).await
    }
}

#[async_trait]
impl OutboxReader for Store {
    async fn read(&self, read: Read<'_>) -> Result<Page, StoreError> {
        self.call(self.read_page(read)).await
    }

    async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        if settlement.progress.is_empty() {
            return Ok(Settled::default());
        }
        self.call(settle::settle(&self.settling, &self.destination, &settlement)).await
    }
}

#[async_trait]
impl ParkedKeys for Store {
    async fn due(&self, leases: &[Lease], keys: usize, messages: usize) -> Result<Vec<Run>, StoreError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        self.call(runs::due(&self.settling, &self.destination, leases, keys, messages)).await
    }

    async fn advance(&self, advances: Vec<Advance>) -> Result<Vec<Advanced>, StoreError> {
        if advances.is_empty() {
            return Ok(Vec::new());
        }
        self.call(runs::advance(&self.settling, &self.destination, &advances)).await
    }
}

#[async_trait]
impl Upkeep for Store {
    async fn maintain(&self) -> Result<Maintained, StoreError> {
        self.call(upkeep::maintain(&self.settling)).await
    }
}

#[async_trait]
impl DeadLetters for Store {
    async fn dead(&self, filter: &DeadFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        self.call(dead::letters(&self.settling, &self.destination, filter, limit)).await
    }

    async fn redrive(&self, mark: &Mark) -> Result<u64, StoreError> {
        self.call(dead::mark(&self.settling, &self.destination, "redriving", mark)).await
    }

    async fn discard(&self, mark: &Mark) -> Result<u64, StoreError> {
        self.call(dead::mark(&self.settling, &self.destination, "discarding", mark)).await
    }
}
