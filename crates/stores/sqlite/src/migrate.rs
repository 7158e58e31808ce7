//! Schema versions. One process at a time applies each of them once, in order.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use relevo_core::store::StoreError;
use relevo_core::store_adapter::MigrationStep;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};
use tokio::time::{Instant, sleep};

use crate::classify::Error;
use crate::config;
use crate::queries::{column, now};

/// One version of the schema.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Versions are applied in ascending order.
    pub version: i32,
    /// A short name for operators.
    pub name: &'static str,
    /// SQL scripts, run in this order.
    pub files: &'static [&'static str],
    /// The oldest program, by its own schema version, that runs on this version.
    pub compatible_from: i32,
}

/// Everything that the first release needs.
pub const BASELINE: Migration = Migration {
    version: 1,
    name: "baseline",
    files: &[
        include_str!("../migrations/0001_baseline/00_migration.sql"),
        include_str!("../migrations/0001_baseline/01_log.sql"),
        include_str!("../migrations/0001_baseline/03_leases.sql"),
        include_str!("../migrations/0001_baseline/04_parking.sql"),
        include_str!("../migrations/0001_baseline/06_retention.sql"),
        include_str!("../migrations/0001_baseline/08_inbox.sql"),
        include_str!("../migrations/0001_baseline/09_retry.sql"),
        include_str!("../migrations/0001_baseline/10_consumers.sql"),
        include_str!("../migrations/0001_baseline/11_replays.sql"),
    ],
    compatible_from: 1,
};

/// All versions, oldest first. Later versions are `migrations/0002_*.sql` and so on.
const MIGRATIONS: &[Migration] = &[BASELINE];

/// The newest schema version that this program knows.
pub const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// The oldest schema version that this program runs on.
const OLDEST_SUPPORTED: i32 = 1;

/// Time limit for switching to WAL mode. SQLite applies no busy timeout to it.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(5);
const JOURNAL_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Migrates the schema to [`VERSION`] in one transaction. Creates the file if it does not exist. Returns the versions
/// that it applied. It does not change the application's own tables.
///
/// A second process waits for the first and then applies nothing. A failure changes nothing. A file that a newer
/// program migrated is rejected, unless its schema is compatible with this program.
pub async fn migrate(path: impl AsRef<Path>) -> Result<Vec<i32>, StoreError> {
    apply(path, MIGRATIONS).await
}

/// Like [`migrate`], with another list of versions: tests add versions that do not exist yet.
#[doc(hidden)]
pub async fn apply(path: impl AsRef<Path>, list: &[Migration]) -> Result<Vec<i32>, StoreError> {
    let path = path.as_ref();
    apply_missing(path, list).await.map_err(|error| error.at_open(path))
}

/// The versions that [`migrate`] would apply now. All of them if the file does not exist.
pub async fn pending(path: impl AsRef<Path>) -> Result<Vec<i32>, StoreError> {
    let path = path.as_ref();
    let newest = async {
        if !path.exists() {
            return Ok(None);
        }
        let mut connection = config::connect_options_without_wal(path).read_only(true).connect().await?;
        newest(&mut connection).await
    };
    let newest = newest.await.map_err(|error: Error| error.at_open(path))?;
    Ok(missing(MIGRATIONS, newest).map(|migration| migration.version).collect())
}

/// The names of versions.
pub(crate) fn steps(versions: &[i32]) -> Vec<MigrationStep> {
    let named = MIGRATIONS.iter().filter(|migration| versions.contains(&migration.version));
    named.map(|migration| MigrationStep { version: migration.version, name: migration.name }).collect()
}

/// The SQL that [`migrate`] runs on an empty file, as a script for `sqlite3`.
pub fn sql_script() -> String {
    let mut script = "PRAGMA journal_mode = WAL;\nBEGIN IMMEDIATE;\n\n".to_owned();
    for migration in MIGRATIONS {
        script.push_str(&render(migration));
        script.push('\n');
    }
    script.push_str("COMMIT;\n");
    script
}

/// The SQL between two versions, for a migration tool that runs each of its files in a transaction. It fails if the file
/// is not at `from`. Version 0 has no outbox.
pub fn sql_between(from: i32, to: i32) -> String {
    between(MIGRATIONS, from, to)
}

/// Like [`sql_between`], with another list of versions: tests add versions that do not exist yet.
#[doc(hidden)]
pub fn between(list: &[Migration], from: i32, to: i32) -> String {
    let mut script = format!(
        "-- Relevo in SQLite, version {from} to {to}. Run it in one transaction.\n\
         -- The file needs the write-ahead log: run `PRAGMA journal_mode = WAL` once, outside a transaction.\n\n"
    );
    if from > 0 {
        // SQLite has no RAISE outside triggers. The next number fails on `NOT NULL`, or on a missing table.
        writeln!(
            script,
            "-- Fails unless the file is at version {from}.\n\
             INSERT INTO relevo_migration (version, name, compatible_from, applied_at_ms)\n\
             SELECT version, name, NULL, NULL FROM relevo_migration GROUP BY 'all' HAVING max(version) <> {from};\n"
        )
        .expect("a string has room");
    }
    for migration in list.iter().filter(|migration| migration.version > from && migration.version <= to) {
        script.push_str(&render(migration));
        script.push('\n');
    }
    script
}

