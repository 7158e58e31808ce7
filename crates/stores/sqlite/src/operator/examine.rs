//! Checks the settings that the guarantees depend on.

use std::path::Path;
use std::time::Duration;

use relevo_core::finding::{Finding, Findings, Severity};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnection;
use tokio::time::Instant;

use crate::classify::Error;
use crate::queries::{column, now};
use crate::{config, disk, migrate};

/// Time limit of the page check. A large file is checked only in part.
const CHECK_BUDGET: Duration = Duration::from_secs(5);
/// The number of SQLite virtual machine steps between two checks of the time.
const CHECK_STEPS: i32 = 100_000;
/// Free space below this is a warning.
const SPACE_LOW: u64 = 1 << 30;
/// A write-ahead log above this size means that something prevents checkpoints.
const WAL_LARGE: u64 = 256 << 20;

pub(super) async fn examine(file: &Path) -> Result<Vec<Finding>, Error> {
    let mut connection = config::connect_options_without_wal(file).connect().await?;
    let mut findings = Findings::default();
    file_system(file, &mut findings);
    free_space(file, &mut findings);
    wal_size(file, &mut findings);
    journal(&mut connection, &mut findings).await?;
    synchronous(&mut findings);
    version(&mut connection, &mut findings).await?;
    retention(&mut connection, &mut findings).await?;
    pages(connection, &mut findings).await?;
    Ok(findings.into_sorted())
}

/// Adds a check whose detail is the same whether it passes or not.
fn check(
    findings: &mut Findings,
    ok: bool,
    severity: Severity,
    subject: &'static str,
    detail: impl Into<String>,
    fix: &str,
) {
    let detail = detail.into();
    findings.check(ok, severity, subject, detail.clone(), || (detail, fix.to_owned()));
}

fn file_system(file: &Path, findings: &mut Findings) {
    let number = relevo_sqlite_file::file_system_type(file);
    let network = number.and_then(relevo_sqlite_file::network_file_system);
    let (severity, detail) = match (number, network) {
        (_, Some(name)) => (Severity::Danger, format!("{name}: SQLite's locks and shared memory are not safe")),
        (Some(_), None) => (Severity::Ok, "local".to_owned()),
        (None, None) => (Severity::Note, "unknown".to_owned()),
    };
    check(findings, severity == Severity::Ok, severity, "file system", detail, "put the file on a local disk");
}

fn free_space(file: &Path, findings: &mut Findings) {
    let (severity, detail) = match disk::free_bytes(file) {
        None => (Severity::Note, "unknown".to_owned()),
        Some(free) => {
            let severity = if free < SPACE_LOW { Severity::Warning } else { Severity::Ok };
            (severity, format!("{} MiB", free >> 20))
        }
    };
    check(findings, severity == Severity::Ok, severity, "free space", detail, "free space, or shorten retention");
}

fn wal_size(file: &Path, findings: &mut Findings) {
    let bytes = std::fs::metadata(disk::wal_path(file)).map_or(0, |found| found.len());
    let detail = format!("{} MiB", bytes >> 20);
    let fix = "find the connection that keeps an old read transaction open";
    check(findings, bytes <= WAL_LARGE, Severity::Warning, "write-ahead log", detail, fix);
}

async fn journal(connection: &mut SqliteConnection, findings: &mut Findings) -> Result<(), Error> {
    let row = sqlx::query("PRAGMA main.journal_mode").fetch_one(connection).await?;
    let mode: String = column(&row, 0)?;
    check(findings, mode == "wal", Severity::Danger, "journal_mode", mode, "run `relevo migrate`");
    Ok(())
}

/// The setting belongs to each connection, so the setting of a writer is not visible here.
fn synchronous(findings: &mut Findings) {
    let detail = "the setting of writers is not visible; relays flush messages before they publish them";
    let fix = "writers connect with `connect_options`, or set FULL";
    findings.problem(Severity::Note, "synchronous", detail.to_owned(), fix.to_owned());
}

async fn version(connection: &mut SqliteConnection, findings: &mut Findings) -> Result<(), Error> {
    let found = migrate::newest(connection).await?;
    let compatible = found.is_some_and(migrate::SchemaVersion::is_compatible);
    let version = found.map_or(0, |found| found.version);
    let detail = format!("{version}, this program's is {}", migrate::VERSION);
    let fix = "run `relevo migrate`, or upgrade the program";
    check(findings, compatible, Severity::Danger, "schema version", detail, fix);
    Ok(())
}

/// Checks for unsettled messages that are older than the retention. They are kept, and the file grows.
async fn retention(connection: &mut SqliteConnection, findings: &mut Findings) -> Result<(), Error> {
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
    let overdue = column::<Option<i64>>(&row, 1)?.is_some_and(|overdue_ms| overdue_ms > 0);
    let pending = if overdue { "older messages are pending" } else { "no older message is pending" };
    let fix = "start the relay of the destination that lags, or remove it";
    check(findings, !overdue, Severity::Warning, "retention", format!("{hours} hours; {pending}"), fix);
    Ok(())
}

/// Checks pages until the time limit.
async fn pages(mut connection: SqliteConnection, findings: &mut Findings) -> Result<(), Error> {
    let deadline = Instant::now() + CHECK_BUDGET;
    connection.lock_handle().await?.set_progress_handler(CHECK_STEPS, move || Instant::now() < deadline);
    let fix = "stop the programs that use the file, keep a copy, then restore a backup or use `sqlite3 FILE .recover`";
    let (severity, detail) = match sqlx::query("PRAGMA main.quick_check(1)").fetch_one(&mut connection).await {
        Ok(row) => {
            let detail: String = column(&row, 0)?;
            (if detail == "ok" { Severity::Ok } else { Severity::Danger }, detail)
        }
        Err(_) if Instant::now() >= deadline => {
            let detail = "large file: no damage found within the time limit".to_owned();
            let fix = "run `PRAGMA integrity_check` on a copy of the file".to_owned();
            findings.problem(Severity::Note, "pages", detail, fix);
            return Ok(());
        }
        Err(error) => match Error::from(error) {
            Error::Corrupt(detail) => (Severity::Danger, detail),
            other => return Err(other),
        },
    };
    check(findings, severity == Severity::Ok, severity, "pages", detail, fix);
    Ok(())
}
