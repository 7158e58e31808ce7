//! The TLS of a private server.

use std::path::Path;

use crate::certs::{self, Certs, Fault, Holder};

/// Whether a server asks its clients for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificate {
    /// Whoever shows none, or one of a foreign authority, is refused.
    Required,
    /// It is not asked for.
    NotAsked,
}

/// Copies of the files, so that the server does not need its [`Certs`] to live.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    ca: String,
    cert: String,
    key: String,
    pub(crate) client: ClientCertificate,
}

impl Tls {
    pub(crate) fn new(certs: &Certs, fault: Fault, client: ClientCertificate) -> Self {
        let server = certs.pair(Holder::Server, fault);
        Self { ca: certs::read(&certs.ca()), cert: server.cert_pem(), key: server.key_pem(), client }
    }

    /// Writes `ca.pem`, `cert.pem` and `key.pem`.
    pub(crate) fn write(&self, directory: &Path) {
        for (name, text) in [("ca.pem", &self.ca), ("cert.pem", &self.cert), ("key.pem", &self.key)] {
            std::fs::write(directory.join(name), text).expect("the directory can be written");
        }
    }
}
