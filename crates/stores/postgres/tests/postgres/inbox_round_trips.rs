//! Counts the database round trips of each inbox call.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use relevo_core::inbox::InboxRetention;
use relevo_core::inbox::retries::InboxRetries as _;
use relevo_store_postgres::inbox::{Config, Inbox};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::relay_support::TestDatabase;

/// Counts how often the client sends after the server has sent.
#[derive(Default)]
struct Turns {
    count: AtomicUsize,
    server_spoke: AtomicBool,
}

async fn forward(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, seen: impl Fn()) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        seen();
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// Starts a proxy in front of the database, for one connection at a time.
async fn counting(upstream: SocketAddr) -> (SocketAddr, Arc<Turns>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("an address");
    let turns = Arc::new(Turns::default());
    let counted = Arc::clone(&turns);
    let mut proxy = JoinSet::new();
    proxy.spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(upstream).await.expect("a database");
            let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
            let client_speaks = || {
                let is_turn = counted.server_spoke.swap(false, Ordering::SeqCst);
                counted.count.fetch_add(usize::from(is_turn), Ordering::SeqCst);
            };
            let server_speaks = || counted.server_spoke.store(true, Ordering::SeqCst);
            tokio::join!(
                forward(from_client, to_server, client_speaks),
                forward(from_server, to_client, server_speaks)
            );
        }
    });
    (addr, turns, proxy)
}

#[tokio::test]
async fn a_call_is_one_round_trip() {
    const CALLS: usize = 5;
    let world = TestDatabase::new().await;
    let options = world.database.options();
    let upstream = format!("127.0.0.1:{}", options.get_port()).parse().expect("a loopback address");
    let (addr, turns, _proxy) = counting(upstream).await;
    let options = options.host(&addr.ip().to_string()).port(addr.port());
    let config = Config { call_connections_max: 1, ..Config::new(options) };
    let inbox = Inbox::open(&config, "billing", InboxRetention::default()).await.expect("a migrated database");
    inbox.claim_due(1, 1, Duration::from_secs(1)).await.expect("a database");
    let before = turns.count.load(Ordering::SeqCst);
    for _ in 0..CALLS {
        inbox.claim_due(1, 1, Duration::from_secs(1)).await.expect("a database");
    }
    assert_eq!(turns.count.load(Ordering::SeqCst) - before, CALLS);
}
