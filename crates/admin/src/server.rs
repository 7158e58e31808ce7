//! The HTTP server.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::health::HealthReport;
use crate::limits::{ConnectionLimits, LimitedListener};
use crate::status::ProcessStatus;

/// The content type of `/metrics`.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Time for responses that are in progress at shutdown.
const GRACE: Duration = Duration::from_secs(1);
/// The interval of snapshots for rates.
const RATE_INTERVAL: Duration = Duration::from_secs(1);

/// The state that a process reports about itself. All values come from memory: a probe must never wait for the thing
/// that it checks.
pub trait HealthSource: Send + Sync + 'static {
    /// Whether the process works, however long it waits for other systems. If not, it should be restarted.
    fn live(&self) -> HealthReport;

    /// Whether it currently does its work.
    fn ready(&self) -> HealthReport;

    /// Whether the other two probes are meaningful yet. Once true, it stays true: later failures show in the other two.
    fn started(&self) -> HealthReport {
        self.ready()
    }

    /// The metrics, in the `OpenMetrics` text format.
    fn metrics(&self) -> String;

    /// Rates and latencies of the last seconds.
    fn status(&self) -> ProcessStatus;

    /// Takes the snapshots that [`status`](Self::status) needs. The server calls it every second.
    fn record_rates(&self);
}

/// The token that a caller must send. Only its hash is stored.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Creates a token from its text.
    pub fn new(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Compares hashes, so that the response time reveals nothing about the token.
    fn admits(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let shown = value.and_then(|value| value.strip_prefix("Bearer "));
        shown.is_some_and(|shown| Self::new(shown).0 == self.0)
    }
}

/// The reason why the port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process uses the port.
    #[error(
        "the admin port {0} is in use; hint: another relevo may be running, choose another with `admin.listen`, or 0 for a \
         free one"
    )]
    InUse(SocketAddr),
    /// The operating system does not open the port.
    #[error("the admin port {address} cannot be opened")]
    Io {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// An open port that does not serve requests yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Opens the port. Port 0 selects a free one.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let opened = TcpListener::bind(address).await.and_then(|it| Ok((it.local_addr()?, it)));
        match opened {
            Ok((address, listener)) => Ok(Self { listener, address }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(BindError::InUse(address)),
            Err(source) => Err(BindError::Io { address, source }),
        }
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves requests until `stop` is cancelled.
    pub async fn run(
        self,
        source: Arc<dyn HealthSource>,
        token: Option<Token>,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let recording = record_rates(Arc::clone(&source));
        let shared = Arc::new(Shared { source, token, has_started: AtomicBool::new(false) });
        let app = Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/startupz", get(startupz))
            .route("/metrics", get(metrics))
            .route("/status", get(status))
            .with_state(shared);
        let listener = LimitedListener::new(self.listener, ConnectionLimits::default());
        let serving = axum::serve(listener, app).with_graceful_shutdown(stop.clone().cancelled_owned());
        let late = async {
            stop.cancelled().await;
            sleep(GRACE).await;
        };
        tokio::select! {
            served = serving.into_future() => served,
            () = recording => Ok(()),
            // Shutdown does not wait for idle connections.
            () = late => Ok(()),
        }
    }
}

async fn record_rates(source: Arc<dyn HealthSource>) {
    loop {
        source.record_rates();
        sleep(RATE_INTERVAL).await;
    }
}

struct Shared {
    source: Arc<dyn HealthSource>,
    token: Option<Token>,
    has_started: AtomicBool,
}

impl Shared {
    fn started(&self) -> HealthReport {
        let report = self.source.started();
        if report.ok {
            self.has_started.store(true, Ordering::Relaxed);
        }
        if self.has_started.load(Ordering::Relaxed) { report.mark_started() } else { report }
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        self.token.as_ref().is_none_or(|token| token.admits(headers))
    }

    /// Probes answer without a token, because most probing systems cannot send one. Details are only for callers with
    /// it.
    fn probe(&self, report: HealthReport, headers: &HeaderMap) -> Response {
        let status = if report.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let report = if self.admits(headers) { report } else { report.without_details() };
        (status, Json(report)).into_response()
    }
}

async fn livez(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    shared.probe(shared.source.live(), &headers)
}

async fn readyz(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    shared.probe(shared.source.ready(), &headers)
}

async fn startupz(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    shared.probe(shared.started(), &headers)
}

async fn metrics(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if !shared.admits(&headers) {
        return unauthorized();
    }
    ([(header::CONTENT_TYPE, METRICS_TYPE)], shared.source.metrics()).into_response()
}

async fn status(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if !shared.admits(&headers) {
        return unauthorized();
    }
    Json(shared.source.status()).into_response()
}

fn unauthorized() -> Response {
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], "a token is required\n").into_response()
}
