//! The API: JSON over HTTP, with problems that say what to do.

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

/// What the API needs of the rest.
#[derive(Clone)]
pub struct State {
    /// Tickets and people.
    pub desk: Arc<dyn Desk>,
    /// How the parts of the process are.
    pub health: Arc<dyn Health>,
    /// What requests may cost.
    pub limits: Limits,
    /// Sample people whom a visitor of the page can be; none in earnest.
    pub faces: Vec<Face>,
}

/// How the parts of a process are.
#[async_trait]
pub trait Health: Send + Sync {
    /// What `/health` says.
    async fn check(&self) -> Checkup;
    /// What `/metrics` says, as `OpenMetrics` text.
    async fn metrics(&self) -> String;
    /// What is under way.
    async fn flow(&self) -> anyhow::Result<Flow>;
}

/// The answer of `/health`.
#[derive(Clone, Debug)]
pub struct Checkup {
    /// Nothing can be done: 503.
    pub is_down: bool,
    /// What is how.
    pub body: serde_json::Value,
}

/// What is under way.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    /// Events that have not left the database.
    pub pending: u64,
    /// Events that were given up, by consumer.
    pub dead: BTreeMap<String, u64>,
}

/// The API and the page. Every answer has a correlation id, and every refusal is a problem.
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
