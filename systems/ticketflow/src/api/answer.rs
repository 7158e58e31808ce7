//! Responses to changes.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;

use super::bodies::{CommentBody, PersonBody, TicketBody};
use super::problem::Problem;
use super::request::Post;
use crate::desk::{Answer, Change, Changed};
use crate::domain::{Caller, Ticket};

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Makes a change and responds.
pub(super) async fn change(post: Post, status: StatusCode, change: Change) -> Result<Response, Problem> {
    let (desk, caller) = (post.ask.desk.clone(), post.ask.caller());
    let tell = move |changed: &Changed| response(status, changed, &caller);
    Ok(respond(&desk.change(&post.act(), change, &tell).await?))
}

/// The response to a change. It may be sent again later, from the database.
pub(super) fn response(status: StatusCode, changed: &Changed, caller: &Caller) -> Answer {
    match changed {
        Changed::Ticket(ticket) => Answer {
            location: (status == StatusCode::CREATED).then(|| format!("/api/tickets/{}", ticket.id)),
            etag: Some(etag(ticket)),
            ..answer(status, &TicketBody::new(ticket, caller))
        },
        Changed::Comment(comment) => answer(status, &CommentBody::from(comment)),
        Changed::Person(person) => answer(status, &PersonBody::from(person)),
    }
}

fn answer(status: StatusCode, body: &impl Serialize) -> Answer {
    let body = serde_json::to_string(body).expect("our own bodies are always JSON");
    Answer { status: status.as_u16(), location: None, etag: None, body, is_repeat: false }
}

pub(super) fn respond(answer: &Answer) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    let mut response = (status, [(header::CONTENT_TYPE, "application/json")], answer.body.clone()).into_response();
    if let Some(location) = &answer.location {
        put(&mut response, header::LOCATION, location);
    }
    if let Some(etag) = &answer.etag {
        put_etag(&mut response, etag);
    }
    if answer.is_repeat {
        put(&mut response, REPLAYED, "true");
    }
    response
}

/// The tag includes the caller: the allowed statuses depend on the caller, and a version alone would match another caller's response.
pub(super) fn put_etag(response: &mut Response, etag: &str) {
    put(response, header::ETAG, etag);
    put(response, header::VARY, "Authorization");
}

fn put(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

pub(super) fn etag(ticket: &Ticket) -> String {
    format!("\"{}\"", ticket.version)
}
