//! The HTTP server.

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
use tokio_util::sync::CancellationToken;

use crate::connections::{Limited, Limits};
use crate::report::Report;

/// The content type of `/metrics`.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Time for responses that are in progress at shutdown.
const GRACE: Duration = Duration::from_secs(1);

/// The state that a process reports about itself. All values come from memory: a probe must never wait for the thing
/// that it checks.
pub trait Observe: Send + Sync + 'static {
    /// Whether the process works, however long it waits for other systems. If not, it should be restarted.
    fn live(&self) -> Report;

    /// Whether it currently does its work.
    fn ready(&self) -> Report;

    /// Whether the other two probes are meaningful yet. Once true, it stays true: later failures show in the other two.
    fn started(&self) -> Report {
        self.ready()
    }

    /// The metrics, in the `OpenMetrics` text format.
    fn metrics(&self) -> String;
}

/// The token that a caller must send. Only its hash is stored.
#[derive(Clone)]
pub struct Token([u8; 32]);

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
pub enum Error {
    /// Another process uses the port.
    #[error(
        "the admin port {0} is taken; hint: another relevo may be running, choose another with `admin.listen`, or 0 for a \
         free one"
    )]
    Taken(SocketAddr),
    /// The operating system refuses to open the port.
    #[error("the admin port {address} cannot be opened")]
    Refused {
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
    pub async fn bind(address: SocketAddr) -> Result<Self, Error> {
        let opened = TcpListener::bind(address).await.and_then(|it| Ok((it.local_addr()?, it)));
        match opened {
            Ok((address, listener)) => Ok(Self { listener, address }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(Error::Taken(address)),
            Err(source) => Err(Error::Refused { address, source }),
        }
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves requests until `stop` is cancelled.
    pub async fn run(
        self,
        observed: Arc<dyn Observe>,
        token: Option<Token>,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let shared = Arc::new(Shared { observed, token, has_started: AtomicBool::new(false) });
        let app = Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/startupz", get(startupz))
            .route("/metrics", get(metrics))
            .with_state(shared);
        let listener = Limited::new(self.listener, Limits::default());
        let serving = axum::serve(listener, app).with_graceful_shutdown(stop.clone().cancelled_owned());
        let late = async {
            stop.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            served = serving.into_future() => served,
            // Shutdown does not wait for idle connections.
            () = late => Ok(()),
        }
    }
}

struct Shared {
    observed: Arc<dyn Observe>,
    token: Option<Token>,
    has_started: AtomicBool,
}

impl Shared {
    fn started(&self) -> Report {
        let report = self.observed.started();
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
    fn probe(&self, report: Report, headers: &HeaderMap) -> Response {
        let status = if report.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let report = if self.admits(headers) { report } else { report.without_details() };
        (status, Json(report)).into_response()
    }
}

async fn livez(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    shared.probe(shared.observed.live(), &headers)
}

async fn readyz(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    shared.probe(shared.observed.ready(), &headers)
}

async fn startupz(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    shared.probe(shared.started(), &headers)
}

async fn metrics(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if !shared.admits(&headers) {
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], "a token is needed\n")
            .into_response();
    }
    ([(header::CONTENT_TYPE, METRICS_TYPE)], shared.observed.metrics()).into_response()
}
