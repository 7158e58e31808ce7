//! A temporary directory for one test.

use std::path::{Path, PathBuf};

use relevo_core::{RawMessage, route};
use sqlx::{ConnectOptions as _, Row as _, SqliteConnection};

/// Deleted on drop.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("relevo-embedded-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&path).expect("the directory for temporary files can be written");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Ignore a failure: a panic in `drop` would hide the failure of the test.
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Opens a connection of its own to the file of a broker.
pub(crate) async fn connect(file: &Path) -> SqliteConnection {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
    options.connect().await.expect("the file can be opened")
}

/// Reads the stored messages whose address matches a pattern, oldest first, acknowledged or not.
pub(crate) async fn stored_messages(file: &Path, pattern: &str) -> Vec<RawMessage> {
    let select = sqlx::query("SELECT address, headers, payload FROM broker_message ORDER BY seq");
    let rows = select.fetch_all(&mut connect(file).await).await.expect("the file can be read");
    let matching = rows.iter().filter(|row| route::pattern_matches(pattern, row.get("address")));
    let message = |row: &sqlx::sqlite::SqliteRow| {
        let headers = serde_json::from_str(row.get("headers")).expect("headers are JSON");
        RawMessage::new(headers, row.get::<Vec<u8>, _>("payload").into())
    };
    matching.map(message).collect()
}
