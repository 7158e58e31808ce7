//! The schema's versions: applied once each, in order, by one process at a time.

use std::path::Path;
use std::time::Duration;

use relevo_core::store::StoreError;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};
use tokio::time::{Instant, sleep};

use crate::classify::Error;
use crate::config;
use crate::queries::now;

/// One version of the schema.
struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: [Migration; 9] = [
    Migration { version: 1, name: "log", sql: include_str!("../migrations/0001_log.sql") },
    Migration { version: 2, name: "leases", sql: include_str!("../migrations/0002_leases.sql") },
    Migration { version: 3, name: "parking", sql: include_str!("../migrations/0003_parking.sql") },
    Migration { version: 4, name: "inbox", sql: include_str!("../migrations/0004_inbox.sql") },
    Migration { version: 5, name: "memory", sql: include_str!("../migrations/0005_memory.sql") },
    Migration { version: 6, name: "replays", sql: include_str!("../migrations/0006_replays.sql") },
    Migration { version: 7, name: "sampling", sql: include_str!("../migrations/0007_sampling.sql") },
    Migration { version: 8, name: "pace", sql: include_str!("../migrations/0008_pace.sql") },
    Migration { version: 9, name: "forget", sql: include_str!("../migrations/0009_forget.sql") },
];

/// The version that this program needs.
pub const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS relevo_migration (
    version       INTEGER PRIMARY KEY,
    name          TEXT NOT NULL,
    applied_at_ms INTEGER NOT NULL
) STRICT;
";

/// How long the change to the write-ahead log is tried: SQLite does not wait for other connections by itself there.
const JOURNAL_WAIT: Duration = Duration::from_secs(5);
const JOURNAL_PAUSE: Duration = Duration::from_millis(20);

/// Makes the file if there is none, and brings its outbox up to [`VERSION`] in one transaction; returns the versions
/// that were applied now. Tables of the application's own are left alone.
///
/// A second process waits for the first, then finds nothing to do. A failure changes nothing. A file that a newer
/// program has migrated is refused.
pub async fn migrate(path: impl AsRef<Path>) -> Result<Vec<i32>, StoreError> {
    let path = path.as_ref();
    apply(path).await.map_err(|error| error.of_file(path))
}

/// The versions that [`migrate`] would apply; all of them if there is no file yet.
pub async fn pending(path: impl AsRef<Path>) -> Result<Vec<i32>, StoreError> {
    let path = path.as_ref();
    let known = async {
        if !path.exists() {
            return Ok(Vec::new());
        }
        let mut connection = config::plain_options(path).read_only(true).connect().await?;
        applied(&mut connection).await
    };
    let known = known.await.map_err(|error: Error| error.of_file(path))?;
    Ok(MIGRATIONS.iter().map(|migration| migration.version).filter(|version| !known.contains(version)).collect())
}

/// Everything that [`migrate`] would run on an empty file, as a script to read, and to run with `sqlite3`.
pub fn script() -> String {
    let mut script = format!("PRAGMA journal_mode = WAL;\nBEGIN IMMEDIATE;\n\n{TABLE}\n");
    for migration in &MIGRATIONS {
        script.push_str(&step(migration));
        script.push('\n');
    }
    script.push_str("COMMIT;\n");
    script
}

async fn apply(path: &Path) -> Result<Vec<i32>, Error> {
    let mut connection = config::plain_options(path).create_if_missing(true).connect().await?;
    use_log(&mut connection).await?;
    // Dropped on any error, and with it the transaction.
    sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await?;
    sqlx::raw_sql(TABLE).execute(&mut connection).await?;
    let known = applied(&mut connection).await?;
    if let Some(newest) = known.last().filter(|newest| **newest > VERSION) {
        return Err(newer(*newest));
    }
    let mut now = Vec::new();
    for migration in MIGRATIONS.iter().filter(|migration| !known.contains(&migration.version)) {
        sqlx::raw_sql(AssertSqlSafe(step(migration))).execute(&mut connection).await?;
        now.push(migration.version);
    }
    sqlx::query("COMMIT").execute(&mut connection).await?;
    Ok(now)
}

async fn use_log(connection: &mut SqliteConnection) -> Result<(), Error> {
    let deadline = Instant::now() + JOURNAL_WAIT;
    loop {
        let tried = sqlx::query("PRAGMA journal_mode = WAL").fetch_one(&mut *connection).await.map_err(Error::from);
        match tried {
            Ok(row) if row.try_get::<String, _>(0)? == "wal" => return Ok(()),
            Ok(_) => return Err(Error::Schema("cannot use the write-ahead log on this file system".to_owned())),
            Err(Error::Busy) if Instant::now() < deadline => sleep(JOURNAL_PAUSE).await,
            Err(error) => return Err(error),
        }
    }
}

fn step(migration: &Migration) -> String {
    format!(
        "-- Version {}: {}\n\n{}\nINSERT INTO relevo_migration (version, name, applied_at_ms) VALUES ({}, '{}', {});\n",
        migration.version,
        migration.name,
        migration.sql,
        migration.version,
        migration.name,
        now!(),
    )
}

async fn applied(connection: &mut SqliteConnection) -> Result<Vec<i32>, Error> {
    let exists = "SELECT 1 FROM main.sqlite_schema WHERE name = 'relevo_migration'";
    if sqlx::query(exists).fetch_optional(&mut *connection).await?.is_none() {
        return Ok(Vec::new());
    }
    let rows = sqlx::query("SELECT version FROM main.relevo_migration ORDER BY version").fetch_all(connection).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Says what is wrong with the file's schema or journal, and which command mends it.
pub(crate) async fn check(connection: &mut SqliteConnection) -> Result<(), Error> {
    match applied(connection).await?.last() {
        Some(&VERSION) => {}
        None => return Err(Error::Schema("holds no outbox; hint: run `relevo migrate`".to_owned())),
        Some(version) if *version < VERSION => {
            return Err(Error::Schema(format!(
                "is at version {version}, this program needs {VERSION}; hint: run `relevo migrate`"
            )));
        }
        Some(version) => return Err(newer(*version)),
    }
    let mode: String = sqlx::query("PRAGMA main.journal_mode").fetch_one(connection).await?.try_get(0)?;
    if mode != "wal" {
        return Err(Error::Schema(format!("has journal mode `{mode}`, not `wal`; hint: run `relevo migrate`")));
    }
    Ok(())
}

fn newer(version: i32) -> Error {
    Error::Schema(format!("is at version {version}, newer than this program's {VERSION}; hint: upgrade the program"))
}
