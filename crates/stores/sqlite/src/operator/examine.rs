//! Checks the settings that the guarantees depend on.

use std::time::Duration;

use relevo_core::finding::{Finding, Severity};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnection;
use tokio::time::Instant;

use crate::classify::Error;
use crate::queries::{column, now};
use crate::store::Store;
use crate::{config, disk, migrate};

/// Time limit of the page check. A large file is checked only in part.
const CHECK_BUDGET: Duration = Duration::from_secs(5);
/// The number of SQLite virtual machine steps between two checks of the time.
const CHECK_STEPS: i32 = 100_000;
/// Free space below this is a warning.
const SPACE_LOW: u64 = 1 << 30;
/// A write-ahead log above this size means that something prevents checkpoints.
const WAL_LARGE: u64 = 256 << 20;

impl Store {
    pub(crate) async fn examine(&self) -> Result<Vec<Finding>, Error> {
        let mut connection = config::connect_options_without_wal(&self.file).connect().await?;
        let mut findings = vec![self.file_system(), self.space(), self.wal_size()];
        findings.push(journal(&mut connection).await?);
        findings.push(synchronous());
        findings.push(version(&mut connection).await?);
        findings.push(retention(&mut connection).await?);
        findings.push(pages(connection).await?);
        Ok(findings)
    }

    fn file_system(&self) -> Finding {
        let subject = "file system";
        match relevo_sqlite_file::file_system_type(&self.file) {
            None => finding(Severity::Note, subject, "cannot be told", None),
            Some(number) => match relevo_sqlite_file::network_file_system(number) {
                None => finding(Severity::Ok, subject, "local", None),
                Some(name) => finding(
                    Severity::Danger,
                    subject,
                    &format!("{name}: SQLite's locks and shared memory are not safe"),
                    Some("put the file on a local disk"),
                ),
            },
        }
    }

    fn space(&self) -> Finding {
        let subject = "free space";
        match disk::free_bytes(&self.file) {
            None => finding(Severity::Note, subject, "cannot be told", None),
            Some(free) => {
                let seen = format!("{} MiB", free >> 20);
                let severity = if free < SPACE_LOW { Severity::Warning } else { Severity::Ok };
                finding(severity, subject, &seen, (free < SPACE_LOW).then_some("free space, or shorten retention"))
            }
        }
    }

    fn wal_size(&self) -> Finding {
        let bytes = std::fs::metadata(disk::wal_path(&self.file)).map_or(0, |found| found.len());
        let is_large = bytes > WAL_LARGE;
        let severity = if is_large { Severity::Warning } else { Severity::Ok };
        let fix = "find the connection that keeps an old read transaction open";
        finding(severity, "write-ahead log", &format!("{} MiB", bytes >> 20), is_large.then_some(fix))
    }
}

async fn journal(connection: &mut SqliteConnection) -> Result<Finding, Error> {
    let row = sqlx::query("PRAGMA main.journal_mode").fetch_one(connection).await?;
    let mode: String = column(&row, 0)?;
    let good = mode == "wal";
    let severity = if good { Severity::Ok } else { Severity::Danger };
    Ok(finding(severity, "journal_mode", &mode, (!good).then_some("run `relevo migrate`")))
}

/// The setting belongs to each connection, so the setting of a writer is not visible here.
fn synchronous() -> Finding {
    let seen = "of writers cannot be seen; relays flush what they read before they publish it";
    finding(Severity::Note, "synchronous", seen, Some("writers connect with `connect_options`, or set FULL"))
}

async fn version(connection: &mut SqliteConnection) -> Result<Finding, Error> {
    let found = migrate::newest(connection).await?;
    let good = found.is_some_and(migrate::SchemaVersion::is_compatible);
    let severity = if good { Severity::Ok } else { Severity::Danger };
    let version = found.map_or(0, |found| found.version);
    let seen = format!("{version}, this program's is {}", migrate::VERSION);
    Ok(finding(severity, "schema version", &seen, (!good).then_some("run `relevo migrate`, or upgrade the program")))
}

/// Checks for unsettled messages that are older than the retention. They are kept, and the file grows.
async fn retention(connection: &mut SqliteConnection) -> Result<Finding, Error> {
    let sql = concat!(
        "SELECT s.retention_ms / 3600000, (SELECT ",
        now!(),
        " - m.created_at_ms FROM relevo_message AS m \
         WHERE m.seq > (SELECT min(max(from_seq, settled_seq)) FROM relevo_progress) ORDER BY m.seq LIMIT 1) - \
         s.retention_ms \
         FROM relevo_settings AS s"
    );
    let row = sqlx::query(sql).fetch_one(connection).await?;
    let hours: i64 = column(&row, 0)?;
    let beyond = column::<Option<i64>>(&row, 1)?.is_some_and(|beyond| beyond > 0);
    let seen = format!("{hours} hours; {}", if beyond { "older messages wait" } else { "nothing older waits" });
    let severity = if beyond { Severity::Warning } else { Severity::Ok };
    let fix = "start the relay of the destination that lags, or remove it";
    Ok(finding(severity, "retention", &seen, beyond.then_some(fix)))
}

/// Checks pages until the time limit.
async fn pages(mut connection: SqliteConnection) -> Result<Finding, Error> {
    let deadline = Instant::now() + CHECK_BUDGET;
    connection.lock_handle().await?.set_progress_handler(CHECK_STEPS, move || Instant::now() < deadline);
    let subject = "pages";
    let fix = "stop the file's users, keep a copy, then restore a backup or use `sqlite3 FILE .recover`";
    let checked = sqlx::query("PRAGMA main.quick_check(1)").fetch_one(&mut connection).await;
    Ok(match checked {
        Ok(row) => {
            let seen: String = column(&row, 0)?;
            let good = seen == "ok";
            finding(if good { Severity::Ok } else { Severity::Danger }, subject, &seen, (!good).then_some(fix))
        }
        Err(_) if Instant::now() >= deadline => {
            finding(Severity::Note, subject, "a large file: no damage found in the time there was", None)
        }
        Err(error) => match Error::from(error) {
            Error::Corrupt(seen) => finding(Severity::Danger, subject, &seen, Some(fix)),
            other => return Err(other),
        },
    })
}

fn finding(severity: Severity, subject: &str, seen: &str, fix: Option<&str>) -> Finding {
    Finding { severity, subject: subject.to_owned(), detail: seen.to_owned(), fix: fix.map(str::to_owned) }
}
