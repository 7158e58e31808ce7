//! Authentication and permissions: certificates, passwords, virtual hosts and permissions, on a server that requires
//! them.

use std::time::{Duration, Instant};

use lapin::options::QueueBindOptions;
use lapin::types::FieldTable;
use relevo_broker_rabbitmq::{Config, Error, Identity, RabbitBroker, Tls};
use relevo_conformance::broker::harness::{publish, to};
use relevo_core::broker::Reports;
use relevo_core::{Broker as _, Class, Publication};
use relevo_testkit::ClientCertificate;
use relevo_testkit::certs::{CLIENT_NAME, Certs, Fault, Holder, Pair};
use relevo_testkit::rabbitmq::{Private, Settings};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::harness::Side;

struct Guarded {
    server: Private,
    certs: Certs,
}

impl Guarded {
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
        Side::of(&server.amqp_url()).await.quorum_queue("orders", &[]).await;
        Self { server, certs }
    }

    /// A valid configuration with TLS.
    fn config(&self) -> Config {
        let ca = std::fs::read_to_string(self.certs.ca()).expect("a file");
        let tls = Tls { ca: Some(ca), identity: Some(identity(&self.certs.client())), external: false };
        Config { tls, ..Config::new(self.server.amqps_url()) }
    }

    async fn ctl(&self, arguments: &[&str]) {
        self.server.ctl(arguments).await;
    }

    /// Replaces the certificate of the running server.
    async fn certificate(&self, pair: &Pair) {
        for (name, text) in [("cert.pem", pair.cert_pem()), ("key.pem", pair.key_pem())] {
            std::fs::write(self.server.directory().join(name), text).expect("the directory can be written");
        }
        self.ctl(&["eval", "ssl:clear_pem_cache()."]).await;
    }
}

fn identity(pair: &Pair) -> Identity {
    Identity { cert_chain: pair.cert_pem(), key: pair.key_pem() }
}

async fn open(config: Config) -> RabbitBroker {
    RabbitBroker::open(config).await.expect("a configuration that works")
}

/// Publishes a message. Returns its failure class and error text.
async fn told_by(broker: &RabbitBroker) -> Option<(Class, String)> {
    let reports = Reports::default();
    broker.publish(&[to("orders", 1, "k")], &reports.confirms(1)).await;
    let (_, _, outcome) = reports.take().pop().expect("an outcome");
    outcome.err().map(|failure| (failure.class(), failure.describe()))
}

/// Publishes several messages. Returns their failures, in order.
async fn told_all(broker: &RabbitBroker, batch: &[Publication]) -> Vec<Option<(Class, String)>> {
    let reports = Reports::default();
    broker.publish(batch, &reports.confirms(1)).await;
    let mut told = reports.take();
    told.sort_by_key(|(_, index, _)| *index);
    let told = told.into_iter();
    told.map(|(_, _, outcome)| outcome.err().map(|failure| (failure.class(), failure.describe()))).collect()
}

async fn told(config: Config) -> Option<(Class, String)> {
    told_by(&open(config).await).await
}

