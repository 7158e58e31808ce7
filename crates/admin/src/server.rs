//! The port.

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
pub const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How long answers may take that were begun before the end.
const GRACE: Duration = Duration::from_secs(1);

/// What a process tells of itself. Every answer comes from memory: a probe must never wait for what it asks about.
pub trait Observe: Send + Sync + 'static {
    /// Whether the process works, however long it waits for others; if not, it should be started anew.
    fn live(&self) -> Report;

    /// Whether it does its work at the moment.
    fn ready(&self) -> Report;

    /// Whether it has come so far that the other two mean something. Once it has, it has: what is lost later is theirs to
    /// tell.
    fn started(&self) -> Report {
        self.ready()
    }

    /// The metrics, in the `OpenMetrics` text format.
    fn metrics(&self) -> String;
}

/// What a caller must show; only its hash is kept.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Token {
    /// The token of this text.
    pub fn new(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Hashes are compared, so that how long it takes says nothing about the token.
    fn admits(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let shown = value.and_then(|value| value.strip_prefix("Bearer "));
        shown.is_some_and(|shown| Self::new(shown).0 == self.0)
    }
}

/// Why the port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody else has it.
    #[error(
        "the admin port {0} is taken; hint: another relevo may be running, choose another with `admin.listen`, or 0 for a \
         free one"
    )]
    Taken(SocketAddr),
    /// The system refuses.
    #[error("the admin port {address} cannot be opened")]
    Refused {
        /// Which port.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A port that is open and not served yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Opens the port; port 0 takes a free one.
    pub async fn bind(address: SocketAddr) -> Result<Self, Error> {
        let opened = TcpListener::bind(address).await.and_then(|it| Ok((it.local_addr()?, it)));
        match opened {
            Ok((address, listener)) => Ok(Self { listener, address }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(Error::Taken(address)),
            Err(source) => Err(Error::Refused { address, source }),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` is cancelled.
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
            // Whoever keeps a connection open without asking anything is not waited for.
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
        if self.has_started.load(Ordering::Relaxed) { report.once_good() } else { report }
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        self.token.as_ref().is_none_or(|token| token.admits(headers))
    }

    /// Probes answer everybody, since those who probe rarely can show a token; the reasons are for those who can.
    fn probe(&self, report: Report, headers: &HeaderMap) -> Response {
        let status = if report.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let report = if self.admits(headers) { report } else { report.without_reasons() };
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
