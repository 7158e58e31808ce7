//! The HTTP server, as a client sees it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relevo_admin::{Check, Error, Limited, Limits, Observe, Part, Report, Server, Token};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Never ready. Its flag controls whether it has started.
#[derive(Default)]
struct Fixed(AtomicBool);

impl Observe for Fixed {
    fn live(&self) -> Report {
        Report::of(Vec::new())
    }

    fn ready(&self) -> Report {
        let seen = "the database cannot be reached".to_owned();
        let (outbox, destination) = ("shop".to_owned(), "main".to_owned());
        let checks = vec![Check::of_relay(&outbox, &destination, false, seen)];
        let seen = "no answer".to_owned();
        Report::of(checks).with(vec![Part { outbox, destination, part: "database", ok: false, needed: true, seen }])
    }

    fn started(&self) -> Report {
        let (outbox, destination, ok) = ("shop".to_owned(), "main".to_owned(), self.0.load(Ordering::Relaxed));
        Report::of(vec![Check::of_relay(&outbox, &destination, ok, "starting".to_owned())])
    }

    fn metrics(&self) -> String {
        "# EOF\n".to_owned()
    }
}

struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    tasks: JoinSet<std::io::Result<()>>,
    observed: Arc<Fixed>,
}

impl Running {
    async fn start(token: Option<&str>) -> Self {
        let server = Server::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
        let (address, stop, mut tasks) = (server.address(), CancellationToken::new(), JoinSet::new());
        let observed = Arc::new(Fixed::default());
        tasks.spawn(server.run(Arc::clone(&observed) as Arc<dyn Observe>, token.map(Token::new), stop.clone()));
        Self { address, stop, tasks, observed }
    }

    /// Returns the status and the body.
    async fn get(&self, path: &str, header: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).await.expect("the server reads");
        let mut response = String::new();
        stream.read_to_string(&mut response).await.expect("the server responds");
        let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
        (head[9..12].parse().expect("a status"), body.to_owned())
    }
}

#[tokio::test]
async fn a_probe_returns_its_checks_and_reasons() {
    let server = Running::start(None).await;
    assert_eq!(server.get("/livez", "").await, (200, r#"{"ok":true}"#.to_owned()));
    let (status, body) = server.get("/readyz", "").await;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["checks"][0]["seen"]), (503, &"the database cannot be reached".into()));
    assert_eq!((&body["parts"][0]["part"], &body["parts"][0]["seen"]), (&"database".into(), &"no answer".into()));
    assert_eq!(server.get("/metrics", "").await, (200, "# EOF\n".to_owned()));
    assert_eq!(server.get("/nothing", "").await.0, 404);
}

#[tokio::test]
async fn a_started_process_stays_started() {
    let server = Running::start(None).await;
    let (status, body) = server.get("/startupz", "").await;
    assert!(status == 503 && body.contains("starting"), "{status} {body}");
    server.observed.0.store(true, Ordering::Relaxed);
    assert_eq!(server.get("/startupz", "").await.0, 200);
    server.observed.0.store(false, Ordering::Relaxed);
    let (status, body) = server.get("/startupz", "").await;
    assert!(status == 200 && body.contains("has started"), "{status} {body}");
    assert_eq!(server.get("/readyz", "").await.0, 503, "only the readiness probe reports it");
}

#[tokio::test]
async fn without_the_token_probes_give_no_reasons_and_metrics_are_refused() {
    let server = Running::start(Some("correct horse battery")).await;
    assert_eq!(server.get("/readyz", "").await, (503, r#"{"ok":false}"#.to_owned()));
    for wrong in ["", "authorization: Bearer wrong\r\n", "authorization: correct horse battery\r\n"] {
        assert_eq!(server.get("/metrics", wrong).await.0, 401, "{wrong}");
    }
    let right = "authorization: Bearer correct horse battery\r\n";
    assert_eq!(server.get("/metrics", right).await.0, 200);
    assert!(server.get("/readyz", right).await.1.contains("checks"));
}

#[tokio::test]
async fn a_taken_port_is_an_error() {
    let server = Running::start(None).await;
    let error = Server::bind(server.address).await.err().unwrap();
    assert!(matches!(error, Error::Taken(address) if address == server.address));
}

#[tokio::test]
async fn shutdown_does_not_wait_for_open_connections() {
    let mut server = Running::start(None).await;
    let idle = TcpStream::connect(server.address).await.unwrap();
    server.get("/livez", "").await;
    server.stop.cancel();
    server.tasks.join_next().await.unwrap().unwrap().unwrap();
    drop(idle);
}

#[tokio::test]
async fn connections_above_the_limit_wait_until_one_closes() {
    let server = Running::start(None).await;
    let mut idle = Vec::new();
    for _ in 0..64 {
        idle.push(TcpStream::connect(server.address).await.expect("it listens"));
    }
    let mut request = Box::pin(server.get("/livez", ""));
    let early = tokio::time::timeout(Duration::from_millis(200), &mut request).await;
    assert!(early.is_err(), "all connections are in use");
    drop(idle.pop());
    assert_eq!(request.await.0, 200);
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits { connections_max: 2, patience: Duration::from_millis(500) };
    let mut tasks = JoinSet::new();
    tasks.spawn(axum::serve(Limited::new(listener, limits), axum::Router::new()).into_future());
    let mut silent = Vec::new();
    for _ in 0..6 {
        silent.push(TcpStream::connect(address).await.expect("it listens"));
    }
    // The port serves two connections at a time.
    for mut silent in silent {
        let closed = tokio::time::timeout(20 * limits.patience, silent.read(&mut [0])).await;
        assert_eq!(closed.expect("it is closed in time").expect("it is closed"), 0);
    }
}
