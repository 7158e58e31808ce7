use std::path::Path;

use super::node::Ports;
use crate::certs::{Certs, Fault};
use crate::tls::{ClientCertificate, Tls};

/// Settings of a private server, in addition to NATS's defaults and JetStream.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    lines: Vec<String>,
    jetstream: Vec<String>,
    tls: Option<Tls>,
}

impl Settings {
    /// NATS's defaults, with JetStream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line or a block to the configuration file: `.config("max_payload: 65536")`.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Adds a line to the `jetstream` block: `.jetstream("sync_interval: always")`,
    /// `.jetstream("max_file_store: 1MB")`.
    #[must_use]
    pub fn jetstream(mut self, line: &str) -> Self {
        self.jetstream.push(line.to_owned());
        self
    }

    /// Clients must log in with this name and password.
    #[must_use]
    pub fn user(self, name: &str, password: &str) -> Self {
        self.config(&format!("authorization {{ user: \"{name}\", password: \"{password}\" }}"))
    }

    /// Clients must present this token.
    #[must_use]
    pub fn token(self, token: &str) -> Self {
        self.config(&format!("authorization {{ token: \"{token}\" }}"))
    }

    /// Clients must prove that they have the seed of this public key.
    #[must_use]
    pub fn nkey(self, public_key: &str) -> Self {
        self.config(&format!("authorization {{ users: [ {{ nkey: {public_key} }} ] }}"))
    }

    /// Clients must use TLS.
    #[must_use]
    pub fn tls(self, certs: &Certs, client: ClientCertificate) -> Self {
        self.faulty_tls(certs, Fault::None, client)
    }

    /// Clients must use TLS. The server's certificate has a defect, so a strict client refuses it.
    #[must_use]
    pub fn faulty_tls(mut self, certs: &Certs, fault: Fault, client: ClientCertificate) -> Self {
        self.tls = Some(Tls::new(certs, fault, client));
        self
    }

    /// Writes `nats.conf`.
    pub(super) fn write(&self, directory: &Path, ports: Ports) {
        let shown = directory.display();
        let mut blocks = vec![
            format!("server_name: relevo_{}", ports.client),
            format!("listen: 127.0.0.1:{}", ports.client),
            format!("http: 127.0.0.1:{}", ports.monitor),
            format!("jetstream {{\n  store_dir: \"{shown}/data\"\n  {}\n}}", self.jetstream.join("\n  ")),
        ];
        if let Some(tls) = &self.tls {
            tls.write(directory);
            blocks.push(format!(
                "tls {{\n  cert_file: \"{shown}/cert.pem\"\n  key_file: \"{shown}/key.pem\"\n  \
                 ca_file: \"{shown}/ca.pem\"\n  verify: {}\n}}",
                tls.client == ClientCertificate::Required
            ));
        }
        blocks.extend_from_slice(&self.lines);
        let text = blocks.join("\n") + "\n";
        std::fs::write(directory.join("nats.conf"), text).expect("the directory can be written");
    }
}
