use super::NatsVersion;

/// A server that all tests share. Tests must not stop it, and must give their streams [unique names](super::unique).
#[derive(Clone, Debug)]
pub struct Server {
    url: String,
    version: NatsVersion,
}

impl Server {
    /// The server for this version, from `RELEVO_TEST_NATS_URL` (2.15) or `RELEVO_TEST_NATS_2_9_URL`. Panics if the
    /// variable is not set.
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

    /// The URL of the server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The requested version.
    pub fn version(&self) -> NatsVersion {
        self.version
    }
}