/// The final error for a client whose certificate the server refuses. The server checks it after the client has
/// finished its handshake, and then closes the connection. If the reset arrives before the alert, the attempt reports
/// only the reset, and another attempt follows.
async fn judged(config: Config) -> Option<(Class, String)> {
    let broker = open(config).await;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match told_by(&broker).await {
            Some((Class::Outage, why)) => assert!(Instant::now() < deadline, "nothing but resets: {why}"),
            told => return told,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn blocked(sentence: &str) -> (Class, String) {
    (Class::Blocked, sentence.to_owned())
}

async fn heals(broker: &RabbitBroker) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while publish(broker, &[to("orders", 1, "k")]).await != [None] {
        assert!(Instant::now() < deadline, "it was mended and does not pass");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One server for all checks, because each takes seconds to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_refused_is_told_why_and_passes_when_it_is_mended() {
    let guarded = Guarded::start().await;
    a_certificate_that_is_trusted_lets_in(&guarded).await;
    client_certificates_are_judged(&guarded).await;
    logins_are_judged(&guarded).await;
    virtual_hosts_are_judged(&guarded).await;
    permissions_are_judged(&guarded).await;
    a_name_that_is_not_the_servers_is_noticed(&guarded).await;
    another_protocol_is_noticed(&guarded).await;
    server_certificates_are_judged(&guarded).await;
}

async fn a_certificate_that_is_trusted_lets_in(guarded: &Guarded) {
    assert_eq!(told(guarded.config()).await, None, "with user and password");
    let mut config = guarded.config();
    config.tls.external = true;
    config.password = Some("not looked at".to_owned());
    assert_eq!(told(config).await, None, "the certificate instead of user and password");
}

async fn client_certificates_are_judged(guarded: &Guarded) {
    let with = |identity| {
        let mut config = guarded.config();
        config.tls.identity = identity;
        config
    };
    let of = |fault| Some(identity(&guarded.certs.pair(Holder::Client, fault)));
    assert_eq!(judged(with(None)).await, Some(blocked("RabbitMQ wants a client certificate")));
    let refused = "RabbitMQ refuses the client certificate: ";
    let expired = blocked(&format!("{refused}it is expired"));
    assert_eq!(judged(with(of(Fault::Expired))).await, Some(expired));
    let foreign = blocked(&format!("{refused}it is from an authority that it does not trust"));
    assert_eq!(judged(with(of(Fault::Foreign))).await, Some(foreign));
}

async fn logins_are_judged(guarded: &Guarded) {
    let config = Config { password: Some("wrong".to_owned()), ..guarded.config() };
    let broker = open(config).await;
    let refused = blocked("RabbitMQ refuses the login of `guest`: wrong user or password");
    assert_eq!(told_by(&broker).await, Some(refused));
    guarded.ctl(&["change_password", "guest", "wrong"]).await;
    heals(&broker).await;
    guarded.ctl(&["change_password", "guest", "guest"]).await;
    let config = Config { user: Some("nobody".to_owned()), ..guarded.config() };
    assert_eq!(told(config).await, Some(blocked("RabbitMQ refuses the login of `nobody`: wrong user or password")));
}

async fn virtual_hosts_are_judged(guarded: &Guarded) {
    let config = Config { urls: vec![format!("{}/elsewhere", guarded.server.amqps_url())], ..guarded.config() };
    let broker = open(config.clone()).await;
    let (class, sentence) = told_by(&broker).await.expect("a refusal");
    assert_eq!(class, Class::Blocked);
    assert!(sentence.starts_with("RabbitMQ refuses the virtual host `elsewhere`: "), "{sentence}");
    assert!(sentence.contains("not found"), "{sentence}");
    guarded.ctl(&["add_vhost", "elsewhere"]).await;
    let (class, sentence) = told(config).await.expect("a refusal");
    assert_eq!(class, Class::Blocked);
    assert!(sentence.contains("refused for user 'guest'"), "{sentence}");
    guarded.ctl(&["set_permissions", "-p", "elsewhere", "guest", ".*", ".*", ".*"]).await;
    Side::of(&format!("{}/elsewhere", guarded.server.amqp_url())).await.quorum_queue("orders", &[]).await;
    heals(&broker).await;
}

async fn permissions_are_judged(guarded: &Guarded) {
    guarded.ctl(&["add_user", "reader", "secret"]).await;
    guarded.ctl(&["set_permissions", "reader", "", "^amq\\.fanout$", ".*"]).await;
    let (user, password) = (Some("reader".to_owned()), Some("secret".to_owned()));
    let broker = open(Config { user, password, ..guarded.config() }).await;
    let (class, sentence) = told_by(&broker).await.expect("a refusal");
    assert_eq!(class, Class::Blocked);
    assert!(sentence.starts_with("RabbitMQ does not permit it: ACCESS_REFUSED"), "{sentence}");
    // No queue is bound where the user may write. The different error shows that the other route works.
    let told = told_all(&broker, &[to("orders", 1, "k"), to("amq.fanout/", 2, "l")]).await;
    let sentences: Vec<&str> = told.iter().map(|told| told.as_ref().map_or("", |(_, why)| why)).collect();
    assert!(sentences[0].starts_with("RabbitMQ does not permit it: ACCESS_REFUSED"), "{sentences:?}");
    assert_eq!(sentences[1], "nothing is bound to the exchange `amq.fanout` for the routing key ``");
    guarded.ctl(&["set_permissions", "reader", "", ".*", ".*"]).await;
    heals(&broker).await;
    topics_are_judged(guarded, &broker).await;
}

/// Permissions by routing key: a refused message does not affect others of its exchange.
async fn topics_are_judged(guarded: &Guarded, broker: &RabbitBroker) {
    let side = Side::of(&guarded.server.amqp_url()).await;
    let bound = side.channel.queue_bind(
        "orders".into(),
        "amq.topic".into(),
        "#".into(),
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    bound.await.expect("a binding");
    guarded.ctl(&["set_topic_permissions", "reader", "amq.topic", "^open", ".*"]).await;
    for number in 0..20 {
        let [secret, open] = [to("amq.topic/secret", 100 + number, "k"), to("amq.topic/open", 200 + number, "l")];
        let told = told_all(broker, &[secret, open.clone()]).await;
        let (class, why) = told[0].as_ref().expect("a refusal");
        assert!(*class == Class::Blocked && why.contains("access to topic 'secret'"), "{told:?}");
        // It may be lost with the channel, and is published again.
        assert!(told[1].as_ref().is_none_or(|(class, _)| *class == Class::Unknown), "{told:?}");
        assert_eq!(told_all(broker, &[open]).await, [None]);
    }
    guarded.ctl(&["clear_topic_permissions", "reader"]).await;
}

async fn a_name_that_is_not_the_servers_is_noticed(guarded: &Guarded) {
    // Another loopback address, which is not in the certificate.
    let listener = TcpListener::bind("127.0.0.2:0").await.expect("loopback has a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    let server = guarded.server.amqps_url().rsplit_once('@').expect("a user").1.to_owned();
    let mut carrying = JoinSet::new();
    carrying.spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(&server).await.expect("the server is there");
            // Ends when TLS fails, which is what the test checks.
            tokio::io::copy_bidirectional(&mut client, &mut server).await.ok();
        }
    });
    let config = Config { urls: vec![format!("amqps://guest:guest@{address}")], ..guarded.config() };
    assert_eq!(told(config).await, Some(blocked("the certificate of RabbitMQ is for another name")));
}

async fn another_protocol_is_noticed(guarded: &Guarded) {
    let plain = guarded.server.amqp_url().replace("amqp://", "amqps://");
    let config = Config { urls: vec![plain], ..guarded.config() };
    assert_eq!(told(config).await, Some(blocked("RabbitMQ cannot be talked to: it does not speak TLS there")));
}

/// Must be last, because it leaves the server with a certificate that clients refuse.
async fn server_certificates_are_judged(guarded: &Guarded) {
    let mut config = guarded.config();
    config.tls.ca = Some(std::fs::read_to_string(guarded.certs.foreign_ca()).expect("a file"));
    let foreign = blocked("the certificate of RabbitMQ is from an authority that is not trusted");
    assert_eq!(told(config).await, Some(foreign.clone()));
    let mut config = guarded.config();
    config.tls.ca = None;
    assert_eq!(told(config).await, Some(foreign.clone()), "a private authority is not a public one");

    guarded.certificate(&guarded.certs.pair(Holder::Server, Fault::Expired)).await;
    let broker = open(guarded.config()).await;
    assert_eq!(told_by(&broker).await, Some(blocked("the certificate of RabbitMQ is expired")));
    guarded.certificate(&guarded.certs.server()).await;
    heals(&broker).await;
    guarded.certificate(&guarded.certs.pair(Holder::Server, Fault::Foreign)).await;
    assert_eq!(told(guarded.config()).await, Some(foreign));
}

#[tokio::test]
async fn certificates_that_cannot_be_read_are_told_before_anything_is_sent() {
    let certs = Certs::new();
    let broken = |tls| Config { tls, ..Config::new("amqps://localhost:1") };
    let key = Identity { cert_chain: certs.client().cert_pem(), key: "no key".to_owned() };
    for tls in
        [Tls { ca: Some("no certificate".to_owned()), ..Tls::default() }, Tls { identity: Some(key), ..Tls::default() }]
    {
        let opened = RabbitBroker::open(broken(tls)).await;
        assert!(matches!(opened, Err(Error::Config(_))), "{opened:?}");
    }
}
