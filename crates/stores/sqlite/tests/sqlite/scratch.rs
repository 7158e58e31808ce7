//! A directory for one test, an outbox in it, and a minimal relay.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use relevo_core::MessageId;
use relevo_core::outbox::admin::OutboxAdmin as _;
use relevo_core::outbox::leases::{Lease, LeaseRequest, ShardLeases as _};
use relevo_core::outbox::log::{OutboxReader as _, PageRequest, ParkedMessage, SettleResult, Settlement, WindowLimit};
use relevo_core::outbox::{LogEntry, Position};
use relevo_core::store::StoreError;
use relevo_store_sqlite::{
    Config, Draft, Operator, OperatorConfig, StartFrom, Store, begin, connect_options, emit, migrate,
};
use sqlx::sqlite::SqliteConnection;
use sqlx::{ConnectOptions as _, Connection as _};
use uuid::Uuid;

pub(crate) const MAIN: &str = "main";
/// Longer than any connection locks the file exclusively. The last connection to close checkpoints the log, which takes
/// seconds on a slow disk.
pub(crate) const LONG_WAIT: Duration = Duration::from_secs(30);
/// Busy timeout for calls that must fail because another connection holds the lock.
const SHORT_WAIT: Duration = Duration::from_millis(500);

/// A temporary directory, deleted on drop.
pub(crate) struct TempDirectory(PathBuf);

impl TempDirectory {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("relevo-sqlite-{}", Uuid::new_v4().simple()));
        std::fs::create_dir(&path).expect("the directory for temporary files can be written");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("outbox.db")
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        // No code can handle a failure here, and a panic in drop would hide the panic of the test.
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A migrated file with destination [`MAIN`], from the oldest message on.
pub(crate) async fn outbox(file: &Path, shards: u16) -> Store {
    migrate::migrate(file).await.expect("a new file");
    let added = operator(file).await.add_destination(MAIN, shards, StartFrom::Oldest).await;
    assert!(added.expect("a new destination"));
    open(file).await.expect("a migrated file")
}

pub(crate) async fn operator(file: &Path) -> Operator {
    let config = OperatorConfig { busy_timeout: LONG_WAIT, ..OperatorConfig::new(file) };
    Operator::open(config).await.expect("a migrated file")
}

pub(crate) async fn open(file: &Path) -> Result<Store, StoreError> {
    Store::open(Config { busy_timeout: LONG_WAIT, ..Config::new(file, MAIN) }).await
}

/// Opens a store with a short timeout, after all other connections are closed.
pub(crate) async fn open_with_short_wait(file: &Path) -> Store {
    wait_until_closed(file).await;
    Store::open(Config { busy_timeout: SHORT_WAIT, ..Config::new(file, MAIN) }).await.expect("a migrated file")
}

pub(crate) async fn connect(file: &Path) -> SqliteConnection {
    connect_options(file).busy_timeout(LONG_WAIT).connect().await.expect("a database")
}

/// Waits until every connection is closed. Each closes on its own thread, and the last one deletes the log. If two
/// close at the same moment, neither is the last, and the log stays until another connection opens and closes.
pub(crate) async fn wait_until_closed(file: &Path) {
    loop {
        connect(file).await.close().await.expect("closed");
        if !file.with_extension("db-wal").exists() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(crate) async fn run(file: &Path, sql: &'static str) {
    sqlx::raw_sql(sql).execute(&mut connect(file).await).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Emits one message in its own transaction.
pub(crate) async fn emit_one(connection: &mut SqliteConnection, draft: Draft) -> MessageId {
    let mut tx = begin(connection).await.expect("a transaction");
    let id = emit(&mut tx, draft).await.expect("a message");
    tx.commit().await.expect("a commit");
    id
}

pub(crate) fn draft(key: &str) -> Draft {
    Draft::json("orders", key, "OrderPlaced", "{}")
}

/// Leases all shards and reads from their common position.
pub(crate) struct Reader {
    pub(crate) store: Store,
    pub(crate) leases: Vec<Lease>,
    pub(crate) position: Position,
}

impl Reader {
    pub(crate) async fn start(store: Store) -> Self {
        let lease = Duration::from_mins(10);
        let (owner, name) = (Uuid::new_v4(), "reader".to_owned());
        let request = LeaseRequest { owner, name, duration: lease, held: Vec::new(), release: Vec::new() };
        let response = store.acquire_leases(request).await.expect("free shards");
        Self { store, leases: response.leases, position: response.taken[0].position.clone() }
    }

    pub(crate) async fn read(&self) -> Result<ReadPage, StoreError> {
        let shards: Vec<_> = self.leases.iter().map(|lease| (*lease, self.position.clone())).collect();
        let window_limit = WindowLimit::Unlimited;
        let read = PageRequest { shards: &shards, messages_max: 100, bytes_max: 1 << 30, window_limit };
        let page = self.store.read(read).await?;
        let end = page.shards.first().map_or(&self.position, |read| &read.end).clone();
        Ok(ReadPage { entries: page.entries, end })
    }

    pub(crate) async fn settle(
        &mut self,
        end: Position,
        parks: Vec<ParkedMessage>,
    ) -> Result<SettleResult, StoreError> {
        let progress = self.leases.iter().map(|lease| (*lease, end.clone())).collect();
        let settled = self.store.settle(Settlement { progress, parked: parks }).await?;
        self.position = end;
        Ok(settled)
    }

    /// Reads and settles until no message is left.
    pub(crate) async fn drain(&mut self) -> Result<Vec<LogEntry>, StoreError> {
        let mut entries = Vec::new();
        loop {
            let page = self.read().await?;
            if page.end == self.position {
                return Ok(entries);
            }
            assert_eq!(self.settle(page.end, Vec::new()).await?, SettleResult::default());
            entries.extend(page.entries);
        }
    }
}

/// A page of shards that are all at one position.
#[derive(Debug)]
pub(crate) struct ReadPage {
    pub(crate) entries: Vec<LogEntry>,
    /// The position of all shards after the page.
    pub(crate) end: Position,
}

pub(crate) fn ids(entries: &[LogEntry]) -> Vec<MessageId> {
    entries.iter().map(|entry| entry.message.id).collect()
}

/// The full chain of an error as one text.
pub(crate) fn error_chain(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// The environment variable with the role of a child process in the test.
const CHILD_ROLE: &str = "RELEVO_TEST_PART";

/// The role of this process in a test. `None` in the process that the test runner started.
pub(crate) fn child_role() -> Option<String> {
    std::env::var(CHILD_ROLE).ok()
}

/// Runs this program again, for a role in the test of this name.
pub(crate) fn child_command(test: &str, part: &str) -> Command {
    command(Command::new(std::env::current_exe().expect("a running program")), test, part)
}

/// Like `this_test`, but the child may mount file systems. They are private to it and end with it.
pub(crate) fn child_command_with_mounts(test: &str, part: &str) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount"]).arg(std::env::current_exe().expect("a running program"));
    command(unshare, test, part)
}

fn command(mut command: Command, test: &str, part: &str) -> Command {
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD_ROLE, part);
    command
}
