use super::NatsVersion;

/// A server that all tests share. It must be left running; each test's streams have [names](super::unique) of their own.
#[derive(Clone, Debug)]
pub struct Server {
    url: String,
    version: NatsVersion,
}

impl Server {
    /// The server that the environment names for this version: `RELEVO_TEST_NATS_URL` (2.15),
    /// `RELEVO_TEST_NATS_2_9_URL`. Panics where there is none.
    pub fn shared(version: NatsVersion) -> Self {
        let variable = version.url_variable();
        let Ok(url) = std::env::var(variable) else {
            panic!(
                "no NATS {}: run `cargo xtask test`, or `cargo xtask services up` and export what it prints, or set `{variable}`",
                version.number()
            );
        };
        Self { url, version }
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its version, as asked for.
    pub fn version(&self) -> NatsVersion {
        self.version
    }
}
