//! The schema's versions: applied once each, in order, by one process at a time.

use std::time::Duration;

use relevo_core::store::StoreError;
use sqlx::error::DatabaseError;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::config::Schema;
use crate::queries::literal;

/// One version of the schema.
struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
    /// The oldest program, by the version that it came with, that runs on this version as well.
    serves_from: Option<i32>,
}

impl Migration {
    const fn new(version: i32, name: &'static str, sql: &'static str) -> Self {
        Self { version, name, sql, serves_from: None }
    }

    /// A version that takes nothing away which programs since `oldest` use.
    const fn serving_from(self, oldest: i32) -> Self {
        Self { serves_from: Some(oldest), ..self }
    }
}

const MIGRATIONS: [Migration; 19] = [
    Migration::new(1, "log", include_str!("../migrations/0001_log.sql")),
    Migration::new(2, "ticks", include_str!("../migrations/0002_ticks.sql")),
    Migration::new(3, "leases", include_str!("../migrations/0003_leases.sql")),
    Migration::new(4, "parking", include_str!("../migrations/0004_parking.sql")),
    Migration::new(5, "operators", include_str!("../migrations/0005_operators.sql")),
    Migration::new(6, "upkeep", include_str!("../migrations/0006_upkeep.sql")),
    Migration::new(7, "versions", include_str!("../migrations/0007_versions.sql")).serving_from(6),
    Migration::new(8, "inbox", include_str!("../migrations/0008_inbox.sql")).serving_from(6),
    Migration::new(9, "retry", include_str!("../migrations/0009_retry.sql")).serving_from(6),
    Migration::new(10, "consumers", include_str!("../migrations/0010_consumers.sql")).serving_from(6),
    Migration::new(11, "last_number", include_str!("../migrations/0011_last_number.sql")).serving_from(6),
    Migration::new(12, "memory", include_str!("../migrations/0012_memory.sql")).serving_from(6),
    Migration::new(13, "replays", include_str!("../migrations/0013_replays.sql")).serving_from(6),
    Migration::new(14, "one", include_str!("../migrations/0014_one.sql")).serving_from(6),
    Migration::new(15, "sampling", include_str!("../migrations/0015_sampling.sql")).serving_from(6),
    Migration::new(16, "turns", include_str!("../migrations/0016_turns.sql")).serving_from(6),
    Migration::new(17, "probes", include_str!("../migrations/0017_probes.sql")).serving_from(6),
    Migration::new(18, "sweep", include_str!("../migrations/0018_sweep.sql")).serving_from(6),
    Migration::new(19, "forget", include_str!("../migrations/0019_forget.sql")).serving_from(6),
];

/// So long a table is waited for, and everybody else behind that.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// How often it is tried, and the pause in between: as long together as a handler's transaction may take.
const LOCK_TRIES: u32 = 150;
const LOCK_PAUSE: Duration = Duration::from_secs(1);

/// The version that this program comes with.
pub const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// The oldest version that this program runs on. So a new program may be started before the schema is migrated.
pub const OLDEST: i32 = 6;

/// Brings the schema up to [`VERSION`] in one transaction; returns the versions that were applied now.
///
/// A second process waits for the first, then finds nothing to do. A failure changes nothing. Tables in use are waited for a little
/// at a time, so that nobody waits long behind this: whoever works while it runs is not kept from it.
pub async fn migrate(connection: &mut PgConnection, schema: &Schema) -> Result<Vec<i32>, sqlx::Error> {
    migrate_to(connection, schema, VERSION).await
}

/// The same, and no further than to this version: for those who go step by step.
pub async fn migrate_to(connection: &mut PgConnection, schema: &Schema, last: i32) -> Result<Vec<i32>, sqlx::Error> {
    let mut tries = 1;
    loop {
        match try_to_migrate(connection, schema, last).await {
            Err(error) if tries < LOCK_TRIES && is_locked(&error) => tries += 1,
            result => return result,
        }
        // Those who waited behind us come first.
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}

async fn try_to_migrate(connection: &mut PgConnection, schema: &Schema, last: i32) -> Result<Vec<i32>, sqlx::Error> {
    let mut tx = connection.begin().await?;
    sqlx::raw_sql(AssertSqlSafe(preamble(schema))).execute(&mut *tx).await?;
    sqlx::raw_sql(AssertSqlSafe(format!("SET LOCAL lock_timeout = {}", LOCK_WAIT.as_millis())))
        .execute(&mut *tx)
        .await?;
    let applied = versions(&mut tx, schema).await?;
    let mut now = Vec::new();
    let wanted = MIGRATIONS.iter().filter(|migration| migration.version <= last);
    for migration in wanted.filter(|migration| !applied.contains(&migration.version)) {
        sqlx::raw_sql(AssertSqlSafe(step(migration, schema))).execute(&mut *tx).await?;
        now.push(migration.version);
    }
    tx.commit().await?;
    Ok(now)
}

/// Somebody else's lock was in the way for too long.
fn is_locked(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).is_some_and(|code| code == "55P03")
}

