//! Tests of the proxy, against an echo server.

use std::time::{Duration, Instant};

use relevo_testkit::proxy::{CutProxy, Direction};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

async fn echo(tasks: &mut JoinSet<()>) -> CutProxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let addr = listener.local_addr().expect("it is bound");
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            connections.spawn(async move {
                let (mut reader, mut writer) = client.split();
                tokio::io::copy(&mut reader, &mut writer).await.ok();
            });
        }
    });
    CutProxy::start(addr).await
}

async fn responds(client: &mut TcpStream) -> bool {
    let mut response = [0; 4];
    client.write_all(b"ping").await.is_ok() && client.read_exact(&mut response).await.is_ok() && response == *b"ping"
}

#[tokio::test]
async fn a_cut_closes_connections_and_accepts_new_ones() {
    let mut tasks = JoinSet::new();
    let proxy = echo(&mut tasks).await;
    let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(responds(&mut old).await);

    proxy.cut().await;
    assert!(!responds(&mut old).await);
    assert!(responds(&mut TcpStream::connect(proxy.addr()).await.unwrap()).await);
}

#[tokio::test]
async fn a_blocked_proxy_accepts_no_connection_until_unblocked() {
    let mut tasks = JoinSet::new();
    let proxy = echo(&mut tasks).await;
    let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(responds(&mut old).await);

    proxy.block().await;
    assert!(!responds(&mut old).await);
    assert!(!responds(&mut TcpStream::connect(proxy.addr()).await.unwrap()).await);
    proxy.unblock();
    assert!(responds(&mut TcpStream::connect(proxy.addr()).await.unwrap()).await);
}

#[tokio::test]
async fn a_frozen_connection_continues_when_thawed() {
    let mut tasks = JoinSet::new();
    let proxy = echo(&mut tasks).await;
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(responds(&mut client).await);

    proxy.freeze();
    // No event can show that nothing arrives. A slow machine can make this test pass wrongly, but not fail.
    tokio::time::timeout(Duration::from_millis(100), responds(&mut client)).await.unwrap_err();
    proxy.thaw();
    let mut late = [0; 4];
    client.read_exact(&mut late).await.unwrap();
    assert_eq!(late, *b"ping");
}

async fn connect(proxy: &CutProxy) -> TcpStream {
    TcpStream::connect(proxy.addr()).await.expect("the proxy accepts")
}

/// All bytes that arrive until the connection ends, cleanly or not.
async fn rest(client: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut chunk = [0; 1024];
    while let Ok(length @ 1..) = client.read(&mut chunk).await {
        all.extend_from_slice(&chunk[..length]);
    }
    all
}

/// A listener and a proxy in front of it. The test accepts and holds the only connection.
async fn server() -> (TcpListener, CutProxy) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let proxy = CutProxy::start(listener.local_addr().expect("it is bound")).await;
    (listener, proxy)
}

#[tokio::test]
async fn a_response_can_be_lost_after_the_server_received_the_request() {
    let (listener, proxy) = server().await;
    let mut client = connect(&proxy).await;
    let (mut server, _) = listener.accept().await.unwrap();

    proxy.stall(Direction::ToClient);
    client.write_all(b"question").await.unwrap();
    let mut received = [0; 8];
    server.read_exact(&mut received).await.unwrap();
    assert_eq!(received, *b"question");
    server.write_all(b"answer").await.unwrap();
    proxy.until_held(Direction::ToClient).await;
    proxy.cut().await;
    assert_eq!(rest(&mut client).await, b"");
}

#[tokio::test]
async fn a_stalled_direction_forwards_held_bytes_when_it_flows() {
    let (listener, proxy) = server().await;
    let mut client = connect(&proxy).await;
    let (mut server, _) = listener.accept().await.unwrap();

    proxy.stall(Direction::ToServer);
    client.write_all(b"held").await.unwrap();
    proxy.until_held(Direction::ToServer).await;
    server.write_all(b"free").await.unwrap();
    let mut text = [0; 4];
    client.read_exact(&mut text).await.unwrap();
    assert_eq!(text, *b"free");

    proxy.flow(Direction::ToServer);
    server.read_exact(&mut text).await.unwrap();
    assert_eq!(text, *b"held");
}

#[tokio::test]
async fn a_delay_applies_to_both_directions_until_it_is_removed() {
    const DELAY: Duration = Duration::from_millis(80);
    let mut tasks = JoinSet::new();
    let proxy = echo(&mut tasks).await;
    let mut client = connect(&proxy).await;

    proxy.delay(DELAY);
    let start = Instant::now();
    assert!(responds(&mut client).await);
    assert!(start.elapsed() >= 2 * DELAY, "{:?}", start.elapsed());

    proxy.delay(Duration::from_hours(1));
    proxy.delay(Duration::ZERO);
    assert!(tokio::time::timeout(Duration::from_secs(30), responds(&mut client)).await.unwrap());
}

#[tokio::test]
async fn a_throttle_limits_the_bytes_per_second() {
    let (listener, proxy) = server().await;
    let mut client = connect(&proxy).await;
    let (mut server, _) = listener.accept().await.unwrap();

    proxy.throttle(10_000);
    let start = Instant::now();
    client.write_all(&[7; 5_000]).await.unwrap();
    let mut received = vec![0; 5_000];
    server.read_exact(&mut received).await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(450), "{:?}", start.elapsed());

    proxy.unthrottle();
    let mut received = vec![0; 5_000_000];
    let sent = async { client.write_all(&vec![7; 5_000_000]).await.unwrap() };
    let both = async { tokio::join!(sent, server.read_exact(&mut received)) };
    // At the old rate this would take minutes.
    tokio::time::timeout(Duration::from_mins(1), both).await.unwrap().1.unwrap();
}

#[tokio::test]
async fn a_connection_can_be_cut_at_a_byte() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let (listener, proxy) = server().await;
        let client = connect(&proxy).await;
        let (server, _) = listener.accept().await.unwrap();
        let (mut sender, mut receiver) = match direction {
            Direction::ToServer => (client, server),
            Direction::ToClient => (server, client),
        };

        proxy.cut_after(direction, 6);
        sender.write_all(b"1234").await.unwrap();
        let mut first = [0; 4];
        receiver.read_exact(&mut first).await.unwrap();
        sender.write_all(b"56789").await.unwrap();
        assert_eq!(rest(&mut receiver).await, b"56");
        assert_eq!(rest(&mut sender).await, b"");

        // The cut happens only once: the next connection works.
        let mut client = connect(&proxy).await;
        let (mut server, _) = listener.accept().await.unwrap();
        client.write_all(b"a longer text").await.unwrap();
        server.write_all(b"a longer text").await.unwrap();
        let (mut at_server, mut at_client) = ([0; 13], [0; 13]);
        server.read_exact(&mut at_server).await.unwrap();
        client.read_exact(&mut at_client).await.unwrap();
        assert_eq!((at_server, at_client), (*b"a longer text", *b"a longer text"));
    }
}
