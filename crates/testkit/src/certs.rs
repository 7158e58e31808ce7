//! Certificates for the servers and clients of a single test.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use crate::scratch::Scratch;

/// The common name of every client certificate.
pub const CLIENT_NAME: &str = "relevo-client";

/// The party that presents a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A server on `127.0.0.1` and `localhost`.
    Server,
    /// A client with the name [`CLIENT_NAME`].
    Client,
}

/// The defect of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No defect.
    None,
    /// It expired years ago.
    Expired,
    /// It is signed by an untrusted authority.
    Foreign,
}

/// A certificate authority and its certificates, as PEM files in a directory that is deleted with the value.
pub struct Certs {
    scratch: Scratch,
}

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key in PKCS 8 format.
    pub key: PathBuf,
}

impl Certs {
    /// Creates a new authority and one certificate of every kind.
    #[expect(clippy::new_without_default, reason = "it writes files, which a default should not do")]
    pub fn new() -> Self {
        let certs = Self { scratch: Scratch::for_marked() };
        let (own, foreign) = (authority("Relevo test authority"), authority("Another authority"));
        std::fs::write(certs.ca(), own.pem()).expect("the directory can be written");
        std::fs::write(certs.foreign_ca(), foreign.pem()).expect("the directory can be written");
        for holder in [Holder::Server, Holder::Client] {
            for fault in [Fault::None, Fault::Expired, Fault::Foreign] {
                let issuer = if fault == Fault::Foreign { &foreign } else { &own };
                issue(&certs.pair(holder, fault), holder, fault, issuer);
            }
        }
        certs
    }

    /// The certificate of the trusted authority.
    pub fn ca(&self) -> PathBuf {
        self.scratch.path().join("ca.pem")
    }

    /// The certificate of the authority behind [`Fault::Foreign`].
    pub fn foreign_ca(&self) -> PathBuf {
        self.scratch.path().join("foreign-ca.pem")
    }

    /// A valid server certificate.
    pub fn server(&self) -> Pair {
        self.pair(Holder::Server, Fault::None)
    }

    /// A valid client certificate.
    pub fn client(&self) -> Pair {
        self.pair(Holder::Client, Fault::None)
    }

    /// The certificate of this holder with this defect.
    pub fn pair(&self, holder: Holder, fault: Fault) -> Pair {
        let name = match (holder, fault) {
            (Holder::Server, Fault::None) => "server",
            (Holder::Server, Fault::Expired) => "expired-server",
            (Holder::Server, Fault::Foreign) => "foreign-server",
            (Holder::Client, Fault::None) => "client",
            (Holder::Client, Fault::Expired) => "expired-client",
            (Holder::Client, Fault::Foreign) => "foreign-client",
        };
        let file = |end: &str| self.scratch.path().join(format!("{name}{end}"));
        Pair { cert: file(".pem"), key: file("-key.pem") }
    }
}

impl Pair {
    /// The certificate as PEM text.
    pub fn cert_pem(&self) -> String {
        read(&self.cert)
    }

    /// The key as PEM text.
    pub fn key_pem(&self) -> String {
        read(&self.key)
    }
}

pub(crate) fn read(file: &Path) -> String {
    std::fs::read_to_string(file).expect("the files exist as long as their `Certs`")
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().expect("there is randomness");
    CertifiedIssuer::self_signed(params, key).expect("the parameters are valid")
}

fn issue(pair: &Pair, holder: Holder, fault: Fault, issuer: &CertifiedIssuer<'static, KeyPair>) {
    let mut params = CertificateParams::default();
    let name = match holder {
        Holder::Server => {
            let names = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]);
            params.subject_alt_names = names.expect("the names are valid").subject_alt_names;
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            "localhost"
        }
        Holder::Client => {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            CLIENT_NAME
        }
    };
    params.distinguished_name.push(DnType::CommonName, name);
    if fault == Fault::Expired {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    }
    let key = KeyPair::generate().expect("there is randomness");
    let cert = params.signed_by(&key, issuer).expect("the parameters are valid");
    std::fs::write(&pair.cert, cert.pem()).expect("the directory can be written");
    std::fs::write(&pair.key, key.serialize_pem()).expect("the directory can be written");
}
