//! From PostgreSQL to a real NATS JetStream.

use std::net::SocketAddr;

use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Server, unique};
use relevo_testkit::proxy::CutProxy;

use crate::daemon::{Daemon, until};
use crate::far::{assert_in_order, jetstream, stored_in};
use crate::world::World;

/// The section of a broker at this address, and a stream that stores everything under one word.
pub(crate) fn at(address: &str, stream: &str, more: &str) -> String {
    format!(
        "kind = \"nats\"\nurls = [\"nats://{address}\"]\nstream = \"{stream}\"\n{more}\n[BROKER.streams.one]\n\
         name = \"{stream}\"\nsubjects = [\"{stream}.>\"]\n"
    )
}

/// Everything goes to subjects under one word.
pub(crate) fn route(word: &str) -> String {
    format!(
        "[[outboxes.shop.destinations.main.routes]]\naddress = \"{word}.{{topic}}\"\nheaders = {{ x-event-id = \"{{id}}\" }}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_committed_arrives_in_streams_that_were_made_at_the_start() {
    for version in NatsVersion::ALL {
        let (world, server, stream) = (World::new().await, Server::shared(version), unique("shop"));
        let address = server.url().trim_start_matches("nats://").to_owned();
        let broker = at(&address, &stream, "topology = \"apply\"");
        let file = world.carried_to(&[("main", &broker)], &route(&stream));
        world.emit_numbers("orders", 1..=100).await;
        let mut daemon = Daemon::start(&file, &[]);
        World::taken(&daemon, "main", 100);
        world.emit_numbers("orders.eu", 101..=200).await;
        World::taken(&daemon, "main", 200);
        daemon.ready();
        daemon.stop();
        let kept = stored_in(server.url(), &stream).await;
        assert_in_order(&kept, 1..=200);
        for message in &kept {
            assert_eq!(message.headers["x-event-id"], message.headers["ce-id"], "{message:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_in_memory_ends_it_unless_it_is_accepted_by_name() {
    let (world, server, stream) = (World::new().await, Server::shared(NatsVersion::V2_15), unique("shop"));
    let storage = async_nats::jetstream::stream::StorageType::Memory;
    let config = async_nats::jetstream::stream::Config {
        name: stream.clone(),
        subjects: vec![format!("{stream}.>")],
        storage,
        discard: async_nats::jetstream::stream::DiscardPolicy::New,
        ..Default::default()
    };
    jetstream(server.url()).await.create_stream(config).await.expect("a new stream");
    let broker = |more: &str| format!("kind = \"nats\"\nurls = [\"{}\"]\n{more}\n", server.url());
    let mut daemon = Daemon::start(&world.carried_to(&[("main", &broker(""))], &route(&stream)), &[]);
    assert_eq!(daemon.end(), Some(2), "{}", daemon.log());
    let line = daemon.line("a setting of the broker contradicts a promise");
    assert_eq!(line["subject"], "stream-storage");
    until("it says what to write", || daemon.log().contains("with `accept = [\"stream-storage\"]`"));
    let accepting = broker("accept = [\"stream-storage\"]");
    let mut daemon = Daemon::start(&world.carried_to(&[("main", &accepting)], &route(&stream)), &[]);
    world.emit_numbers("orders", 1..=10).await;
    World::taken(&daemon, "main", 10);
    daemon.stop();
    assert_in_order(&stored_in(server.url(), &stream).await, 1..=10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_at_the_start_is_checked_when_it_comes() {
    let (world, server, stream) = (World::new().await, Server::shared(NatsVersion::V2_15), unique("shop"));
    let upstream: SocketAddr = server.url().trim_start_matches("nats://").parse().expect("an address");
    let proxy = CutProxy::start(upstream).await;
    proxy.block().await;
    let broker = at(&proxy.addr().to_string(), &stream, "topology = \"apply\"");
    world.emit_numbers("orders", 1..=10).await;
    let mut daemon = Daemon::start(&world.carried_to(&[("main", &broker)], &route(&stream)), &[]);
    daemon.line("the broker is away, will try again");
    let (status, body) = daemon.get("/readyz");
    assert!(status == 503 && body.contains("waiting for the broker: "), "{status} {body}");
    assert_eq!((daemon.get("/livez").0, daemon.metric("broker_up{")), (200, Some(0)));
    until("it says for how long", || daemon.metric("broker_away_seconds{") >= Some(1));
    assert!(jetstream(server.url()).await.get_stream(&stream).await.is_err(), "nothing was made yet");
    proxy.unblock();
    World::taken(&daemon, "main", 10);
    daemon.ready();
    daemon.stop();
    assert_in_order(&stored_in(server.url(), &stream).await, 1..=10);
}