/// The versions that [`migrate`] would apply now, with their names; changes nothing.
pub async fn pending(connection: &mut PgConnection, schema: &Schema) -> Result<Vec<(i32, &'static str)>, sqlx::Error> {
    let row = sqlx::raw_sql(AssertSqlSafe(exists_query(schema))).fetch_one(&mut *connection).await?;
    let table: Option<String> = row.try_get(0)?;
    let applied = if table.is_some() { versions(connection, schema).await? } else { Vec::new() };
    let missing = MIGRATIONS.iter().filter(|migration| !applied.contains(&migration.version));
    Ok(missing.map(|migration| (migration.version, migration.name)).collect())
}

async fn versions(connection: &mut PgConnection, schema: &Schema) -> Result<Vec<i32>, sqlx::Error> {
    let rows = sqlx::raw_sql(AssertSqlSafe(applied_query(schema))).fetch_all(connection).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Everything that [`migrate`] would run on an empty database, as a script for a DBA to read and run.
pub fn script(schema: &Schema) -> String {
    let mut script = format!("BEGIN;\n\n{}\n", preamble(schema));
    for migration in &MIGRATIONS {
        script.push_str(&step(migration, schema));
        script.push('\n');
    }
    script.push_str("COMMIT;\n");
    script
}

/// The lock comes first: the schema itself is made by one process at a time.
fn preamble(schema: &Schema) -> String {
    let quoted = schema.quoted();
    format!(
        "SELECT pg_advisory_xact_lock(hashtextextended({}, 0));\n\
         CREATE SCHEMA IF NOT EXISTS {quoted};\n\
         SET LOCAL search_path = {quoted}, pg_temp;\n\
         CREATE TABLE IF NOT EXISTS migration (\n    \
             version int PRIMARY KEY,\n    \
             name text NOT NULL,\n    \
             applied_at timestamptz NOT NULL DEFAULT clock_timestamp()\n);\n",
        literal(&format!("relevo/migrate/{}", schema.name())),
    )
}

fn step(migration: &Migration, schema: &Schema) -> String {
    let quoted = schema.quoted();
    let (columns, served) = match migration.serves_from {
        Some(oldest) => (", serves_from", format!(", {oldest}")),
        None => ("", String::new()),
    };
    let sql = migration.sql.replace("'@schema@'", &literal(schema.name())).replace("@schema@", &quoted);
    format!(
        "-- Version {}: {}\n\n{sql}\n\
         -- Nobody may call anything that was not granted.\n\
         REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {quoted} FROM PUBLIC;\n\
         INSERT INTO migration (version, name{columns}) VALUES ({}, '{}'{served});\n",
        migration.version, migration.name, migration.version, migration.name
    )
}

/// Names the table of versions, or null if there is no such schema.
pub(crate) fn exists_query(schema: &Schema) -> String {
    format!("SELECT to_regclass({})::text", literal(&format!("{}.migration", schema.quoted())))
}

/// Lists the applied versions, each with the oldest program that it serves. The column is not there before version 7.
pub(crate) fn applied_query(schema: &Schema) -> String {
    format!(
        "SELECT m.version, (to_jsonb(m) ->> 'serves_from')::int FROM {}.migration AS m ORDER BY m.version",
        schema.quoted()
    )
}

/// Says what is wrong with the newest applied version, and which command mends it.
pub(crate) fn check(schema: &Schema, newest: Option<(i32, Option<i32>)>) -> Result<(), StoreError> {
    check_since(schema, newest, OLDEST)
}

/// The same, for what needs a version that is not the oldest.
pub(crate) fn check_since(schema: &Schema, newest: Option<(i32, Option<i32>)>, since: i32) -> Result<(), StoreError> {
    let name = schema.name();
    let what = match newest {
        Some((version, _)) if (since..=VERSION).contains(&version) => return Ok(()),
        Some((version, Some(oldest))) if version > VERSION && oldest <= VERSION => return Ok(()),
        None => format!("schema `{name}` holds no outbox; hint: run `relevo migrate`"),
        Some((version, _)) if version < since => {
            format!("schema `{name}` is at version {version}, this program needs {since}; hint: run `relevo migrate`")
        }
        Some((version, _)) => format!(
            "schema `{name}` is at version {version}, newer than this program's {VERSION}; hint: upgrade the program"
        ),
    };
    Err(StoreError::Schema { what })
}
