//! A database with an outbox, a directory, and the messages that arrived at the broker.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use relevo_broker_embedded::BrokerFile;
use relevo_store_postgres::{Schema, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::{Database, Server};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Row as _};

use crate::daemon::{DEADLINE, Daemon, POLL, until};

/// The start of the configuration file of every test.
pub(crate) const BEGIN: &str = "\
[admin]
listen = \"127.0.0.1:0\"
sample_interval = \"100ms\"
";

/// A directory that is deleted when its value is dropped.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        let name = |number: u32| std::env::temp_dir().join(format!("relevo-run-{}-{number}", std::process::id()));
        let path = (0..10_000).map(name).find(|path| std::fs::create_dir(path).is_ok());
        Self(path.expect("the directory for temporary files can be written"))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("the directory can be written");
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// One outbox and one broker.
pub(crate) struct TestOutbox {
    pub(crate) database: Database,
    pub(crate) directory: Directory,
}

impl TestOutbox {
    pub(crate) async fn new() -> Self {
        Self::of(Server::shared(PgVersion::V15).database().await).await
    }

    /// In an empty database.
    pub(crate) async fn of(database: Database) -> Self {
        migrate::migrate(&mut database.connect().await, &Schema::default()).await.expect("an empty database");
        Self { database, directory: Directory::new() }
    }

    /// A destination of this outbox, with more keys of the destination behind it.
    pub(crate) fn outbox(&self, name: &str, url: &str, more: &str) -> String {
        let broker = self.directory.path().join(format!("{name}.db"));
        let mut text = format!("[outboxes.{name}]\ndatabase = \"{url}\"\n");
        write!(text, "[outboxes.{name}.destinations.main]\ncreate = true\n{more}\n").expect("a text");
        write!(
            text,
            "[outboxes.{name}.destinations.main.broker]\nkind = \"embedded\"\npath = \"{}\"\n",
            broker.display()
        )
        .expect("a text");
        text
    }

    /// The usual file.
    pub(crate) fn config(&self, more: &str) -> PathBuf {
        let outbox = self.outbox("shop", &self.database.url(), "start = \"oldest\"");
        self.directory.write("relevo.toml", &format!("{BEGIN}{outbox}{more}"))
    }

    pub(crate) fn start(&self, more: &str) -> Daemon {
        Daemon::start(&self.config(more), &[])
    }

    pub(crate) async fn emit(&self, topic: &str, count: usize) {
        let sql = format!(
            "SELECT relevo.emit('{topic}', 'key-' || n % 7, 'Happened', jsonb_build_object('n', n)) FROM generate_series(1, {count}) n"
        );
        self.run(&sql).await;
    }

    /// Messages with these numbers, of seven keys.
    pub(crate) async fn emit_numbers(&self, topic: &str, numbers: std::ops::RangeInclusive<i64>) {
        let (first, last) = numbers.into_inner();
        let sql = format!(
            "SELECT relevo.emit('{topic}', 'key-' || n % 7, 'Happened', jsonb_build_object('n', n)) FROM generate_series({first}, {last}) n"
        );
        self.run(&sql).await;
    }

    /// A file with one outbox and these destinations: their names and the contents of their broker's section, in
    /// which `BROKER` stands for the section's name.
    pub(crate) fn with_destinations(&self, destinations: &[(&str, &str)], more: &str) -> PathBuf {
        let mut text = format!("{BEGIN}[outboxes.shop]\ndatabase = \"{}\"\n", self.database.url());
        for (name, broker) in destinations {
            let section = format!("outboxes.shop.destinations.{name}");
            write!(text, "[{section}]\ncreate = true\nstart = \"oldest\"\n[{section}.broker]\n").expect("a text");
            writeln!(text, "{}", broker.replace("BROKER", &format!("{section}.broker"))).expect("a text");
        }
        self.directory.write("relevo.toml", &format!("{text}{more}"))
    }

    pub(crate) async fn run(&self, sql: &str) {
        let mut connection = self.database.connect().await;
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.expect("a good statement");
    }

    /// Holds the write lock of the broker's file. Creates the file if it does not exist.
    pub(crate) async fn lock_broker(&self) -> SqliteConnection {
        let file = self.directory.path().join("shop.db");
        let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
        let mut connection = options.connect().await.expect("the directory can be written");
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut connection).await.expect("no other connection writes");
        connection
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let mut connection = self.database.connect().await;
        let row = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await.expect("a query");
        row.try_get(0).expect("a number")
    }

    /// Addresses of the messages that arrived at the broker of an outbox, in order.
    pub(crate) async fn arrived(&self, outbox: &str) -> Vec<String> {
        let path = self.directory.path().join(format!("{outbox}.db"));
        if !path.exists() {
            return Vec::new();
        }
        // Opening the broker creates its tables.
        let broker = BrokerFile::open(relevo_broker_embedded::Config::new(&path)).await.expect("the broker's file");
        let mut connection = SqliteConnectOptions::new().filename(path).connect().await.expect("the broker's file");
        let select = sqlx::query_scalar("SELECT address FROM broker_message ORDER BY seq");
        let addresses = select.fetch_all(&mut connection).await.expect("stored messages");
        broker.close().await;
        addresses
    }

    /// Waits until this number of messages is published to a destination.
    pub(crate) fn taken(daemon: &Daemon, destination: &str, count: i64) {
        Self::taken_within(DEADLINE, daemon, destination, count);
    }

    /// Like [`Self::taken`], with this deadline.
    pub(crate) fn taken_within(deadline: Duration, daemon: &Daemon, destination: &str, count: i64) {
        let labels = format!("{{service=\"relevo\",outbox=\"shop\",destination=\"{destination}\"");
        let end = Instant::now() + deadline;
        while daemon.metric(&format!("outbox_published_total{labels}")) < Some(count) {
            let (log, metrics) = (daemon.log(), daemon.get("/metrics").1);
            assert!(
                Instant::now() < end,
                "fewer than {count} messages were published to `{destination}`:\n{log}\n{metrics}"
            );
            std::thread::sleep(POLL);
        }
    }

    /// Waits until at least this number of messages arrived. Messages that are sent twice count twice.
    pub(crate) fn delivered(daemon: &Daemon, outbox: &str, count: i64) {
        let name = format!("outbox_published_total{{service=\"relevo\",outbox=\"{outbox}\"");
        until(&format!("{count} messages arrived"), || daemon.metric(&name) >= Some(count));
    }
}
