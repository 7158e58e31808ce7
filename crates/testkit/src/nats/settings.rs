use std::path::Path;

use super::node::Ports;
use crate::certs::{Certs, Fault};
use crate::tls::{ClientCertificate, Tls};

/// What a private server has beyond NATS's own settings and JetStream.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    lines: Vec<String>,
    jetstream: Vec<String>,
    tls: Option<Tls>,
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

    /// Clients must speak TLS.
    #[must_use]
    pub fn tls(self, certs: &Certs, client: ClientCertificate) -> Self {
        self.faulty_tls(certs, Fault::None, client)
    }

    /// Clients must speak TLS, to a server whose certificate a careful one refuses.
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
