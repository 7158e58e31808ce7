//! Tests of the testkit's certificates. How servers treat them is tested in `nats.rs` and `rabbitmq.rs`.

use std::sync::Arc;

use relevo_testkit::certs::{Certs, Fault, Holder};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;

/// Whether rustls, which did not create the certificate, trusts it.
fn is_trusted(certs: &Certs, holder: Holder, fault: Fault) -> bool {
    let read = |path| CertificateDer::from_pem_file(path).expect("the file holds a certificate");
    let mut roots = RootCertStore::empty();
    roots.add(read(certs.ca())).expect("it is an authority's");
    let (roots, provider) = (Arc::new(roots), Arc::new(ring::default_provider()));
    let shown = read(certs.pair(holder, fault).cert);
    match holder {
        Holder::Server => {
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build().expect("it has a root");
            ["127.0.0.1", "localhost"].into_iter().all(|name| {
                let name = ServerName::try_from(name).expect("a name");
                verifier.verify_server_cert(&shown, &[], &name, &[], UnixTime::now()).is_ok()
            })
        }
        Holder::Client => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build().expect("it has a root");
            verifier.verify_client_cert(&shown, &[], UnixTime::now()).is_ok()
        }
    }
}

#[test]
fn only_a_certificate_without_fault_is_trusted() {
    let certs = Certs::new();
    for holder in [Holder::Server, Holder::Client] {
        assert!(is_trusted(&certs, holder, Fault::None));
        assert!(!is_trusted(&certs, holder, Fault::Expired));
        assert!(!is_trusted(&certs, holder, Fault::Foreign));
    }
}

#[test]
fn the_files_are_deleted_with_the_value() {
    let certs = Certs::new();
    let (ca, client) = (certs.ca(), certs.client());
    assert!(ca.exists() && client.cert.exists() && client.key.exists());
    assert!(client.cert_pem().starts_with("-----BEGIN CERTIFICATE-----"));
    assert!(client.key_pem().starts_with("-----BEGIN PRIVATE KEY-----"));
    drop(certs);
    assert!(!ca.exists() && !client.cert.exists() && !client.key.exists());
}
