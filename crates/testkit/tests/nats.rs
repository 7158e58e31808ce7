//! Tests of the testkit's NATS servers.

use std::time::Duration;

use async_nats::jetstream::{self, stream};
use async_nats::{ConnectOptions, ServerInfo};
use relevo_testkit::certs::{Certs, Fault, Holder};
use relevo_testkit::nats::{Cluster, Private, Server, Settings, unique};
use relevo_testkit::{ClientCertificate, NatsVersion};

async fn info(url: &str) -> ServerInfo {
    async_nats::connect(url).await.expect("the server accepts clients").server_info()
}

async fn jetstream(url: impl async_nats::ToServerAddrs) -> jetstream::Context {
    jetstream::new(async_nats::connect(url).await.expect("the server accepts clients"))
}

async fn make(context: &jetstream::Context, name: &str, replicas: usize) {
    let config = stream::Config {
        name: name.to_owned(),
        subjects: vec![format!("{name}.>")],
        num_replicas: replicas,
        ..stream::Config::default()
    };
    context.create_stream(config).await.expect("the stream is new");
}

async fn publish(context: &jetstream::Context, name: &str) {
    let sent = context.publish(format!("{name}.a"), "x".into()).await.expect("the message is sent");
    sent.await.expect("the server stores it");
}

async fn stored(context: &jetstream::Context, name: &str) -> u64 {
    context.get_stream(name).await.expect("the stream exists").cached_info().state.messages
}

#[tokio::test]
async fn every_shared_server_has_the_requested_version() {
    for version in NatsVersion::ALL {
        let server = Server::shared(version);
        let server_info = info(server.url()).await;
        assert!(
            server_info.version.starts_with(&format!("{}.", version.number())),
            "{} is no {version:?}",
            server_info.version
        );
        assert!(server_info.jetstream);
    }
}

#[tokio::test]
async fn a_killed_or_stopped_server_keeps_its_messages() {
    for version in NatsVersion::ALL {
        let server = Private::start(version, Settings::new()).await;
        let name = unique("kept");
        let context = jetstream(server.url()).await;
        make(&context, &name, 1).await;
        publish(&context, &name).await;

        server.kill9().await;
        async_nats::connect(server.url()).await.unwrap_err();
        server.start_again().await;
        assert_eq!(stored(&jetstream(server.url()).await, &name).await, 1);

        server.stop().await;
        async_nats::connect(server.url()).await.unwrap_err();
        server.start_again().await;
        assert_eq!(stored(&jetstream(server.url()).await, &name).await, 1);
    }
}

#[tokio::test]
async fn a_paused_server_responds_when_it_is_resumed() {
    let server = Private::start(NatsVersion::V2_15, Settings::new()).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    client.flush().await.unwrap();

    server.pause().await;
    let mut messages = client.subscribe("a").await.unwrap();
    client.publish("a", "x".into()).await.unwrap();
    let response = async { futures_util::StreamExt::next(&mut messages).await };
    // No event can show that nothing arrives. A slow machine can make this test pass wrongly, but not fail.
    tokio::time::timeout(Duration::from_millis(200), response).await.unwrap_err();
    server.resume().await;
    let message = futures_util::StreamExt::next(&mut messages).await;
    assert!(message.is_some());
}

#[tokio::test]
async fn settings_reach_the_server() {
    let settings = Settings::new().config("max_payload: 1000").jetstream("sync_interval: always").user("me", "secret");
    let server = Private::start(NatsVersion::V2_15, settings).await;
    async_nats::connect(server.url()).await.unwrap_err();
    let options = ConnectOptions::with_user_and_password("me".to_owned(), "secret".to_owned());
    let client = options.connect(server.url()).await.unwrap();
    assert_eq!(client.server_info().max_payload, 1000);

    let server = Private::start(NatsVersion::V2_9, Settings::new().token("word")).await;
    async_nats::connect(server.url()).await.unwrap_err();
    ConnectOptions::with_token("word".to_owned()).connect(server.url()).await.unwrap();
}

#[tokio::test]
async fn a_server_accepts_its_configured_key() {
    // The key pair from the NATS documentation.
    let (seed, public) = (
        "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY",
        "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4",
    );
    let server = Private::start(NatsVersion::V2_15, Settings::new().nkey(public)).await;
    async_nats::connect(server.url()).await.unwrap_err();
    ConnectOptions::with_nkey(seed.to_owned()).connect(server.url()).await.unwrap();
}

#[tokio::test]
async fn a_server_with_tls_rejects_clients_without_a_valid_certificate() {
    let certs = Certs::new();
    let settings = Settings::new().tls(&certs, ClientCertificate::Required);
    let server = Private::start(NatsVersion::V2_15, settings).await;
    let options = || ConnectOptions::new().add_root_certificates(certs.ca());

    options().connect(server.tls_url()).await.unwrap_err();
    for fault in [Fault::Expired, Fault::Foreign] {
        let bad = certs.pair(Holder::Client, fault);
        options().add_client_certificate(bad.cert, bad.key).connect(server.tls_url()).await.unwrap_err();
    }
    let good = certs.client();
    options().add_client_certificate(good.cert, good.key).connect(server.tls_url()).await.unwrap();
}

#[tokio::test]
async fn a_client_rejects_a_server_with_an_invalid_certificate() {
    let certs = Certs::new();
    for (fault, welcome) in [(Fault::None, true), (Fault::Expired, false), (Fault::Foreign, false)] {
        let settings = Settings::new().faulty_tls(&certs, fault, ClientCertificate::NotAsked);
        let server = Private::start(NatsVersion::V2_9, settings).await;
        let connected = ConnectOptions::new().add_root_certificates(certs.ca()).connect(server.tls_url()).await;
        assert_eq!(connected.is_ok(), welcome, "{fault:?}");
    }
}

#[tokio::test]
async fn a_cluster_of_three_survives_the_loss_of_any_node() {
    let cluster = Cluster::of_three().await;
    let name = unique("replicated");
    let context = jetstream(cluster.nodes()[0].url()).await;
    make(&context, &name, 3).await;
    publish(&context, &name).await;

    for node in cluster.nodes() {
        node.kill9().await;
        let others: Vec<_> = cluster.urls().into_iter().filter(|url| *url != node.url()).collect();
        let mut context = jetstream(others).await;
        context.set_timeout(Duration::from_millis(500));
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        // The other nodes may have to elect a leader first.
        while context.get_stream(&name).await.is_err() {
            assert!(tokio::time::Instant::now() < deadline, "the stream is unavailable");
        }
        node.start_again().await;
        cluster.healthy().await;
    }
    assert_eq!(stored(&jetstream(cluster.nodes()[0].url()).await, &name).await, 1);
}

#[tokio::test]
async fn a_dropped_server_leaves_nothing() {
    let server = Private::start(NatsVersion::V2_15, Settings::new()).await;
    let (directory, url) = (server.directory(), server.url());
    assert!(directory.exists());
    drop(server);
    assert!(!directory.exists());
    async_nats::connect(url).await.unwrap_err();
}
