//! The web page of the demo. It listens on loopback and shows the flow of messages.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::flow::Flow;

/// The page, with its styles and scripts. It loads nothing from other servers.
const PAGE: &str = include_str!("page.html");
/// The page runs no code of other servers, and no other page can embed it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
    img-src data:; frame-ancestors 'none'";

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

/// Serves the page until `stop` is cancelled.
pub(crate) async fn serve(listener: TcpListener, flow: Arc<Flow>, stop: CancellationToken) -> Result<()> {
    let pages = Router::new()
        .route("/", get(|| async { ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(PAGE)) }))
        .route("/state", get(state))
        .with_state(flow);
    Ok(axum::serve(listener, pages).with_graceful_shutdown(stop.cancelled_owned()).await?)
}

async fn state(State(flow): State<Arc<Flow>>) -> impl IntoResponse {
    ([(header::CACHE_CONTROL, "no-store")], axum::Json(flow.page()))
}
