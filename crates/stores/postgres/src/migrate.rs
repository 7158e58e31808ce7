//! The schema's versions. Each is applied once, in order, by one process at a time.

use std::time::Duration;

use relevo_core::store::StoreError;
use relevo_core::store_adapter::MigrationStep;
use sqlx::error::DatabaseError;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::classify::Error;
use crate::config::Schema;
use crate::connection::Connection;
use crate::literal::literal;
use crate::queries;

/// One version of the schema.
#[derive(Clone, Copy)]
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

/// Everything that the first release needs. Later versions are `migrations/0002_*.sql` and so on.
pub const BASELINE: Migration = Migration {
    version: 1,
    name: "baseline",
    files: &[
        include_str!("../migrations/0001_baseline/00_migration.sql"),
        include_str!("../migrations/0001_baseline/01_log.sql"),
        include_str!("../migrations/0001_baseline/02_ticks.sql"),
        include_str!("../migrations/0001_baseline/03_leases.sql"),
        include_str!("../migrations/0001_baseline/04_parking.sql"),
        include_str!("../migrations/0001_baseline/05_operators.sql"),
        include_str!("../migrations/0001_baseline/06_retention.sql"),
        include_str!("../migrations/0001_baseline/07_restore.sql"),
        include_str!("../migrations/0001_baseline/08_inbox.sql"),
        include_str!("../migrations/0001_baseline/09_retry.sql"),
        include_str!("../migrations/0001_baseline/10_consumers.sql"),
        include_str!("../migrations/0001_baseline/11_replays.sql"),
        include_str!("../migrations/0001_baseline/12_grants.sql"),
    ],
    compatible_from: 1,
};

const MIGRATIONS: &[Migration] = &[BASELINE];

/// Lock timeout of one attempt. It is short because other sessions queue behind it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of attempts, and the pause between them: together as long as a handler's transaction may take.
const LOCK_ATTEMPTS: u32 = 150;
const LOCK_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The newest schema version that this program knows.
pub const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// The oldest schema version that this program runs on. A new program may start before the schema is migrated.
pub const OLDEST_SUPPORTED: i32 = 1;

/// Migrates the schema to [`VERSION`] in one transaction. Returns the versions that it applied.
///
/// A second process waits for the first and then applies nothing. A failure changes nothing. A table in use is waited for
/// in short attempts, so that other sessions do not queue for long behind this one.
pub async fn migrate(connection: &mut PgConnection, schema: &Schema) -> Result<Vec<i32>, sqlx::Error> {
    apply(connection, schema, MIGRATIONS).await
}

/// Like [`migrate`], with another list of versions: tests add versions that do not exist yet.
#[doc(hidden)]
pub async fn apply(
    connection: &mut PgConnection,
    schema: &Schema,
    list: &[Migration],
) -> Result<Vec<i32>, sqlx::Error> {
    let mut attempt = 1;
    loop {
        match try_to_apply(connection, schema, list).await {
            Err(error) if attempt < LOCK_ATTEMPTS && is_lock_timeout(&error) => attempt += 1,
            result => return result,
        }
        // The sessions that queued behind this one go first.
        tokio::time::sleep(LOCK_RETRY_INTERVAL).await;
    }
}

async fn try_to_apply(
    connection: &mut PgConnection,
    schema: &Schema,
    list: &[Migration],
) -> Result<Vec<i32>, sqlx::Error> {
    let mut tx = connection.begin().await?;
    sqlx::raw_sql(AssertSqlSafe(preamble(schema))).execute(&mut *tx).await?;
    sqlx::raw_sql(AssertSqlSafe(format!("SET LOCAL lock_timeout = {}", LOCK_TIMEOUT.as_millis())))
        .execute(&mut *tx)
        .await?;
    let applied = versions(&mut tx, schema).await?;
    let mut now = Vec::new();
    for migration in list.iter().filter(|migration| !applied.contains(&migration.version)) {
        sqlx::raw_sql(AssertSqlSafe(render(migration, schema))).execute(&mut *tx).await?;
        now.push(migration.version);
    }
    tx.commit().await?;
    Ok(now)
}

/// Whether another session held a lock for too long.
fn is_lock_timeout(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).is_some_and(|code| code == "55P03")
}

/// The versions that [`migrate`] would apply now, with their names. Changes nothing.
pub async fn pending(connection: &mut PgConnection, schema: &Schema) -> Result<Vec<(i32, &'static str)>, sqlx::Error> {
    let applied = versions(connection, schema).await?;
    let missing = MIGRATIONS.iter().filter(|migration| !applied.contains(&migration.version));
    Ok(missing.map(|migration| (migration.version, migration.name)).collect())
}

/// The names of applied versions.
pub(crate) fn steps(versions: &[i32]) -> Vec<MigrationStep> {
    let applied = MIGRATIONS.iter().filter(|migration| versions.contains(&migration.version));
    applied.map(|migration| MigrationStep { version: migration.version, name: migration.name }).collect()
}

