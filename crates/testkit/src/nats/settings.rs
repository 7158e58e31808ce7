/// What a private server has beyond NATS's own settings and JetStream.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    lines: Vec<String>,
    jetstream: Vec<String>,
}

impl Settings {
    /// NATS's own, with JetStream.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more line, or block, of the configuration file: `.config("max_payload: 65536")`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// One more line of its block `jetstream`: `.jetstream("sync_interval: always")`, `.jetstream("max_file_store: 1MB")`.
    #[must_use]
    pub fn jetstream(mut self, line: &str) -> Self {
        self.jetstream.push(line.to_owned());
        self
    }

    /// Only who knows the password gets in.
    #[must_use]
    pub fn user(self, name: &str, password: &str) -> Self {
        self.config(&format!("authorization {{ user: \"{name}\", password: \"{password}\" }}"))
    }

    /// Only who knows the token gets in.
    #[must_use]
    pub fn token(self, token: &str) -> Self {
        self.config(&format!("authorization {{ token: \"{token}\" }}"))
    }

    /// Only who has the seed of this public key gets in.
    #[must_use]
    pub fn nkey(self, public_key: &str) -> Self {
        self.config(&format!("authorization {{ users: [ {{ nkey: {public_key} }} ] }}"))
    }

    pub(super) fn text(&self, directory: &str, client: u16, monitor: u16) -> String {
        format!(
            "server_name: relevo_{client}\nlisten: 127.0.0.1:{client}\nhttp: 127.0.0.1:{monitor}\n\
             jetstream {{\n  store_dir: \"{directory}/data\"\n  {}\n}}\n{}\n",
            self.jetstream.join("\n  "),
            self.lines.join("\n"),
        )
    }
}
