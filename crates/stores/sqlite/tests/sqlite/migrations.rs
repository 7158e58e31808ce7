//! Schema versions in the file.

use relevo_conformance::outbox::main_calls::MainCalls as _;
use relevo_core::store::StoreError;
use relevo_store_sqlite::{connect_options, migrate};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Row as _};

use crate::scratch::{TempDirectory, child_command, child_role, connect, error_chain, open, operator, outbox, run};

#[tokio::test]
async fn a_second_migration_finds_nothing_to_do() {
    let scratch = TempDirectory::new();
    let all: Vec<i32> = (1..=migrate::VERSION).collect();
    assert_eq!(migrate::pending(scratch.file()).await.unwrap(), all);
    assert!(!scratch.file().exists(), "a check changes nothing");
    assert_eq!(migrate::migrate(scratch.file()).await.unwrap(), all);
    assert_eq!(migrate::migrate(scratch.file()).await.unwrap(), [0; 0]);
    assert_eq!(migrate::pending(scratch.file()).await.unwrap(), [0; 0]);
    assert!(open(&scratch.file()).await.is_ok());
}

#[tokio::test]
async fn an_applications_own_tables_are_left_alone() {
    let scratch = TempDirectory::new();
    let mut own = connect_options(scratch.file()).create_if_missing(true).connect().await.unwrap();
    sqlx::raw_sql("CREATE TABLE message (text TEXT); INSERT INTO message VALUES ('mine')")
        .execute(&mut own)
        .await
        .unwrap();
    outbox(&scratch.file(), 1).await;
    let row = sqlx::query("SELECT text FROM message").fetch_one(&mut own).await.unwrap();
    assert_eq!(row.get::<String, _>(0), "mine");
}

#[tokio::test]
async fn processes_that_migrate_at_once_agree() {
    if let Some(file) = child_role() {
        migrate::migrate(&file).await.expect("a free or a migrated file");
        return;
    }
    let scratch = TempDirectory::new();
    let file = scratch.file();
    let part = file.to_str().unwrap();
    let start = |_| child_command("migrations::processes_that_migrate_at_once_agree", part).spawn().unwrap();
    let children: Vec<_> = (0..6).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let mut connection = connect(&file).await;
    let row = sqlx::query("SELECT count(*) FROM relevo_migration").fetch_one(&mut connection).await.unwrap();
    assert_eq!(row.get::<i32, _>(0), migrate::VERSION);
}

const COMPATIBLE: migrate::Migration = migrate::Migration {
    version: migrate::VERSION + 1,
    name: "compatible",
    files: &["ALTER TABLE relevo_message ADD COLUMN note TEXT;"],
    compatible_from: migrate::VERSION,
};

const INCOMPATIBLE: migrate::Migration = migrate::Migration {
    version: migrate::VERSION + 2,
    name: "incompatible",
    files: &["ALTER TABLE relevo_message DROP COLUMN note;"],
    compatible_from: migrate::VERSION + 2,
};

#[tokio::test]
async fn a_newer_file_is_used_as_long_as_it_is_compatible() {
    let scratch = TempDirectory::new();
    outbox(&scratch.file(), 1).await;
    let store = operator(&scratch.file()).await;
    assert_eq!(migrate::apply(scratch.file(), &[COMPATIBLE]).await.unwrap(), [COMPATIBLE.version]);
    assert!(open(&scratch.file()).await.is_ok());
    assert!(store.destinations().await.is_ok(), "a program that runs during the upgrade continues");
    assert_eq!(migrate::migrate(scratch.file()).await.unwrap(), [0; 0]);
}

