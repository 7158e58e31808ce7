//! The certificates of a client.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Checks, Problem, Secret, Section};

/// The certificates of a TLS client, in PEM.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Certificates {
    /// The trusted CA certificates, usually as `ca_file`. The default is the public or the system's authorities.
    #[schemars(extend("x-example-file" = "/etc/relevo/ca.pem"))]
    pub ca: Option<Secret>,
    /// The client certificate and its intermediate certificates, usually as `cert_file`.
    #[schemars(extend("x-example-file" = "/etc/relevo/client.pem"))]
    pub cert: Option<Secret>,
    /// The private key of the client certificate, usually as `key_file`.
    #[schemars(extend("x-example-file" = "/run/credentials/relevo/client.key"))]
    pub key: Option<Secret>,
}

impl Certificates {
    /// The CA certificates.
    pub fn ca(&self) -> Option<String> {
        self.ca.as_ref().map(|ca| ca.reveal().to_owned())
    }

    /// The client certificate and its key.
    pub fn identity(&self) -> Option<(String, String)> {
        let (cert, key) = self.cert.as_ref().zip(self.key.as_ref())?;
        Some((cert.reveal().to_owned(), key.reveal().to_owned()))
    }
}

impl Section for Certificates {
    fn validate(&self, checks: &mut Checks<'_>) {
        if self.cert.is_some() != self.key.is_some() {
            let set = if self.cert.is_some() { "cert" } else { "key" };
            let problem = Problem::new("a client certificate needs both `cert` and `key`");
            checks.report(set, problem.hint("set `cert_file` and `key_file`"));
        }
    }
}
