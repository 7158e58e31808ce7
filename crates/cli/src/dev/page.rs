//! The page on loopback that shows the flow.

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

/// The page, with everything it needs in it: it loads nothing from anywhere else.
const PAGE: &str = include_str!("page.html");
/// Nothing from elsewhere runs in it, and nobody frames it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
    img-src data:; frame-ancestors 'none'";

/// Takes the port, so that one that is taken is told before anything is written.
pub(crate) async fn listen(port: u16) -> Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|error| {
        if error.kind() == std::io::ErrorKind::AddrInUse {
            anyhow!("port {port} is taken; hint: `--port 0` takes a free one")
        } else {
            anyhow!(error).context(format!("port {port} cannot be used"))
        }
    })
}

/// Serves until it is told to stop.
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
