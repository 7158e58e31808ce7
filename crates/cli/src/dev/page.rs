//! The web page of the demo. It listens on loopback, shows the flow of messages, and passes actions to the demo.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse};
use axum::routing::{get, post};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::state::DemoState;

/// The page, with its styles and scripts. It loads nothing from other servers.
const PAGE: &str = include_str!("page.html");
/// The page runs no code of other servers, and no other page can embed it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
    img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The maximum number of actions that wait.
const REQUESTS_MAX: usize = 8;

/// What a visitor of the page can do to the running demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Action {
    StopBroker,
    StartBroker,
    CrashRelay,
    RejectMessage,
    Redrive,
}

/// An action, and where to report what it did.
#[derive(Debug)]
pub(crate) struct ActionRequest {
    pub(crate) action: Action,
    pub(crate) done: oneshot::Sender<String>,
}

/// Binds the port. The caller does this before it writes files, so that an error leaves none behind.
pub(crate) async fn listen(port: u16) -> Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|error| {
        if error.kind() == std::io::ErrorKind::AddrInUse {
            anyhow!("port {port} is taken; hint: `--port 0` chooses a free one")
        } else {
            anyhow!(error).context(format!("port {port} cannot be used"))
        }
    })
}

/// The page, and the actions that visitors request.
pub(crate) fn page(state: Arc<DemoState>) -> (Page, mpsc::Receiver<ActionRequest>) {
    let (requests, received) = mpsc::channel(REQUESTS_MAX);
    (Page { state, requests }, received)
}

/// The page.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    state: Arc<DemoState>,
    requests: mpsc::Sender<ActionRequest>,
}

impl Page {
    /// Serves the page until `stop` is cancelled.
    pub(crate) async fn serve(self, listener: TcpListener, stop: CancellationToken) -> Result<()> {
        let pages = Router::new()
            .route("/", get(|| async { ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(PAGE)) }))
            .route("/state", get(state))
            .route("/actions/{action}", post(act))
            .with_state(self);
        Ok(axum::serve(listener, pages).with_graceful_shutdown(stop.cancelled_owned()).await?)
    }
}

async fn state(State(page): State<Page>) -> impl IntoResponse {
    ([(header::CACHE_CONTROL, "no-store")], axum::Json(page.state.page()))
}

async fn act(State(page): State<Page>, headers: HeaderMap, Path(action): Path<Action>) -> (StatusCode, String) {
    if !is_same_origin(&headers) {
        return (StatusCode::FORBIDDEN, "only the page of the demo can request this".to_owned());
    }
    let (done, result) = oneshot::channel();
    if page.requests.try_send(ActionRequest { action, done }).is_ok()
        && let Ok(result) = result.await
    {
        return (StatusCode::OK, result);
    }
    (StatusCode::SERVICE_UNAVAILABLE, "the demo is busy or is stopping".to_owned())
}

/// Whether the request comes from the page or from a program that is not a browser. A page of another site can neither
/// choose these headers, nor reach the demo under a name of its own.
fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let Some(host) = text("host") else { return false };
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_local = matches!(name, "127.0.0.1" | "localhost");
    let origin = text("origin").is_none_or(|origin| origin.strip_prefix("http://") == Some(host));
    is_local && origin && text("sec-fetch-site").is_none_or(|site| site == "same-origin")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(headers: &[(&'static str, &str)]) -> bool {
        let value = |value: &str| value.parse().expect("a header value");
        is_same_origin(&headers.iter().map(|(name, text)| (name.parse().expect("a name"), value(text))).collect())
    }

    #[test]
    fn only_the_page_itself_can_act() {
        let host = ("host", "127.0.0.1:7373");
        assert!(is_allowed(&[host]), "curl sends neither header");
        assert!(is_allowed(&[host, ("origin", "http://127.0.0.1:7373"), ("sec-fetch-site", "same-origin")]));
        assert!(is_allowed(&[("host", "localhost:7373"), ("origin", "http://localhost:7373")]));
        assert!(!is_allowed(&[host, ("origin", "http://evil.example")]));
        assert!(!is_allowed(&[host, ("origin", "null")]));
        assert!(!is_allowed(&[host, ("origin", "http://127.0.0.1:8000"), ("sec-fetch-site", "same-site")]));
        assert!(!is_allowed(&[host, ("sec-fetch-site", "cross-site")]));
        assert!(!is_allowed(&[("host", "evil.example:7373"), ("origin", "http://evil.example:7373")]), "DNS rebinding");
        assert!(!is_allowed(&[]));
    }
}
