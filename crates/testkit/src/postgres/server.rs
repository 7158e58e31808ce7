use super::PgVersion;
use super::database::{Database, Keep};

/// A server that all tests share. It must be left running; each test makes its own [`Database`] on it.
#[derive(Clone, Debug)]
pub struct Server {
    url: String,
    version: PgVersion,
}

impl Server {
    /// The server that the environment names for this version: `RELEVO_TEST_POSTGRES_URL` (15),
    /// `RELEVO_TEST_POSTGRES_13_URL`, `RELEVO_TEST_POSTGRES_18_URL`. Panics where there is none.
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

    /// Its version, as asked for.
    pub fn version(&self) -> PgVersion {
        self.version
    }

    /// A new, empty database, dropped with the value.
    pub async fn database(&self) -> Database {
        Database::create(&self.url, self.version, Keep::UntilDrop).await
    }
    /// A copy of a database of this server, dropped with the value. Nobody may be connected to the original.
    pub async fn copy_of(&self, original: &Database) -> Database {
        Database::copy(original.name(), &self.url, self.version, Keep::UntilDrop).await
    }
}
