//! The HTTP server, as a client sees it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use relevo_admin::{
    BindError, ConnectionLimits, DependencyCheck, HealthCheck, HealthReport, HealthSource, LimitedListener,
    ProcessStatus, RelayRates, Server, Token,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Never ready. Its flag controls whether it has started.
#[derive(Default)]
struct Fixed {
    started: AtomicBool,
    recorded: AtomicU64,
}

impl HealthSource for Fixed {
    fn live(&self) -> HealthReport {
        HealthReport::of(Vec::new())
    }

    fn ready(&self) -> HealthReport {
        let detail = "the database is unreachable".to_owned();
        let (outbox, destination) = ("shop".to_owned(), "main".to_owned());
        let checks = vec![HealthCheck::relay(&outbox, &destination, false, detail)];
        let (name, ok, required) = ("database", false, true);
        let dependency = DependencyCheck { outbox, destination, name, ok, required, detail: "no response".to_owned() };
        HealthReport::of(checks).with_dependencies(vec![dependency])
    }

    fn started(&self) -> HealthReport {
        let (outbox, destination, ok) = ("shop".to_owned(), "main".to_owned(), self.started.load(Ordering::Relaxed));
        HealthReport::of(vec![HealthCheck::relay(&outbox, &destination, ok, "starting".to_owned())])
    }

    fn metrics(&self) -> String {
        "# EOF\n".to_owned()
    }

    fn status(&self) -> ProcessStatus {
        let relay = RelayRates { outbox: "shop".to_owned(), ..RelayRates::default() };
        ProcessStatus { service: "shop".to_owned(), relays: vec![relay], consumers: Vec::new() }
    }

    fn record_rates(&self) {
        self.recorded.fetch_add(1, Ordering::Relaxed);
    }
}

struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    tasks: JoinSet<std::io::Result<()>>,
    source: Arc<Fixed>,
}

impl Running {
    async fn start(token: Option<&str>) -> Self {
        let server = Server::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
        let (address, stop, mut tasks) = (server.address(), CancellationToken::new(), JoinSet::new());
        let source = Arc::new(Fixed::default());
        tasks.spawn(server.run(Arc::clone(&source) as Arc<dyn HealthSource>, token.map(Token::new), stop.clone()));
        Self { address, stop, tasks, source }
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
    assert_eq!((status, &body["checks"][0]["detail"]), (503, &"the database is unreachable".into()));
    let dependency = &body["dependencies"][0];
    assert_eq!((&dependency["name"], &dependency["detail"]), (&"database".into(), &"no response".into()));
    assert_eq!(server.get("/metrics", "").await, (200, "# EOF\n".to_owned()));
    assert_eq!(server.get("/nothing", "").await.0, 404);
}

#[tokio::test]
async fn the_status_is_json_and_its_rates_are_recorded_from_the_start() {
    let server = Running::start(None).await;
    let (status, body) = server.get("/status", "").await;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["service"], &body["relays"][0]["outbox"]), (200, &"shop".into(), &"shop".into()));
    assert_eq!(body["relays"][0]["latency_p50_seconds"], serde_json::Value::Null, "unknown values are null");
    assert!(server.source.recorded.load(Ordering::Relaxed) > 0);
}

#[tokio::test]
async fn a_started_process_stays_started() {
    let server = Running::start(None).await;
    let (status, body) = server.get("/startupz", "").await;
    assert!(status == 503 && body.contains("starting"), "{status} {body}");
    server.source.started.store(true, Ordering::Relaxed);
    assert_eq!(server.get("/startupz", "").await.0, 200);
    server.source.started.store(false, Ordering::Relaxed);
    let (status, body) = server.get("/startupz", "").await;
    assert!(status == 200 && body.contains("started"), "{status} {body}");
    assert_eq!(server.get("/readyz", "").await.0, 503, "only the readiness probe reports it");
}

#[tokio::test]
async fn without_the_token_probes_give_no_details_and_metrics_and_status_are_refused() {
    let server = Running::start(Some("correct horse battery")).await;
    assert_eq!(server.get("/readyz", "").await, (503, r#"{"ok":false}"#.to_owned()));
    let right = "authorization: Bearer correct horse battery\r\n";
    for path in ["/metrics", "/status"] {
        for wrong in ["", "authorization: Bearer wrong\r\n", "authorization: correct horse battery\r\n"] {
            assert_eq!(server.get(path, wrong).await.0, 401, "{path} {wrong}");
        }
        assert_eq!(server.get(path, right).await.0, 200, "{path}");
    }
    assert!(server.get("/readyz", right).await.1.contains("checks"));
}

#[tokio::test]
async fn a_taken_port_is_an_error() {
    let server = Running::start(None).await;
    let error = Server::bind(server.address).await.err().unwrap();
    assert!(matches!(error, BindError::InUse(address) if address == server.address));
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
    let limits = ConnectionLimits { connections_max: 2, idle_timeout: Duration::from_millis(500) };
    let mut tasks = JoinSet::new();
    tasks.spawn(axum::serve(LimitedListener::new(listener, limits), axum::Router::new()).into_future());
    let mut silent = Vec::new();
    for _ in 0..6 {
        silent.push(TcpStream::connect(address).await.expect("it listens"));
    }
    // The port serves two connections at a time.
    for mut silent in silent {
        let closed = tokio::time::timeout(20 * limits.idle_timeout, silent.read(&mut [0])).await;
        assert_eq!(closed.expect("it is closed in time").expect("it is closed"), 0);
    }
}
