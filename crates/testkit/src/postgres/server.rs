use super::PgVersion;
use super::database::{Database, Keep};

/// A server that all tests share. Tests must not stop it; each test creates its own [`Database`] on it.
#[derive(Clone, Debug)]
pub struct Server {
    url: String,
    version: PgVersion,
}

impl Server {
    /// The server for this version, from `RELEVO_TEST_POSTGRES_URL` (15), `RELEVO_TEST_POSTGRES_13_URL` or
    /// `RELEVO_TEST_POSTGRES_18_URL`. Panics if the variable is not set.
    pub fn shared(version: PgVersion) -> Self {
        let variable = version.url_variable();
        let Ok(url) = std::env::var(variable) else {
            panic!(
                "no PostgreSQL {}: run `cargo xtask test`, or `cargo xtask services up` and export what it prints, or set `{variable}`",
                version.major()
            );
        };
        Self { url, version }
    }

    /// The URL of the server, with its maintenance database.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The requested version.
    pub fn version(&self) -> PgVersion {
        self.version
    }

    /// Creates an empty database that is dropped with the value.
    pub async fn database(&self) -> Database {
        Database::create(&self.url, self.version, Keep::UntilDrop).await
    }
    /// Copies a database of this server; the copy is dropped with the value. The original must have no connections.
    pub async fn copy_of(&self, original: &Database) -> Database {
        Database::copy(original.name(), &self.url, self.version, Keep::UntilDrop).await
    }
}
