//! The testkit's own promises about certificates; what servers make of them is in `nats.rs` and `rabbitmq.rs`.

use std::process::Command;

use relevo_testkit::certs::{Certs, Fault, Holder};

/// Whether OpenSSL, which did not make it, trusts the certificate for this purpose.
fn is_trusted(certs: &Certs, holder: Holder, fault: Fault) -> bool {
    let purpose = match holder {
        Holder::Server => "sslserver",
        Holder::Client => "sslclient",
    };
    let mut openssl = Command::new("openssl");
    openssl.args(["verify", "-purpose", purpose, "-CAfile"]).arg(certs.ca()).arg(certs.pair(holder, fault).cert);
    openssl.output().expect("`openssl` is installed").status.success()
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
fn the_files_go_with_the_value() {
    let certs = Certs::new();
    let (ca, client) = (certs.ca(), certs.client());
    assert!(ca.exists() && client.cert.exists() && client.key.exists());
    assert!(client.cert_pem().starts_with("-----BEGIN CERTIFICATE-----"));
    assert!(client.key_pem().starts_with("-----BEGIN PRIVATE KEY-----"));
    drop(certs);
    assert!(!ca.exists() && !client.cert.exists() && !client.key.exists());
}
