//! A database of a test's own, and a way to look into it.

use std::path::PathBuf;

use relevo::stores::sqlite;
use relevo_testkit::PgVersion;
use relevo_testkit::pgbouncer::PgBouncer;
use relevo_testkit::postgres::{self, Server};
use sqlx::{AssertSqlSafe, PgPool, Row as _, SqlitePool};
use ticketflow::config::{Database, Secret};
use uuid::Uuid;

enum Behind {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// A database of a test's own, gone with it.
pub(crate) struct Place {
    pub(crate) database: Database,
    behind: Behind,
    /// For whatever else a test keeps.
    pub(crate) folder: PathBuf,
    _pooler: Option<PgBouncer>,
    _server: Option<postgres::Database>,
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        let folder = folder();
        let file = folder.join("tickets.db");
        let behind = Behind::Sqlite(SqlitePool::connect_lazy_with(sqlite::connect_options(&file)));
        Self { database: Database::Sqlite(file), behind, folder, _pooler: None, _server: None }
    }

    pub(crate) async fn postgres() -> Self {
        Self::on_server(None).await
    }

    /// Behind a pooler that may give each transaction another session.
    pub(crate) async fn pooled() -> Self {
        Self::on_server(Some(PgBouncer::in_front_of(Server::shared(PgVersion::V15).url()).await)).await
    }

    async fn on_server(pooler: Option<PgBouncer>) -> Self {
        let server = Server::shared(PgVersion::V15).database().await;
        let behind = Behind::Postgres(PgPool::connect_lazy_with(server.options()));
        let url = pooler.as_ref().map_or_else(|| server.url(), |pooler| pooler.url_for(server.name()));
        let database = Database::Postgres(Secret::new(url));
        Self { database, behind, folder: folder(), _pooler: pooler, _server: Some(server) }
    }

    /// Another, empty one on the same kind of database.
    pub(crate) async fn another(&self) -> Self {
        if self.is_sqlite() { Self::sqlite() } else { Self::postgres().await }
    }

    /// What statements say in PostgreSQL's words; in SQLite there are other names for some.
    pub(crate) async fn run(&self, sql: &str) {
        match &self.behind {
            Behind::Sqlite(pool) => sqlx::raw_sql(AssertSqlSafe(in_sqlite(sql))).execute(pool).await.map(|_| ()),
            Behind::Postgres(pool) => sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.map(|_| ()),
        }
        .unwrap();
    }

    /// Runs what the two databases say differently.
    pub(crate) async fn run_each(&self, postgres: &str, sqlite: &str) {
        self.run(if self.is_sqlite() { sqlite } else { postgres }).await;
    }

    pub(crate) fn is_sqlite(&self) -> bool {
        matches!(self.behind, Behind::Sqlite(_))
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        match &self.behind {
            Behind::Sqlite(pool) => sqlx::query(AssertSqlSafe(in_sqlite(sql))).fetch_one(pool).await.unwrap().get(0),
            Behind::Postgres(pool) => sqlx::query(AssertSqlSafe(sql)).fetch_one(pool).await.unwrap().get(0),
        }
    }

    pub(crate) async fn texts(&self, sql: &str) -> Vec<String> {
        match &self.behind {
            Behind::Sqlite(pool) => {
                let rows = sqlx::query(AssertSqlSafe(in_sqlite(sql))).fetch_all(pool).await.unwrap();
                rows.iter().map(|row| row.get(0)).collect()
            }
            Behind::Postgres(pool) => {
                let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(pool).await.unwrap();
                rows.iter().map(|row| row.get(0)).collect()
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ticketflow-api-{}", Uuid::new_v4()));
    std::fs::create_dir(&folder).unwrap();
    folder
}

fn in_sqlite(sql: &str) -> String {
    let sql = sql.replace("convert_from(payload, 'UTF8')", "CAST(payload AS TEXT)").replace("::bigint", "");
    sql.replace("headers::text", "headers").replace("ticketflow.", "").replace("relevo.", "relevo_")
}
