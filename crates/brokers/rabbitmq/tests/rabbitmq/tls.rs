//! Authentication and permissions: certificates, passwords, virtual hosts and permissions, on a server that requires
//! them.

use std::time::{Duration, Instant};

use lapin::options::QueueBindOptions;
use lapin::types::FieldTable;
use relevo_broker_rabbitmq::{Config, Error, Identity, Publisher, Tls};
use relevo_conformance::broker::harness::{publication_to, publish};
use relevo_core::broker::OutcomeReceiver;
use relevo_core::{Broker as _, Class, Publication};
use relevo_testkit::ClientCertificate;
use relevo_testkit::certs::{CLIENT_NAME, Certs, Fault, Holder, Pair};
use relevo_testkit::rabbitmq::{Private, Settings};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::harness::AmqpClient;

struct TlsServer {
    server: Private,
    certs: Certs,
}

impl TlsServer {
    async fn start() -> Self {
        let certs = Certs::new();
        let settings = Settings::new()
            .tls(&certs, ClientCertificate::Required)
            .plugin("rabbitmq_auth_mechanism_ssl")
            .config("auth_mechanisms.1 = PLAIN")
            .config("auth_mechanisms.2 = EXTERNAL")
            .config("ssl_cert_login_from = common_name")
            .user(CLIENT_NAME, "unused");
        let server = Private::start_with(settings).await;
        AmqpClient::connect(&server.amqp_url()).await.quorum_queue("orders", &[]).await;
        Self { server, certs }
    }

    /// A valid configuration with TLS.
    fn config(&self) -> Config {
        let ca = std::fs::read_to_string(self.certs.ca()).expect("a file");
        let tls = Tls { ca: Some(ca), identity: Some(identity(&self.certs.client())), sasl_external: false };
        Config { tls, ..Config::new(self.server.amqps_url()) }
    }

    async fn ctl(&self, arguments: &[&str]) {
        self.server.ctl(arguments).await;
    }

    /// Replaces the certificate of the running server.
    async fn install_certificate(&self, pair: &Pair) {
        for (name, text) in [("cert.pem", pair.cert_pem()), ("key.pem", pair.key_pem())] {
            std::fs::write(self.server.directory().join(name), text).expect("the directory can be written");
        }
        self.ctl(&["eval", "ssl:clear_pem_cache()."]).await;
    }
}

fn identity(pair: &Pair) -> Identity {
    Identity { cert_chain: pair.cert_pem(), key: pair.key_pem() }
}

async fn open(config: Config) -> Publisher {
    Publisher::open(config).await.expect("a valid configuration")
}

/// Publishes a message. Returns its failure class and error text.
async fn outcome_of(broker: &Publisher) -> Option<(Class, String)> {
    let reports = OutcomeReceiver::default();
    broker.publish(&[publication_to("orders", 1, "k")], &reports.sender(1)).await;
    let (_, _, outcome) = reports.take().pop().expect("an outcome");
    outcome.err().map(|failure| (failure.class(), failure.error_chain()))
}

/// Publishes several messages. Returns their failures, in order.
async fn outcomes_of(broker: &Publisher, batch: &[Publication]) -> Vec<Option<(Class, String)>> {
    let reports = OutcomeReceiver::default();
    broker.publish(batch, &reports.sender(1)).await;
    let mut outcomes = reports.take();
    outcomes.sort_by_key(|(_, index, _)| *index);
    let outcomes = outcomes.into_iter();
    outcomes.map(|(_, _, outcome)| outcome.err().map(|failure| (failure.class(), failure.error_chain()))).collect()
}

async fn connect_outcome(config: Config) -> Option<(Class, String)> {
    outcome_of(&open(config).await).await
}

