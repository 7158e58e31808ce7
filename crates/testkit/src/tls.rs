//! TLS settings of a private server.

use std::path::Path;

use crate::certs::{self, Certs, Fault, Holder};

/// Whether a server requires a client certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificate {
    /// The server rejects clients without a certificate, or with one from a foreign authority.
    Required,
    /// The server does not request a certificate.
    NotAsked,
}

/// Copies of the files, so that the server can outlive its [`Certs`].
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
