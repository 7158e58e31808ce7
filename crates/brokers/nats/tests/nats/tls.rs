//! Valid and invalid logins and certificates, on servers that require them.

use relevo_broker_nats::{Auth, Config, Identity, Tls};
use relevo_conformance::broker::harness::publication;
use relevo_core::Class;
use relevo_testkit::certs::{Certs, Fault, Holder};
use relevo_testkit::nats::{Private, Settings};
use relevo_testkit::{ClientCertificate, NatsVersion};

use crate::harness::{create_stream_as, open, outcome_of, publish_until};

const SEED: &str = "SUAACAQDAQCQMBYIBEFAWDANBYHRAEISCMKBKFQXDAMRUGY4DUPB6IC5CQ";
const PUBLIC_KEY: &str = "UB43KVROR7TFJ6KAPCYRF2FJROTZAH4FHLTJLPWX4DRZCC5NASLGJBFE";
const OTHER_SEED: &str = "SUAAEAYEAUDAOCAJBIFQYDIOB4IBCEQTCQKRMFYYDENBWHA5DYPSAIOM6Y";

/// No stream stores the subject: a client that gets this error has passed the login.
const ACCEPTED: &str = "no stream";

async fn connect_outcome(config: Config) -> String {
    let (class, text) = outcome_of(&open(config).await, &publication(1, "a")).await.expect("there is no stream");
    assert_eq!(class, Class::Blocked, "{text}");
    text
}

async fn with_auth(server: &Private, auth: Auth) -> String {
    connect_outcome(Config { auth, ..Config::new(server.url()) }).await
}

fn user(password: &str) -> Auth {
    Auth::UserPassword { user: "relevo".to_owned(), password: password.to_owned() }
}

#[tokio::test]
async fn only_the_right_login_is_accepted() {
    for version in NatsVersion::ALL {
        for (settings, right, wrong) in [
            (Settings::new().user("relevo", "right"), user("right"), user("wrong")),
            (Settings::new().token("right"), Auth::Token("right".to_owned()), Auth::Token("wrong".to_owned())),
            (Settings::new().nkey(PUBLIC_KEY), Auth::NKey(SEED.to_owned()), Auth::NKey(OTHER_SEED.to_owned())),
        ] {
            let server = Private::start(version, settings).await;
            let text = with_auth(&server, right).await;
            assert!(text.contains(ACCEPTED), "{text}");
            for auth in [wrong, Auth::None] {
                let text = with_auth(&server, auth).await;
                assert!(text.contains("refused the login"), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn a_login_fixed_at_the_server_recovers() {
    let server = Private::start(NatsVersion::V2_15, Settings::new().user("relevo", "other")).await;
    let broker = open(Config { auth: user("right"), ..Config::new(server.url()) }).await;
    let (class, text) = outcome_of(&broker, &publication(1, "a")).await.expect("refused");
    assert_eq!(class, Class::Blocked, "{text}");
    let file = server.directory().join("nats.conf");
    let text = std::fs::read_to_string(&file).expect("the server's file");
    std::fs::write(&file, text.replace("other", "right")).expect("the directory can be written");
    server.stop().await;
    server.start_again().await;
    create_stream_as(&server, "relevo", "right").await;
    publish_until(&broker, &publication(1, "a"), None).await;
}

fn tls(certs: &Certs, client: Option<Fault>) -> Tls {
    let ca = std::fs::read_to_string(certs.ca()).expect("the authority's file");
    let identity = client.map(|fault| {
        let pair = certs.pair(Holder::Client, fault);
        Identity { cert_chain: pair.cert_pem(), key: pair.key_pem() }
    });
    Tls { required: true, ca: Some(ca), identity, ..Tls::default() }
}

async fn with_tls(server: &Private, tls: Tls) -> String {
    connect_outcome(Config { tls, ..Config::new(server.tls_url()) }).await
}

#[tokio::test]
async fn a_configured_private_authority_is_trusted() {
    let certs = Certs::new();
    for version in NatsVersion::ALL {
        let server = Private::start(version, Settings::new().tls(&certs, ClientCertificate::NotAsked)).await;
        let text = with_tls(&server, tls(&certs, None)).await;
        assert!(text.contains(ACCEPTED), "{text}");
        // The system's certificate authorities did not issue it.
        let text = with_tls(&server, Tls::default()).await;
        assert!(text.contains("certificate of the NATS server is not trusted"), "{text}");
    }
}

#[tokio::test]
async fn an_expired_or_foreign_certificate_of_the_server_is_blocked() {
    let certs = Certs::new();
    for (fault, word) in [(Fault::Expired, "xpired"), (Fault::Foreign, "UnknownIssuer")] {
        let settings = Settings::new().faulty_tls(&certs, fault, ClientCertificate::NotAsked);
        let server = Private::start(NatsVersion::V2_15, settings).await;
        let text = with_tls(&server, tls(&certs, None)).await;
        assert!(text.contains("certificate of the NATS server is not trusted") && text.contains(word), "{text}");
    }
}

#[tokio::test]
async fn only_the_right_client_certificate_is_accepted() {
    let certs = Certs::new();
    for version in NatsVersion::ALL {
        let server = Private::start(version, Settings::new().tls(&certs, ClientCertificate::Required)).await;
        let text = with_tls(&server, tls(&certs, Some(Fault::None))).await;
        assert!(text.contains(ACCEPTED), "{text}");
        for client in [None, Some(Fault::Expired), Some(Fault::Foreign)] {
            let text = with_tls(&server, tls(&certs, client)).await;
            assert!(text.contains("refused the client certificate"), "{client:?}: {text}");
        }
    }
}

#[tokio::test]
async fn a_server_without_encryption_is_refused_where_it_is_required() {
    let certs = Certs::new();
    let server = Private::start(NatsVersion::V2_15, Settings::new()).await;
    let text = with_tls(&server, tls(&certs, None)).await;
    assert!(text.contains("TLS handshake with NATS failed"), "{text}");
}
