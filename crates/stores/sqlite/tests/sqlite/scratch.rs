//! A directory for one test, and an outbox in it.

use std::path::{Path, PathBuf};

use relevo_core::operate::Operate as _;
use relevo_store_sqlite::{Config, Draft, Start, Store, begin, connect_options, emit, migrate};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnection;
use uuid::Uuid;

pub(crate) const MAIN: &str = "main";

/// Goes when its owner does.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
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

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nobody can act on a failure here, and a panic in drop would hide the test's own.
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A migrated file with the destination [`MAIN`], from the oldest message on.
pub(crate) async fn outbox(file: &Path, shards: u16) -> Store {
    migrate::migrate(file).await.expect("a new file");
    let store = Store::open(Config::new(file, MAIN)).await.expect("a migrated file");
    assert!(store.add_destination(shards, Start::Oldest).await.expect("a new destination"));
    store
}

pub(crate) async fn connect(file: &Path) -> SqliteConnection {
    connect_options(file).connect().await.expect("a database")
}

/// Emits one message in a transaction of its own.
pub(crate) async fn emit_one(connection: &mut SqliteConnection, draft: Draft) -> relevo_core::MessageId {
    let mut tx = begin(connection).await.expect("a transaction");
    let id = emit(&mut tx, draft).await.expect("a message");
    tx.commit().await.expect("a commit");
    id
}

pub(crate) fn draft(key: &str) -> Draft {
    Draft::json("orders", key, "OrderPlaced", "{}")
}
