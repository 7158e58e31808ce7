//! The API: JSON over HTTP, with problem details that contain hints.

mod answer;
mod bodies;
mod envelope;
mod fields;
mod people;
mod problem;
mod reports;
mod request;
mod schema;
mod tickets;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::extract;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::config::Limits;
use crate::desk::Desk;
use crate::page::{self, Face};
use problem::Problem;

/// The state of the API.
#[derive(Clone)]
pub struct State {
    /// Tickets and people.
    pub desk: Arc<dyn Desk>,
    /// The probes of the process.
    pub health: Arc<dyn Health>,
    /// The limits of requests.
    pub limits: Limits,
    /// The sample users of the page; empty for a real installation.
    pub faces: Vec<Face>,
}

/// The probes of a process.
#[async_trait]
pub trait Health: Send + Sync {
    /// The content of `/health`.
    async fn check(&self) -> Checkup;
    /// The content of `/metrics`, as `OpenMetrics` text.
    async fn metrics(&self) -> String;
    /// The backlog and the dead letters.
    async fn flow(&self) -> anyhow::Result<Flow>;
}

/// The response of `/health`.
#[derive(Clone, Debug)]
pub struct Checkup {
    /// The service is down: 503.
    pub is_down: bool,
    /// The status of each part.
    pub body: serde_json::Value,
}

/// The backlog and the dead letters.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    /// Events that were not published.
    pub pending: u64,
    /// Dead letters, by consumer.
    pub dead: BTreeMap<String, u64>,
}

/// The API and the page. Every response has a correlation id, and every error is a problem detail.
pub fn router(state: State) -> Router {
    let page = page::router(state.faces.clone());
    let (router, openapi) = routes().split_for_parts();
    let openapi: Arc<str> = openapi.to_json().unwrap_or_default().into();
    let openapi = async move || ([(header::CONTENT_TYPE, "application/json")], openapi.to_string());
    router
        .route("/openapi.json", get(openapi))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .with_state(state)
        .merge(page)
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "no-route", "there is nothing at this path"))
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method", "this path has other methods; see `allow`")
        })
        .layer(axum::middleware::from_fn(envelope::wrap))
}

/// Every route under `/api`, with its description.
fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::with_openapi(schema::document())
        .routes(routes!(tickets::list, tickets::create))
        .routes(routes!(tickets::read))
        .routes(routes!(tickets::set_status))
        .routes(routes!(tickets::assign))
        .routes(routes!(tickets::comments, tickets::comment))
        .routes(routes!(tickets::history))
        .routes(routes!(people::me))
        .routes(routes!(people::list, people::add))
        .routes(routes!(people::set_token))
        .routes(routes!(people::disable))
        .routes(routes!(reports::emails))
        .routes(routes!(reports::figures))
}

async fn health(extract::State(state): extract::State<State>) -> Response {
    let Checkup { is_down, body } = state.health.check().await;
    let status = if is_down { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, axum::Json(body)).into_response()
}

async fn metrics(extract::State(state): extract::State<State>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], state.health.metrics().await)
}
