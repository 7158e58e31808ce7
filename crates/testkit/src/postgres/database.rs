use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr as _;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection};

use super::{PgVersion, binaries, url};

const DROP_DEADLINE: Duration = Duration::from_secs(10);

/// How long a database exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// Until the value is dropped.
    UntilDrop,
    /// As long as its server, which is deleted as a whole.
    WithServer,
}

/// A database for a single test.
#[derive(Debug)]
pub struct Database {
    server_url: String,
    name: String,
    version: PgVersion,
    keep: Keep,
}

impl Database {
    pub(super) async fn create(server_url: &str, version: PgVersion, keep: Keep) -> Self {
        // No client can connect to `template0`. A connected client would make the copy fail.
        Self::copy("template0", server_url, version, keep).await
    }

    pub(super) async fn copy(template: &str, server_url: &str, version: PgVersion, keep: Keep) -> Self {
        let name = format!("relevo_test_{}", uuid::Uuid::new_v4().simple());
        let statement = format!("CREATE DATABASE {name} TEMPLATE {template}");
        if let Err(error) = run(server_url, statement).await {
            panic!(
                "cannot create a database on PostgreSQL {} (does the server of `cargo xtask services up` still run?): {error}",
                version.major()
            );
        }
        Self { server_url: server_url.to_owned(), name, version, keep }
    }

    /// Its name, unique across all servers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its URL.
    pub fn url(&self) -> String {
        url::with_database(&self.server_url, &self.name)
    }

    /// Its URL, parsed.
    pub fn options(&self) -> PgConnectOptions {
        PgConnectOptions::from_str(&self.url()).expect("the server's URL was accepted before")
    }

    /// A new connection.
    pub async fn connect(&self) -> PgConnection {
        self.options().connect().await.expect("the database accepts connections")
    }

    /// Writes a logical backup in `pg_dump`'s custom format. The caller must delete the file. Version 15 only.
    pub async fn dump(&self) -> PathBuf {
        let file = std::env::temp_dir().join(format!("{}-{}.dump", self.name, uuid::Uuid::new_v4().simple()));
        let mut command = Command::new(binaries::program(self.version, "pg_dump"));
        command.args(["--format=custom", "--file"]).arg(&file).arg(self.url());
        finish(command).await;
        file
    }

    /// Restores a dump into this database, which should be empty. Does not delete the file. Version 15 only.
    pub async fn restore(&self, dump: &Path) {
        let mut command = Command::new(binaries::program(self.version, "pg_restore"));
        command.args(["--exit-on-error", "--no-owner", "--dbname"]).arg(self.url()).arg(dump);
        finish(command).await;
    }

    /// Copies the contents into another, empty database through a dump. Version 15 only.
    pub async fn restore_into(&self, other: &Self) {
        let dump = self.dump().await;
        other.restore(&dump).await;
        std::fs::remove_file(dump).expect("the dump was just written");
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if self.keep == Keep::WithServer {
            return;
        }
        let server_url = self.server_url.clone();
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        // `drop` cannot wait on the test's own runtime, so a thread does the work. Errors are ignored: a leftover
        // database does no harm.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            if let Ok(runtime) = runtime {
                runtime.block_on(async { tokio::time::timeout(DROP_DEADLINE, run(&server_url, statement)).await.ok() });
            }
        });
        thread.join().ok();
    }
}

async fn run(server_url: &str, statement: String) -> Result<(), sqlx::Error> {
    let mut connection = PgConnectOptions::from_str(server_url)?.connect().await?;
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    Ok(())
}

async fn finish(mut command: Command) {
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.expect("waiting does not panic").expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