/// The final error for a client whose certificate the server refuses. The server checks it after the client has
/// finished its handshake, and then closes the connection. If the reset arrives before the alert, the attempt reports
/// only the reset, and another attempt follows.
async fn outcome_after_resets(config: Config) -> Option<(Class, String)> {
    let broker = open(config).await;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match outcome_of(&broker).await {
            Some((Class::Outage, reason)) => assert!(Instant::now() < deadline, "nothing but resets: {reason}"),
            outcomes => return outcomes,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn blocked(sentence: &str) -> (Class, String) {
    (Class::Blocked, sentence.to_owned())
}

async fn assert_recovers(broker: &Publisher) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while publish(broker, &[publication_to("orders", 1, "k")]).await != [None] {
        assert!(Instant::now() < deadline, "it was fixed and does not recover");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One server for all checks, because each takes seconds to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_explained_and_publishing_recovers_once_it_is_fixed() {
    let guarded = TlsServer::start().await;
    a_trusted_certificate_is_accepted(&guarded).await;
    client_certificates_are_classified(&guarded).await;
    logins_are_classified(&guarded).await;
    virtual_hosts_are_classified(&guarded).await;
    permissions_are_classified(&guarded).await;
    a_wrong_server_name_is_noticed(&guarded).await;
    another_protocol_is_noticed(&guarded).await;
    server_certificates_are_classified(&guarded).await;
}

async fn a_trusted_certificate_is_accepted(guarded: &TlsServer) {
    assert_eq!(connect_outcome(guarded.config()).await, None, "with user and password");
    let mut config = guarded.config();
    config.tls.sasl_external = true;
    config.password = Some("ignored".to_owned());
    assert_eq!(connect_outcome(config).await, None, "the certificate instead of user and password");
}

async fn client_certificates_are_classified(guarded: &TlsServer) {
    let with = |identity| {
        let mut config = guarded.config();
        config.tls.identity = identity;
        config
    };
    let of = |fault| Some(identity(&guarded.certs.pair(Holder::Client, fault)));
    assert_eq!(outcome_after_resets(with(None)).await, Some(blocked("RabbitMQ requires a client certificate")));
    let refused = "RabbitMQ refuses the client certificate: ";
    let expired = blocked(&format!("{refused}it is expired"));
    assert_eq!(outcome_after_resets(with(of(Fault::Expired))).await, Some(expired));
    let foreign = blocked(&format!("{refused}its issuer is not trusted"));
    assert_eq!(outcome_after_resets(with(of(Fault::Foreign))).await, Some(foreign));
}

async fn logins_are_classified(guarded: &TlsServer) {
    let config = Config { password: Some("wrong".to_owned()), ..guarded.config() };
    let broker = open(config).await;
    let refused = blocked("RabbitMQ refuses the login of `guest`: wrong user or password");
    assert_eq!(outcome_of(&broker).await, Some(refused));
    guarded.ctl(&["change_password", "guest", "wrong"]).await;
    assert_recovers(&broker).await;
    guarded.ctl(&["change_password", "guest", "guest"]).await;
    let config = Config { user: Some("unknown".to_owned()), ..guarded.config() };
    assert_eq!(
        connect_outcome(config).await,
        Some(blocked("RabbitMQ refuses the login of `unknown`: wrong user or password"))
    );
}

async fn virtual_hosts_are_classified(guarded: &TlsServer) {
    let config = Config { urls: vec![format!("{}/elsewhere", guarded.server.amqps_url())], ..guarded.config() };
    let broker = open(config.clone()).await;
    let (class, sentence) = outcome_of(&broker).await.expect("a refusal");
    assert_eq!(class, Class::Blocked);
    assert!(sentence.starts_with("RabbitMQ refuses the virtual host `elsewhere`: "), "{sentence}");
    assert!(sentence.contains("not found"), "{sentence}");
    guarded.ctl(&["add_vhost", "elsewhere"]).await;
    let (class, sentence) = connect_outcome(config).await.expect("a refusal");
    assert_eq!(class, Class::Blocked);
    assert!(sentence.contains("refused for user 'guest'"), "{sentence}");
    guarded.ctl(&["set_permissions", "-p", "elsewhere", "guest", ".*", ".*", ".*"]).await;
    AmqpClient::connect(&format!("{}/elsewhere", guarded.server.amqp_url())).await.quorum_queue("orders", &[]).await;
    assert_recovers(&broker).await;
}

async fn permissions_are_classified(guarded: &TlsServer) {
    guarded.ctl(&["add_user", "reader", "secret"]).await;
    guarded.ctl(&["set_permissions", "reader", "", "^amq\\.fanout$", ".*"]).await;
    let (user, password) = (Some("reader".to_owned()), Some("secret".to_owned()));
    let broker = open(Config { user, password, ..guarded.config() }).await;
    let (class, sentence) = outcome_of(&broker).await.expect("a refusal");
    assert_eq!(class, Class::Blocked);
    assert!(sentence.starts_with("RabbitMQ denies access: ACCESS_REFUSED"), "{sentence}");
    // No queue is bound where the user may write. The different error shows that the other route works.
    let outcomes =
        outcomes_of(&broker, &[publication_to("orders", 1, "k"), publication_to("amq.fanout/", 2, "l")]).await;
    let sentences: Vec<&str> =
        outcomes.iter().map(|outcomes| outcomes.as_ref().map_or("", |(_, reason)| reason)).collect();
    assert!(sentences[0].starts_with("RabbitMQ denies access: ACCESS_REFUSED"), "{sentences:?}");
    assert_eq!(sentences[1], "no queue is bound to exchange `amq.fanout` for the routing key ``");
    guarded.ctl(&["set_permissions", "reader", "", ".*", ".*"]).await;
    assert_recovers(&broker).await;
    topics_are_classified(guarded, &broker).await;
}

/// Permissions by routing key: a refused message does not affect others of its exchange.
async fn topics_are_classified(guarded: &TlsServer, broker: &Publisher) {
    let client = AmqpClient::connect(&guarded.server.amqp_url()).await;
    let bound = client.channel.queue_bind(
        "orders".into(),
        "amq.topic".into(),
        "#".into(),
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    bound.await.expect("a binding");
    guarded.ctl(&["set_topic_permissions", "reader", "amq.topic", "^open", ".*"]).await;
    for number in 0..20 {
        let [secret, open] = [
            publication_to("amq.topic/secret", 100 + number, "k"),
            publication_to("amq.topic/open", 200 + number, "l"),
        ];
        let outcomes = outcomes_of(broker, &[secret, open.clone()]).await;
        let (class, reason) = outcomes[0].as_ref().expect("a refusal");
        assert!(*class == Class::Blocked && reason.contains("access to topic 'secret'"), "{outcomes:?}");
        // It may be lost with the channel, and is published again.
        assert!(outcomes[1].as_ref().is_none_or(|(class, _)| *class == Class::Unknown), "{outcomes:?}");
        assert_eq!(outcomes_of(broker, &[open]).await, [None]);
    }
    guarded.ctl(&["clear_topic_permissions", "reader"]).await;
}

async fn a_wrong_server_name_is_noticed(guarded: &TlsServer) {
    // Another loopback address, which is not in the certificate.
    let listener = TcpListener::bind("127.0.0.2:0").await.expect("loopback has a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    let server = guarded.server.amqps_url().rsplit_once('@').expect("a user").1.to_owned();
    let mut carrying = JoinSet::new();
    carrying.spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(&server).await.expect("the server is reachable");
            // Ends when TLS fails, which is what the test checks.
            tokio::io::copy_bidirectional(&mut client, &mut server).await.ok();
        }
    });
    let config = Config { urls: vec![format!("amqps://guest:guest@{address}")], ..guarded.config() };
    assert_eq!(connect_outcome(config).await, Some(blocked("the certificate of RabbitMQ is for another name")));
}

async fn another_protocol_is_noticed(guarded: &TlsServer) {
    let plain = guarded.server.amqp_url().replace("amqp://", "amqps://");
    let config = Config { urls: vec![plain], ..guarded.config() };
    assert_eq!(
        connect_outcome(config).await,
        Some(blocked("the handshake with RabbitMQ failed: the port does not use TLS"))
    );
}

/// Must be last, because it leaves the server with a certificate that clients refuse.
async fn server_certificates_are_classified(guarded: &TlsServer) {
    let mut config = guarded.config();
    config.tls.ca = Some(std::fs::read_to_string(guarded.certs.foreign_ca()).expect("a file"));
    let foreign = blocked("the certificate of RabbitMQ has an issuer that is not trusted");
    assert_eq!(connect_outcome(config).await, Some(foreign.clone()));
    let mut config = guarded.config();
    config.tls.ca = None;
    assert_eq!(connect_outcome(config).await, Some(foreign.clone()), "a private authority is not a public one");

    guarded.install_certificate(&guarded.certs.pair(Holder::Server, Fault::Expired)).await;
    let broker = open(guarded.config()).await;
    assert_eq!(outcome_of(&broker).await, Some(blocked("the certificate of RabbitMQ is expired")));
    guarded.install_certificate(&guarded.certs.server()).await;
    assert_recovers(&broker).await;
    guarded.install_certificate(&guarded.certs.pair(Holder::Server, Fault::Foreign)).await;
    assert_eq!(connect_outcome(guarded.config()).await, Some(foreign));
}

#[tokio::test]
async fn unreadable_certificates_are_reported_before_anything_is_sent() {
    let certs = Certs::new();
    let broken = |tls| Config { tls, ..Config::new("amqps://localhost:1") };
    let key = Identity { cert_chain: certs.client().cert_pem(), key: "no key".to_owned() };
    for tls in
        [Tls { ca: Some("no certificate".to_owned()), ..Tls::default() }, Tls { identity: Some(key), ..Tls::default() }]
    {
        let opened = Publisher::open(broken(tls)).await;
        assert!(matches!(opened, Err(Error::Config(_))), "{opened:?}");
    }
}
