//! Errors as problem details (RFC 9457).

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::desk::DeskError;
use crate::domain::Status;
use crate::domain::fields::Fault;

/// How long a caller should wait before a retry.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("2");

/// An error response. The body is made where the correlation id is known.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    status: StatusCode,
    word: &'static str,
    detail: Box<str>,
    errors: Vec<Invalid>,
    allowed: Option<&'static [Status]>,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// For the log, not for the caller.
    cause: Option<Box<str>>,
}

/// An invalid field.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Invalid {
    /// Its name.
    pub(super) field: String,
    /// A code for programs.
    pub(super) code: &'static str,
    /// A sentence for users.
    pub(super) message: String,
}

impl Invalid {
    pub(super) fn new(field: &str, fault: Fault) -> Self {
        Self { field: field.to_owned(), code: fault.code, message: fault.message }
    }
}

impl Problem {
    pub(super) fn new(status: StatusCode, word: &'static str, detail: impl Into<Box<str>>) -> Self {
        Self {
            status,
            word,
            detail: detail.into(),
            errors: Vec::new(),
            allowed: None,
            headers: Vec::new(),
            cause: None,
        }
    }

    /// A malformed request.
    pub(super) fn bad(word: &'static str, detail: impl Into<Box<str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, word, detail)
    }

    /// All invalid fields.
    pub(super) fn invalid(status: StatusCode, errors: Vec<Invalid>) -> Self {
        let fields: Vec<_> = errors.iter().map(|error| format!("`{}`", error.field)).collect();
        let detail = format!("cannot be accepted: {}", fields.join(", "));
        Self { errors, ..Self::new(status, "invalid", detail) }
    }

    /// Temporarily unavailable. The change may have been made: a repeat with the same key returns the result.
    pub(super) fn away(cause: String) -> Self {
        let detail =
            "the database does not respond; hint: repeat the request, a change with the same `Idempotency-Key`";
        Self { cause: Some(cause.into()), ..Self::unavailable("away", detail) }
    }

    /// The deadline passed. The change may have been made, as above.
    pub(super) fn late() -> Self {
        let detail = "this took too long; hint: repeat the request, a change with the same `Idempotency-Key`";
        Self { cause: Some("the deadline of a request".into()), ..Self::unavailable("late", detail) }
    }

    fn unavailable(word: &'static str, detail: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, word, detail).with_header(header::RETRY_AFTER, RETRY_AFTER)
    }

    fn unprocessable(field: &str, code: &'static str, message: &str) -> Self {
        let invalid = Invalid::new(field, Fault::new(code, message));
        Self::invalid(StatusCode::UNPROCESSABLE_ENTITY, vec![invalid])
    }

    pub(super) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Logs the cause, which the caller does not see.
    pub(super) fn log(&self, correlation_id: &str) {
        let Some(error) = &self.cause else { return };
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            tracing::warn!(correlation_id, error, "a request failed temporarily");
        } else {
            tracing::error!(correlation_id, error, "a request failed");
        }
    }

    /// The body.
    pub(super) fn body(&self, correlation_id: &str) -> String {
        let mut body = json!({
            "type": format!("urn:ticketflow:problem:{}", self.word),
            "title": self.status.canonical_reason().unwrap_or("Refused"),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "correlation_id": correlation_id,
            "errors": self.errors,
        });
        if let Some(allowed) = self.allowed {
            body["allowed"] = json!(allowed);
        }
        body.to_string()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        for (name, value) in &self.headers {
            response.headers_mut().insert(name, value.clone());
        }
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response.extensions_mut().insert(self);
        response
    }
}

impl From<DeskError> for Problem {
    fn from(error: DeskError) -> Self {
        let (said, is_late) = (error.to_string(), error.is_late());
        match error {
            DeskError::NoTicket => Self::new(StatusCode::NOT_FOUND, "no-ticket", said),
            DeskError::NoPerson => Self::new(StatusCode::NOT_FOUND, "no-person", said),
            DeskError::NotAllowed(_) => Self::new(StatusCode::FORBIDDEN, "role", said),
            DeskError::Stale(version) => {
                let detail = format!("{said}: read it again, and repeat the change if it still makes sense");
                let problem = Self::new(StatusCode::PRECONDITION_FAILED, "stale", detail);
                match HeaderValue::try_from(format!("\"{version}\"")) {
                    Ok(etag) => problem.with_header(header::ETAG, etag),
                    Err(_) => problem,
                }
            }
            DeskError::Forbidden { allowed, .. } => {
                let words: Vec<_> = allowed.iter().map(|status| status.word()).collect();
                let may = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
                let detail = format!("{said}; you may set: {may}");
                Self { allowed: Some(allowed), ..Self::new(StatusCode::CONFLICT, "transition", detail) }
            }
            DeskError::Closed => {
                let detail = format!("{said}; hint: open a new ticket");
                Self { allowed: Some(&[]), ..Self::new(StatusCode::CONFLICT, "closed", detail) }
            }
            DeskError::NoAgent => Self::unprocessable("assignee", "unknown", &said),
            DeskError::EmailTaken => Self::unprocessable("email", "taken", &said),
            DeskError::KeyReused => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "key-reused",
                "this `Idempotency-Key` was used for another request; hint: a new request needs a new key",
            ),
            DeskError::Away(source) if is_late => Self { cause: Some(source.to_string().into()), ..Self::late() },
            DeskError::Away(source) => Self::away(source.to_string()),
            DeskError::Schema(what) => Self::away(what),
            DeskError::Broken(source) => {
                let detail = "something is wrong here, not with the request";
                let problem = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail);
                Self { cause: Some(format!("{source:#}").into()), ..problem }
            }
        }
    }
}
