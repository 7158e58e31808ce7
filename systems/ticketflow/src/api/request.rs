//! The extractors of handlers: the caller and the request.

use axum::RequestPartsExt as _;
use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

use super::State;
use super::envelope::CorrelationId;
use super::fields::Fields;
use super::problem::Problem;
use crate::desk::{Act, Desk, DeskError, Once, Token, Versions};
use crate::domain::{Caller, Person, Role};

const KEY: &str = "idempotency-key";
const KEY_MAX: usize = 255;

/// A request of an authenticated caller.
pub(super) struct Ask {
    pub(super) desk: Arc<dyn Desk>,
    pub(super) person: Person,
    query: BTreeMap<String, String>,
    headers: HeaderMap,
}

impl Ask {
    pub(super) fn caller(&self) -> Caller {
        Caller::from(&self.person)
    }

    /// Rejects requesters.
    pub(super) fn must_answer(&self) -> Result<(), Problem> {
        if self.person.role.answers() {
            return Ok(());
        }
        Err(DeskError::NotAllowed("only agents and admins see this").into())
    }

    /// The query.
    pub(super) fn query(&mut self) -> Fields {
        let query = std::mem::take(&mut self.query);
        let map = query.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        Fields::new(map, StatusCode::BAD_REQUEST)
    }

    /// Whether the caller has this version already.
    pub(super) fn has(&self, etag: &str) -> bool {
        let listed = self.headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or_default();
        listed.split(',').map(str::trim).any(|listed| listed == "*" || listed.trim_start_matches("W/") == etag)
    }
}

impl FromRequestParts<State> for Ask {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Problem> {
        let token = token(&parts.headers)?;
        let person = state.desk.person_of(&token).await?.ok_or_else(|| unknown("the token is not known"))?;
        let query = parts.extract::<Query<BTreeMap<String, String>>>().await;
        let Query(query) = query.map_err(|error| Problem::bad("query", error.body_text()))?;
        Ok(Self { desk: Arc::clone(&state.desk), person, query, headers: parts.headers.clone() })
    }
}

fn token(headers: &HeaderMap) -> Result<Token, Problem> {
    let value =
        headers.get(header::AUTHORIZATION).ok_or_else(|| unknown("a token is needed: `Authorization: Bearer …`"))?;
    let (scheme, token) = value.to_str().ok().and_then(|value| value.split_once(' ')).unwrap_or_default();
    if scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() {
        return Ok(Token::new(token.trim()));
    }
    Err(unknown("`Authorization` must be `Bearer` and a token"))
}

fn unknown(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "token", detail)
        .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"ticketflow\""))
}

/// The id in a path. An invalid id is an unknown ticket.
pub(super) struct Id(pub(super) Uuid);

impl FromRequestParts<State> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &State) -> Result<Self, Problem> {
        id(parts).await.map(Self).ok_or_else(|| DeskError::NoTicket.into())
    }
}

/// The same for people.
pub(super) struct PersonId(pub(super) Uuid);

impl FromRequestParts<State> for PersonId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &State) -> Result<Self, Problem> {
        id(parts).await.map(Self).ok_or_else(|| DeskError::NoPerson.into())
    }
}

async fn id(parts: &mut Parts) -> Option<Uuid> {
    parts.extract::<Path<String>>().await.ok().and_then(|Path(id)| id.parse().ok())
}

/// A request that changes something: with a JSON body, and optionally a key for repeats.
pub(super) struct Post {
    pub(super) ask: Ask,
    body: Map<String, Value>,
    correlation_id: String,
    once: Option<Once>,
}

impl Post {
    /// Rejects all but admins, with this reason.
    pub(super) fn must_be_admin(&self, reason: &'static str) -> Result<(), Problem> {
        if self.ask.person.role == Role::Admin { Ok(()) } else { Err(DeskError::NotAllowed(reason).into()) }
    }

    /// The fields of its body.
    pub(super) fn fields(&mut self) -> Fields {
        Fields::new(std::mem::take(&mut self.body), StatusCode::UNPROCESSABLE_ENTITY)
    }

    /// The context of the change.
    pub(super) fn act(self) -> Act {
        // Stored and returned in milliseconds.
        let at = Timestamp::from_millisecond(Timestamp::now().as_millisecond()).unwrap_or_default();
        Act { by: self.ask.person, at, correlation_id: self.correlation_id, once: self.once }
    }

    /// The versions that the caller has read. Without them, a change could undo another one unnoticed.
    pub(super) fn versions(&self) -> Result<Versions, Problem> {
        let needed = "`If-Match` with the ticket's `ETag` is needed";
        let value = self.ask.headers.get(header::IF_MATCH);
        let value = value.ok_or_else(|| Problem::new(StatusCode::PRECONDITION_REQUIRED, "no-version", needed))?;
        let wrong = || Problem::bad("version", "`If-Match` must be the `ETag` as it came, such as `\"3\"`");
        let value = value.to_str().map_err(|_| wrong())?.trim();
        if value == "*" {
            return Ok(Versions::Any);
        }
        let mut versions = Vec::new();
        for etag in value.split(',').map(str::trim) {
            let is_weak = etag.starts_with("W/");
            let text = etag.trim_start_matches("W/");
            let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).ok_or_else(wrong)?;
            // A weak or unknown one matches nothing.
            versions.extend(text.parse::<i64>().ok().filter(|_| !is_weak));
        }
        Ok(Versions::These(versions))
    }
}

impl FromRequest<State> for Post {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &State) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let ask = Ask::from_request_parts(&mut parts, state).await?;
        let key = key(&parts.headers)?;
        let limit = state.limits.body_bytes;
        let bytes = to_bytes(body, limit).await.map_err(|_| {
            let detail = format!("the body must have at most {limit} bytes, and arrive whole");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body", detail)
        })?;
        let body = object(&parts.headers, &bytes)?;
        let once = key.map(|key| Once {
            key,
            request_sha256: fingerprint(&parts, &bytes),
            remembered: state.limits.idempotency,
        });
        let id = parts.extensions.get::<CorrelationId>();
        let correlation_id = id.map(|CorrelationId(id)| id.clone()).unwrap_or_default();
        Ok(Self { ask, body, correlation_id, once })
    }
}

fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(KEY) else { return Ok(None) };
    match value.to_str() {
        Ok(key) if (1..=KEY_MAX).contains(&key.len()) => Ok(Some(key.to_owned())),
        _ => Err(Problem::bad("key", "`Idempotency-Key` must have 1 to 255 visible characters")),
    }
}

fn object(headers: &HeaderMap, bytes: &Bytes) -> Result<Map<String, Value>, Problem> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        let detail = "the body must be JSON: `Content-Type: application/json`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "kind", detail));
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Problem::bad("json", "the body must be a JSON object")),
        Err(error) => Err(Problem::bad("json", format!("the body is not JSON: {error}"))),
    }
}

/// The hash that identifies equal requests. It includes the version that the caller has read.
fn fingerprint(parts: &Parts, bytes: &Bytes) -> [u8; 32] {
    let mut digest = Sha256::new();
    let seen = parts.headers.get_all(header::IF_MATCH).iter().map(HeaderValue::as_bytes);
    // No part contains a zero, and two precede the body.
    for part in [parts.method.as_str().as_bytes(), parts.uri.path().as_bytes()].into_iter().chain(seen) {
        digest.update(part);
        digest.update([0]);
    }
    digest.update([0]);
    digest.update(bytes);
    digest.finalize().into()
}
