//! Databases with an inbox. One database per server is migrated and the others are copies of it, which takes half the
//! time. An outbox rejects such a copy as a restored database.

use relevo_store_postgres::{Schema, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::{Database, Server};
use sqlx::Connection as _;
use tokio::sync::OnceCell;

static TEMPLATES: [OnceCell<Database>; 3] = [const { OnceCell::const_new() }; 3];

/// Creates a database with an inbox for one test, on the shared server of this version.
pub(crate) async fn database(version: PgVersion) -> Database {
    let server = Server::shared(version);
    let place = match version {
        PgVersion::V13 => 0,
        PgVersion::V15 => 1,
        PgVersion::V18 => 2,
    };
    let original = TEMPLATES[place].get_or_init(async || {
        let database = server.database().await;
        let mut connection = database.connect().await;
        migrate::migrate(&mut connection, &Schema::default()).await.expect("an empty database");
        // PostgreSQL copies a database only without other connections to it.
        connection.close().await.expect("a server");
        database
    });
    server.copy_of(original.await).await
}