#[tokio::test]
async fn a_newer_file_is_rejected_and_an_older_one_names_the_command() {
    let scratch = TempDirectory::new();
    drop(outbox(&scratch.file(), 1).await);
    migrate::apply(scratch.file(), &[COMPATIBLE, INCOMPATIBLE]).await.unwrap();
    for error in [open(&scratch.file()).await.err(), migrate::migrate(scratch.file()).await.err()] {
        let error = error.expect("a refusal");
        assert!(matches!(error, StoreError::SchemaMismatch { .. }) && !error.is_retryable());
        assert!(error_chain(&error).ends_with("hint: upgrade the program"), "{}", error_chain(&error));
    }
    run(&scratch.file(), "DELETE FROM relevo_migration WHERE version > 1").await;
    run(&scratch.file(), "UPDATE relevo_migration SET version = 0").await;
    let error = open(&scratch.file()).await.err().expect("a refusal");
    assert!(matches!(error, StoreError::SchemaMismatch { .. }));
    let needs = "is at version 0, this program needs 1; hint: run `relevo migrate`";
    assert!(error_chain(&error).ends_with(needs), "{}", error_chain(&error));
}

#[tokio::test]
async fn a_file_with_another_journal_mode_is_rejected_until_it_is_migrated() {
    let scratch = TempDirectory::new();
    drop(outbox(&scratch.file(), 1).await);
    let mut connection = SqliteConnectOptions::new().filename(scratch.file()).connect().await.unwrap();
    // Connections of the store close on their own threads, and this change needs exclusive access to the file.
    let mode = loop {
        match sqlx::query("PRAGMA journal_mode = DELETE").fetch_one(&mut connection).await {
            Ok(row) => break row.get::<String, _>(0),
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!(mode, "delete");
    drop(connection);
    let error = open(&scratch.file()).await.err().expect("a refusal");
    assert!(error_chain(&error).contains("journal mode `delete`"), "{}", error_chain(&error));
    migrate::migrate(scratch.file()).await.unwrap();
    assert!(open(&scratch.file()).await.is_ok());
}

#[tokio::test]
async fn the_sql_script_creates_the_same_schema() {
    let scratch = TempDirectory::new();
    let by_script = scratch.path().join("script.db");
    let mut connection = connect_options(&by_script).create_if_missing(true).connect().await.unwrap();
    let script = migrate::sql_script();
    sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(&mut connection).await.unwrap();
    migrate::migrate(scratch.file()).await.unwrap();
    let mut made = Vec::new();
    for file in [&by_script, &scratch.file()] {
        let sql = "SELECT group_concat(sql, ';') FROM (SELECT sql FROM sqlite_schema ORDER BY name)";
        let row = sqlx::query(sql).fetch_one(&mut connect(file).await).await.unwrap();
        made.push(row.get::<String, _>(0));
    }
    assert_eq!(made[0], made[1]);
}

#[tokio::test]
async fn scripts_for_another_tool_upgrade_step_by_step_and_no_version_twice() {
    let scratch = TempDirectory::new();
    let mut tool = connect_options(scratch.file()).create_if_missing(true).connect().await.unwrap();
    let list = [migrate::BASELINE, COMPATIBLE];
    for to in [1, 2] {
        let script = format!("BEGIN;\n{}\nCOMMIT", migrate::between(&list, to - 1, to));
        sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(&mut tool).await.unwrap();
    }
    sqlx::query("SELECT note FROM relevo_message").fetch_all(&mut tool).await.unwrap();
    sqlx::query("PRAGMA journal_mode = WAL").execute(&mut tool).await.unwrap();
    assert!(open(&scratch.file()).await.is_ok());
    let script = format!("BEGIN;\n{}\nCOMMIT", migrate::between(&list, 1, 2));
    let error = sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(&mut tool).await.unwrap_err();
    assert!(error.to_string().contains("NOT NULL constraint failed: relevo_migration"), "{error}");
}

/// The statements of the schema, without their comments.
#[tokio::test]
async fn the_schema_is_this() {
    let scratch = TempDirectory::new();
    migrate::migrate(scratch.file()).await.unwrap();
    let sql = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY tbl_name, type DESC, name";
    let rows = sqlx::query(sql).fetch_all(&mut connect(&scratch.file()).await).await.unwrap();
    let statement = |row: &sqlx::sqlite::SqliteRow| {
        let sql: String = row.get(0);
        let lines = sql.lines().map(|line| line.split("--").next().unwrap_or_default().trim_end());
        lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(rows.iter().map(statement).collect::<Vec<_>>().join("\n\n"));
}