async fn apply_missing(path: &Path, list: &[Migration]) -> Result<Vec<i32>, Error> {
    let mut connection = config::connect_options_without_wal(path).create_if_missing(true).connect().await?;
    enable_wal(&mut connection).await?;
    // An error drops the connection, which rolls back the transaction.
    sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await?;
    let newest = newest(&mut connection).await?;
    if let Some(newest) = newest.filter(|newest| newest.is_too_new()) {
        return Err(too_new(newest));
    }
    let mut applied = Vec::new();
    for migration in missing(list, newest) {
        sqlx::raw_sql(AssertSqlSafe(render(migration))).execute(&mut connection).await?;
        applied.push(migration.version);
    }
    sqlx::query("COMMIT").execute(&mut connection).await?;
    Ok(applied)
}

fn missing(list: &[Migration], newest: Option<SchemaVersion>) -> impl Iterator<Item = &Migration> {
    let newest = newest.map_or(0, |newest| newest.version);
    list.iter().filter(move |migration| migration.version > newest)
}

async fn enable_wal(connection: &mut SqliteConnection) -> Result<(), Error> {
    let deadline = Instant::now() + JOURNAL_TIMEOUT;
    loop {
        let tried = sqlx::query("PRAGMA journal_mode = WAL").fetch_one(&mut *connection).await.map_err(Error::from);
        match tried {
            Ok(row) if row.try_get::<String, _>(0)? == "wal" => return Ok(()),
            Ok(_) => return Err(Error::Schema("cannot use the write-ahead log on this file system".to_owned())),
            Err(Error::Busy) if Instant::now() < deadline => sleep(JOURNAL_RETRY_INTERVAL).await,
            Err(error) => return Err(error),
        }
    }
}

fn render(migration: &Migration) -> String {
    let Migration { version, name, compatible_from, .. } = migration;
    format!(
        "-- Version {version}: {name}\n\n{}\n\
         INSERT INTO relevo_migration (version, name, compatible_from, applied_at_ms) \
         VALUES ({version}, '{name}', {compatible_from}, {});\n",
        migration.files.join("\n"),
        now!(),
    )
}

/// The newest schema version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SchemaVersion {
    pub(crate) version: i32,
    compatible_from: i32,
}

impl SchemaVersion {
    fn is_too_old(self) -> bool {
        self.version < OLDEST_SUPPORTED
    }

    fn is_too_new(self) -> bool {
        self.version > VERSION && self.compatible_from > VERSION
    }

    /// Whether this program runs on the schema of the file.
    pub(crate) fn is_compatible(self) -> bool {
        !self.is_too_old() && !self.is_too_new()
    }
}

/// Returns the newest applied version, or `None` if the file has no outbox.
pub(crate) async fn newest(connection: &mut SqliteConnection) -> Result<Option<SchemaVersion>, Error> {
    let exists = "SELECT 1 FROM main.sqlite_schema WHERE name = 'relevo_migration'";
    if sqlx::query(exists).fetch_optional(&mut *connection).await?.is_none() {
        return Ok(None);
    }
    let sql = "SELECT version, compatible_from FROM main.relevo_migration ORDER BY version DESC LIMIT 1";
    let Some(row) = sqlx::query(sql).fetch_optional(connection).await? else { return Ok(None) };
    Ok(Some(SchemaVersion { version: column(&row, 0)?, compatible_from: column(&row, 1)? }))
}

/// Rejects a file whose schema or journal mode this program does not support. The error names the command that fixes
/// it.
pub(crate) async fn check(connection: &mut SqliteConnection) -> Result<(), Error> {
    match newest(connection).await? {
        None => return Err(Error::Schema("holds no outbox; hint: run `relevo migrate`".to_owned())),
        Some(found) if found.is_too_old() => {
            let SchemaVersion { version, .. } = found;
            return Err(Error::Schema(format!(
                "is at version {version}, this program needs {OLDEST_SUPPORTED}; hint: run `relevo migrate`"
            )));
        }
        Some(found) if found.is_too_new() => return Err(too_new(found)),
        Some(_) => {}
    }
    let mode: String = sqlx::query("PRAGMA main.journal_mode").fetch_one(connection).await?.try_get(0)?;
    if mode != "wal" {
        return Err(Error::Schema(format!("has journal mode `{mode}`, not `wal`; hint: run `relevo migrate`")));
    }
    Ok(())
}

fn too_new(found: SchemaVersion) -> Error {
    Error::Schema(format!(
        "is at version {}, newer than this program's {VERSION}; hint: upgrade the program",
        found.version
    ))
}
