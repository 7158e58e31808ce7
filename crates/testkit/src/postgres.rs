//! PostgreSQL: servers shared by all tests, and private servers that a test may kill.

mod binaries;
mod cluster;
mod database;
mod private;
mod server;
mod url;
mod version;

pub use database::Database;
pub use private::Private;
pub use server::Server;
pub use version::PgVersion;
