//! The parts of every request and response: a correlation id, a deadline, security headers.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tokio::time::timeout;
use uuid::Uuid;

use super::problem::Problem;
use crate::desk::STATEMENT_DEADLINE;
use crate::domain::event::CORRELATION_ID;

const LENGTH_MAX: usize = 128;
/// The deadline of a request, including the arrival of its body.
const DEADLINE: Duration = Duration::from_secs(10);
const _: () = assert!(STATEMENT_DEADLINE.as_millis() < DEADLINE.as_millis(), "a statement ends before its request");

/// Headers for browsers, unless the response sets them, as the page does.
const HEADERS: [(HeaderName, &str); 4] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::CACHE_CONTROL, "no-store"),
];

/// The id of a request, up to the e-mail that it causes.
#[derive(Clone, Debug)]
pub(super) struct CorrelationId(pub(super) String);

pub(super) async fn wrap(mut request: Request, next: Next) -> Response {
    let given = given(request.headers());
    let id = given.clone().ok().flatten().unwrap_or_else(|| Uuid::now_v7().to_string());
    request.extensions_mut().insert(CorrelationId(id.clone()));
    let mut response = match given {
        Ok(_) => timeout(DEADLINE, next.run(request)).await.unwrap_or_else(|_| Problem::late().into_response()),
        Err(problem) => problem.into_response(),
    };
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        problem.log(&id);
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = Body::from(problem.body(&id));
    }
    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    if let Ok(id) = HeaderValue::try_from(id) {
        response.headers_mut().insert(CORRELATION_ID, id);
    }
    response
}

/// The caller's id, if there is one and it is valid in logs and headers.
fn given(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(CORRELATION_ID) else { return Ok(None) };
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    match value.to_str() {
        Ok(id) if (1..=LENGTH_MAX).contains(&id.len()) && id.as_bytes().iter().all(is_plain) => Ok(Some(id.to_owned())),
        _ => Err(Problem::bad(
            "correlation-id",
            "`x-correlation-id` must have 1 to 128 of the characters A-Z a-z 0-9 . _ -",
        )),
    }
}
