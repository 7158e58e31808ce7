//! A desk of a test's own, and a way to ask it.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use serde_json::Value;
use ticketflow::api::{self, Checkup, Flow, Health};
use ticketflow::config::Limits;
use ticketflow::desk::{self, Desk};
use ticketflow::sample;
use tower::ServiceExt as _;

use crate::place::Place;

/// How long a caller retries.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The sample's people.
pub(crate) const ANA: &str = "demo-ana";
pub(crate) const BEN: &str = "demo-ben";
pub(crate) const CARLA: &str = "demo-carla";
pub(crate) const DAN: &str = "demo-dan";
pub(crate) const EVA: &str = "demo-eva";

/// Nothing is checked and nothing flows: others test that.
struct Well;

#[async_trait]
impl Health for Well {
    async fn check(&self) -> Checkup {
        Checkup { is_down: false, body: serde_json::json!({ "status": "ok" }) }
    }

    async fn metrics(&self) -> String {
        "# EOF\n".to_owned()
    }

    async fn flow(&self) -> anyhow::Result<Flow> {
        Ok(Flow { pending: 3, dead: BTreeMap::from([("notifications".to_owned(), 1)]) })
    }
}

/// A desk, with the sample's people.
pub(crate) struct World {
    pub(crate) desk: Arc<dyn Desk>,
    router: Router,
    place: Place,
}

/// Direct access to the test's database and files.
impl Deref for World {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl World {
    pub(crate) async fn sqlite() -> Self {
        let place = Place::sqlite();
        desk::migrate(&place.database).await.unwrap();
        Self::open(place).await
    }

    pub(crate) async fn postgres() -> Self {
        let place = Place::postgres().await;
        desk::migrate(&place.database).await.unwrap();
        Self::open(place).await
    }

    /// In PostgreSQL behind a pooler in transaction mode, from the first migration on.
    pub(crate) async fn pooled() -> Self {
        let place = Place::pooled().await;
        desk::migrate(&place.database).await.unwrap();
        Self::open(place).await
    }

    /// In a database that was migrated.
    pub(crate) async fn open(place: Place) -> Self {
        let desk = desk::open(&place.database).await.unwrap();
        let faces = sample::people(&*desk).await.unwrap();
        let state = api::State { desk: Arc::clone(&desk), health: Arc::new(Well), limits: Limits::default(), faces };
        Self { desk, router: api::router(state), place }
    }

    pub(crate) fn get(&self, token: &str, path: &str) -> Call {
        self.call("GET", path).with("authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn post(&self, token: &str, path: &str, body: &Value) -> Call {
        let call = self.call("POST", path).with("authorization", &format!("Bearer {token}"));
        call.with("content-type", "application/json").body(body.to_string())
    }

    pub(crate) fn call(&self, method: &str, path: &str) -> Call {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        Call { router: self.router.clone(), request }
    }

    /// A ticket of the requester's.
    pub(crate) async fn opened(&self, token: &str, title: &str) -> Reply {
        let body = serde_json::json!({ "title": title, "description": "It does not work" });
        let reply = self.post(token, "/api/tickets", &body).send().await;
        assert_eq!(reply.status, StatusCode::CREATED, "{}", reply.text);
        reply
    }

    /// Changes a ticket as its reader last saw it.
    pub(crate) fn change(&self, token: &str, seen: &Reply, what: &str, body: &Value) -> Call {
        self.post(token, &format!("{}/{what}", seen.path()), body).with("if-match", seen.header("etag"))
    }

    /// How many rows there are of everything that a request could leave behind.
    pub(crate) async fn stored(&self) -> Vec<i64> {
        let mut counts = Vec::new();
        for table in ["person", "ticket", "comment", "history", "idempotency"] {
            counts.push(self.number(&format!("SELECT count(*) FROM ticketflow.{table}")).await);
        }
        counts.push(self.number("SELECT count(*) FROM relevo.message").await);
        counts.push(self.number("SELECT coalesce(sum(version), 0)::bigint FROM ticketflow.ticket").await);
        counts
    }

    /// The events' payloads, in the order of the log.
    pub(crate) async fn events(&self) -> Vec<Value> {
        let texts = self.texts("SELECT convert_from(payload, 'UTF8') FROM relevo.message ORDER BY seq").await;
        texts.iter().map(|text| serde_json::from_str(text).unwrap()).collect()
    }
}

/// A request that is being made.
pub(crate) struct Call {
    router: Router,
    request: Request<Body>,
}

impl Call {
    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        // Bytes beyond ASCII, too, as they may come.
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        self.request.headers_mut().insert(name, value);
        self
    }

    pub(crate) fn without(mut self, name: &'static str) -> Self {
        self.request.headers_mut().remove(name);
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Body>) -> Self {
        *self.request.body_mut() = body.into();
        self
    }

    pub(crate) async fn send(self) -> Reply {
        let response = self.router.oneshot(self.request).await.unwrap();
        let (parts, body) = response.into_parts();
        let text = String::from_utf8(to_bytes(body, usize::MAX).await.unwrap().to_vec()).unwrap();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Reply { status: parts.status, headers: parts.headers, text, json }
    }

    /// What was refused: status, the problem's word, and the fields with what is wrong about them.
    pub(crate) async fn refused(self) -> (u16, String, Vec<String>) {
        let reply = self.send().await;
        assert_eq!(reply.header("content-type"), "application/problem+json", "{}", reply.text);
        let json = &reply.json;
        assert_eq!(json["status"], reply.status.as_u16());
        assert_eq!(json["correlation_id"], reply.header("x-correlation-id"));
        assert!(json["title"].is_string() && !json["detail"].as_str().unwrap().is_empty());
        let word = json["type"].as_str().unwrap().strip_prefix("urn:ticketflow:problem:").unwrap().to_owned();
        let field = |error: &Value| {
            assert!(!error["message"].as_str().unwrap().is_empty());
            format!("{} {}", error["field"].as_str().unwrap(), error["code"].as_str().unwrap())
        };
        (reply.status.as_u16(), word, json["errors"].as_array().unwrap().iter().map(field).collect())
    }
}

pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    pub(crate) json: Value,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    /// Whether it timed out, as on a busy machine, and shall be retried.
    pub(crate) fn is_too_early(&self) -> bool {
        (self.status.as_u16(), self.header("retry-after")) == (503, "2")
    }

    /// The final response to a request, which is retried as long as the response requests it. One that changes something has a
    /// key.
    pub(crate) async fn or_again(self, call: impl Fn() -> Call) -> Self {
        let end = Instant::now() + PATIENCE;
        let mut reply = self;
        while reply.is_too_early() && Instant::now() < end {
            reply = call().send().await;
        }
        reply
    }

    /// Of the ticket that it tells.
    pub(crate) fn path(&self) -> String {
        format!("/api/tickets/{}", self.json["id"].as_str().unwrap())
    }

    pub(crate) fn items(&self) -> &[Value] {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        self.json["items"].as_array().unwrap()
    }
}
