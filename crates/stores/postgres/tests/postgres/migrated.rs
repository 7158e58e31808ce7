//! Databases with an inbox: one of each server is migrated, and the others are copies of it, which takes half the time. An
//! outbox would refuse to run in one: a copy is a restored database to it.

use relevo_store_postgres::{Schema, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::{Database, Server};
use sqlx::Connection as _;
use tokio::sync::OnceCell;

static ORIGINALS: [OnceCell<Database>; 3] = [const { OnceCell::const_new() }; 3];

/// A database of the caller's own on the shared server of this version, with an inbox.
pub(crate) async fn database(version: PgVersion) -> Database {
    let server = Server::shared(version);
    let place = match version {
        PgVersion::V13 => 0,
        PgVersion::V15 => 1,
        PgVersion::V18 => 2,
    };
    let original = ORIGINALS[place].get_or_init(async || {
        let database = server.database().await;
        let mut connection = database.connect().await;
        migrate::migrate(&mut connection, &Schema::default()).await.expect("an empty database");
        // Nobody may be connected to what is copied.
        connection.close().await.expect("a server");
        database
    });
    server.copy_of(original.await).await
}
