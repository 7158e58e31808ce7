//! A process whose machine fails without closing its connections.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use relevo_core::MessageId;
use relevo_core::broker_consumer::{Lane, RawMessage};
use relevo_core::inbox::transactions::BeginOutcome;
use relevo_core::inbox::transactions::InboxTransactions as _;
use relevo_core::inbox::{DedupId, Fence, InboxMessage, InboxRetention};
use relevo_store_postgres::inbox::{Config, Inbox};
use socket2::{SockFilter, SockRef};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::relay_support::TestDatabase;

/// The default lease of a relay, and the time after which a consumer without heartbeats loses its lanes.
const LEASE: Duration = Duration::from_secs(10);
/// `BPF_RET | BPF_K`: accepts a fixed number of bytes of each packet.
const TAKE: u16 = 0x06;

/// A proxy that can simulate a lost machine: its kernel drops every packet of the server unread, answers nothing, and
/// sends nothing.
async fn vanishing(upstream: SocketAddr, vanish: watch::Receiver<bool>) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("an address");
    let mut proxy = JoinSet::new();
    proxy.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(upstream).await.expect("a database");
            let mut vanish = vanish.clone();
            connections.spawn(async move {
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut server) => return,
                    _ = vanish.wait_for(|vanished| *vanished) => {}
                }
                SockRef::from(&server).attach_filter(&[SockFilter::new(TAKE, 0, 0, 0)]).expect("Linux has filters");
                // Both stay open, because closing them would notify the server.
                std::future::pending::<()>().await;
            });
        }
    });
    (addr, proxy)
}

#[tokio::test]
async fn the_session_of_a_vanished_process_ends_before_its_lease() {
    let world = TestDatabase::new().await;
    let options = world.database.options();
    let upstream = format!("127.0.0.1:{}", options.get_port()).parse().expect("a loopback address");
    let (vanish, vanished) = watch::channel(false);
    let (addr, _proxy) = vanishing(upstream, vanished).await;
    let options = options.host("127.0.0.1").port(addr.port());
    let inbox =
        Inbox::open(&Config::new(options), "billing", InboxRetention::default()).await.expect("a migrated database");
    let arrival = InboxMessage {
        dedup_id: DedupId {
            id: MessageId::from_uuid(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001)),
            replay: 0,
        },
        queue: "k".into(),
        raw: RawMessage { headers: Vec::new(), payload: Bytes::from_static(b"{}") },
        address: "orders".into(),
        lane: Lane::new("0"),
        offset: Some(1),
        attempts: 0,
    };
    // A transaction that locks the message, and would lock its lane.
    let BeginOutcome::Open(mut tx, _) = inbox.begin(&[arrival], Fence::Live { lane: None }).await.expect("a database")
    else {
        panic!("no other session has it");
    };
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *tx).await.expect("a process");
    vanish.send_replace(true);
    let since = Instant::now();
    let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
    while world.number(&sessions).await > 0 {
        assert!(since.elapsed() < LEASE, "the server still has the session");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
