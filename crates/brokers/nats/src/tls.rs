//! TLS settings, and the meaning of TLS errors.

use std::error::Error as _;

use async_nats::rustls::pki_types::pem::PemObject as _;
use async_nats::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use async_nats::rustls::{AlertDescription, ClientConfig, Error as TlsError, RootCertStore, crypto};
use async_nats::{ConnectError, ConnectErrorKind};

use crate::classify::Error;
use crate::config::Tls;

/// The TLS configuration for the client library.
pub(crate) fn client_config(tls: &Tls) -> Result<ClientConfig, Error> {
    // Set explicitly, so that a provider installed by another part of the program has no effect.
    let provider = crypto::ring::default_provider();
    let builder = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|error| config_error("tls", &error))?
        .with_root_certificates(roots(tls)?);
    let Some(identity) = &tls.identity else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates(&identity.cert_chain, "the client certificate")?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())
        .map_err(|error| config_error("the client key", &error))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| config_error("the client certificate and its key", &error))
}

fn roots(tls: &Tls) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &tls.ca {
        for certificate in certificates(ca, "the certificate authority")? {
            roots.add(certificate).map_err(|error| config_error("the certificate authority", &error))?;
        }
    } else {
        // On a system without certificates, the TLS handshake fails with an error that says so.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    Ok(roots)
}

fn certificates(pem: &str, what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| config_error(what, &error))?;
    if certificates.is_empty() {
        return Err(Error::Config(format!("{what} holds no certificate")));
    }
    Ok(certificates)
}

fn config_error(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Config(format!("{what} cannot be used: {error}"))
}

/// Maps a failed attempt to connect.
pub(crate) fn connect_error(error: ConnectError) -> Error {
    match (error.kind(), tls_cause(&error)) {
        (ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication, _) => Error::LoginRefused(error),
        (_, Some(TlsCause::Server)) => Error::ServerCertificate(error),
        (_, Some(TlsCause::Client)) => Error::ClientCertificate(error),
        (ConnectErrorKind::Tls, _) | (_, Some(TlsCause::Handshake)) => Error::Tls(error),
        (ConnectErrorKind::ServerParse, _) => Error::Config(error.to_string()),
        (
            ConnectErrorKind::Dns | ConnectErrorKind::TimedOut | ConnectErrorKind::Io | ConnectErrorKind::MaxReconnects,
            None,
        ) => Error::Unreachable(error),
    }
}

enum TlsCause {
    Server,
    Client,
    Handshake,
}

fn tls_cause(error: &ConnectError) -> Option<TlsCause> {
    let mut cause = error.source();
    while let Some(source) = cause {
        let inner = source.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let tls = inner.and_then(|inner| inner.downcast_ref()).or_else(|| source.downcast_ref::<TlsError>());
        if let Some(tls) = tls {
            return Some(match tls {
                TlsError::InvalidCertificate(_) => TlsCause::Server,
                TlsError::AlertReceived(
                    AlertDescription::BadCertificate
                    | AlertDescription::UnsupportedCertificate
                    | AlertDescription::CertificateRevoked
                    | AlertDescription::CertificateExpired
                    | AlertDescription::CertificateUnknown
                    | AlertDescription::CertificateRequired
                    | AlertDescription::NoCertificate
                    | AlertDescription::UnknownCA
                    | AlertDescription::AccessDenied,
                ) => TlsCause::Client,
                _ => TlsCause::Handshake,
            });
        }
        cause = source.source();
    }
    None
}