/// The applied versions; none if there is no such schema.
async fn versions(connection: &mut PgConnection, schema: &Schema) -> Result<Vec<i32>, sqlx::Error> {
    let row = sqlx::raw_sql(AssertSqlSafe(exists_query(schema))).fetch_one(&mut *connection).await?;
    if row.try_get::<Option<String>, _>(0)?.is_none() {
        return Ok(Vec::new());
    }
    let rows = sqlx::raw_sql(AssertSqlSafe(applied_query(schema))).fetch_all(connection).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Everything that [`migrate`] runs on an empty database, as a script for a DBA to read and run.
pub fn sql_script(schema: &Schema) -> String {
    let mut script = format!("BEGIN;\n\n{}\n", preamble(schema));
    for migration in MIGRATIONS {
        script.push_str(&render(migration, schema));
        script.push('\n');
    }
    script.push_str("COMMIT;\n");
    script
}

/// The SQL between two versions, for a migration tool that runs each of its files in a transaction. It has no transaction
/// commands, restores the search path, and fails if the schema is not at `from`. Version 0 has no schema.
pub fn sql_between(schema: &Schema, from: i32, to: i32) -> String {
    between(schema, MIGRATIONS, from, to)
}

/// Like [`sql_between`], with another list of versions: tests add versions that do not exist yet.
#[doc(hidden)]
pub fn between(schema: &Schema, list: &[Migration], from: i32, to: i32) -> String {
    let (name, quoted) = (schema.name(), schema.quoted());
    let create = if from == 0 { format!("CREATE SCHEMA IF NOT EXISTS {quoted};\n") } else { String::new() };
    let mut script = format!(
        "-- Relevo schema `{name}`, version {from} to {to}. Run it in one transaction.\n\n\
         SELECT pg_advisory_xact_lock(hashtextextended({lock}, 0));\n\
         {create}\
         SELECT set_config('relevo.search_path', current_setting('search_path'), false);\n\
         SET search_path = {quoted}, pg_temp;\n\
         DO $$\n\
         DECLARE\n    found int := 0;\n\
         BEGIN\n    \
             IF to_regclass({table}) IS NOT NULL THEN\n        \
                 SELECT coalesce(max(version), 0) INTO found FROM migration;\n    \
             END IF;\n    \
             IF found <> {from} THEN\n        \
                 RAISE EXCEPTION 'schema `{name}` is at version %, this script upgrades version {from}', found;\n    \
             END IF;\n\
         END $$;\n\n",
        lock = literal(&lock_name(schema)),
        table = literal(&format!("{quoted}.migration")),
    );
    for migration in list.iter().filter(|migration| migration.version > from && migration.version <= to) {
        script.push_str(&render(migration, schema));
        script.push('\n');
    }
    script.push_str("SELECT set_config('search_path', current_setting('relevo.search_path'), false);\n");
    script
}

fn lock_name(schema: &Schema) -> String {
    format!("relevo/migrate/{}", schema.name())
}

/// The lock comes first: one process at a time creates the schema.
fn preamble(schema: &Schema) -> String {
    let quoted = schema.quoted();
    format!(
        "SELECT pg_advisory_xact_lock(hashtextextended({}, 0));\n\
         CREATE SCHEMA IF NOT EXISTS {quoted};\n\
         SET LOCAL search_path = {quoted}, pg_temp;\n",
        literal(&lock_name(schema)),
    )
}

fn render(migration: &Migration, schema: &Schema) -> String {
    let quoted = schema.quoted();
    let Migration { version, name, files, compatible_from } = migration;
    let sql = files.join("\n").replace("'@schema@'", &literal(schema.name())).replace("@schema@", &quoted);
    format!(
        "-- Version {version}: {name}\n\n{sql}\n\
         -- Only granted roles may call functions. They may call the new ones too.\n\
         REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {quoted} FROM PUBLIC;\n\
         SELECT regrant_roles();\n\
         INSERT INTO migration (version, name, compatible_from) VALUES ({version}, '{name}', {compatible_from});\n",
    )
}

/// Returns the name of the table of versions, or null if there is no such schema.
pub(crate) fn exists_query(schema: &Schema) -> String {
    format!("SELECT to_regclass({})::text", literal(&format!("{}.migration", schema.quoted())))
}

/// Lists the applied versions in ascending order, each with the oldest program that runs on it.
pub(crate) fn applied_query(schema: &Schema) -> String {
    format!("SELECT version, compatible_from FROM {}.migration ORDER BY version", schema.quoted())
}

/// Checks whether this program runs on the schema of this connection.
pub(crate) async fn check_connection(connection: &Connection, schema: &Schema) -> Result<(), StoreError> {
    check(schema, newest(connection, schema).await?)
}

/// Returns the newest applied version and the oldest program that runs on it.
async fn newest(connection: &Connection, schema: &Schema) -> Result<Option<(i32, Option<i32>)>, Error> {
    let rows = connection.query(exists_query(schema)).await?;
    let row = rows.first().ok_or(Error::UnexpectedResponse("no row"))?;
    if queries::column::<Option<String>>(row, 0)?.is_none() {
        return Ok(None);
    }
    let rows = connection.query(applied_query(schema)).await?;
    rows.last().map(|row| Ok((queries::column(row, 0)?, queries::column(row, 1)?))).transpose()
}

/// Checks whether this program runs on the newest applied version. The error names the command that fixes it.
pub(crate) fn check(schema: &Schema, newest: Option<(i32, Option<i32>)>) -> Result<(), StoreError> {
    let name = schema.name();
    let what = match newest {
        Some((version, _)) if (OLDEST_SUPPORTED..=VERSION).contains(&version) => return Ok(()),
        Some((version, Some(oldest))) if version > VERSION && oldest <= VERSION => return Ok(()),
        None => format!("schema `{name}` holds no outbox; hint: run `relevo migrate`"),
        Some((version, _)) if version < OLDEST_SUPPORTED => {
            format!(
                "schema `{name}` is at version {version}, this program needs {OLDEST_SUPPORTED}; hint: run `relevo migrate`"
            )
        }
        Some((version, _)) => format!(
            "schema `{name}` is at version {version}, newer than this program's {VERSION}; hint: upgrade the program"
        ),
    };
    Err(StoreError::SchemaMismatch { reason: what })
}
