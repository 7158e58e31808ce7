//! Tickets.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::answer::{change, etag, put_etag};
use super::bodies::{CommentBody, EntryBody, Items, TicketBody, Tickets};
use super::problem::Problem;
use super::request::{Ask, Id, Post};
use super::schema::{Key, NewAssignee, NewComment, NewStatus, NewTicket, OfTicket, Refused, Seen};
use crate::desk::{Change, Filter};
use crate::domain::Priority;
use crate::domain::fields::{self, Fault, TEXT_MAX, TITLE_MAX};

const LIMIT_MAX: i64 = 100;
const LIMIT: i64 = 25;
/// Clients may cache a ticket, and must revalidate it.
const ASK_AGAIN: (HeaderName, HeaderValue) = (header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));

/// Opens a ticket.
#[utoipa::path(post, path = "/api/tickets", request_body = NewTicket,
    params(Key),
    responses((status = 201, body = TicketBody), Refused))]
pub(super) async fn create(mut post: Post) -> Result<Response, Problem> {
    let mut fields = post.fields();
    let title = fields.text("title", |text| fields::line(text, TITLE_MAX));
    let description = fields.text("description", |text| fields::text(text, TEXT_MAX));
    let priority = fields.maybe_word("priority").unwrap_or(Priority::Normal);
    let (title, description) = fields.done(title.zip(description))?;
    change(post, StatusCode::CREATED, Change::Open { title, description, priority }).await
}

/// Lists tickets, newest first; requesters see only their own.
#[utoipa::path(get, path = "/api/tickets",
    params(
        ("status" = Option<String>, Query, description = "a status"),
        ("assignee" = Option<String>, Query, description = "a person's id, `me` or `none`"),
        ("requester" = Option<String>, Query, description = "a person's id"),
        ("priority" = Option<String>, Query, description = "a priority"),
        ("q" = Option<String>, Query, description = "stands in title or description"),
        ("limit" = Option<i64>, Query, description = "1 to 100, 25 if it is left out"),
        ("cursor" = Option<String>, Query, description = "`next` of the page before"),
    ),
    responses((status = 200, body = Tickets), Refused))]
pub(super) async fn list(mut ask: Ask) -> Result<Json<Tickets>, Problem> {
    let mut query = ask.query();
    let mut filter = Filter {
        status: query.maybe_word("status"),
        priority: query.maybe_word("priority"),
        requester: query.maybe_id("requester"),
        text: query.maybe_text("q", |text| fields::line(text, TITLE_MAX)),
        below: query.maybe_number("cursor", 1, i64::MAX),
        limit: query.maybe_number("limit", 1, LIMIT_MAX).unwrap_or(LIMIT),
        ..Filter::default()
    };
    match query.maybe_text("assignee", |_| Ok(())).as_deref() {
        None => {}
        Some("me") => filter.assignee = Some(ask.person.id),
        Some("none") => filter.unassigned = true,
        Some(id) => match id.parse() {
            Ok(id) => filter.assignee = Some(id),
            Err(_) => query.refuse("assignee", Fault::new("malformed", "must be an id, `me` or `none`")),
        },
    }
    let mut filter = query.done(Some(filter))?;
    let wanted = filter.limit;
    // One more than requested shows whether there is another page.
    filter.limit += 1;
    let caller = ask.caller();
    let mut tickets = ask.desk.tickets(&caller, &filter).await?;
    let has_more = tickets.len() > usize::try_from(wanted).unwrap_or(usize::MAX);
    if has_more {
        tickets.pop();
    }
    let next = tickets.last().filter(|_| has_more).map(|last| last.number.to_string());
    Ok(Json(Tickets { items: tickets.iter().map(|ticket| TicketBody::new(ticket, &caller)).collect(), next }))
}

/// Reads a ticket.
#[utoipa::path(get, path = "/api/tickets/{id}", params(OfTicket),
    responses((status = 200, body = TicketBody), (status = 304, description = "it is the one of `If-None-Match`"),
        Refused))]
pub(super) async fn read(ask: Ask, Id(id): Id) -> Result<Response, Problem> {
    let caller = ask.caller();
    let ticket = ask.desk.ticket(&caller, id).await?;
    let etag = etag(&ticket);
    let mut response = if ask.has(&etag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        Json(TicketBody::new(&ticket, &caller)).into_response()
    };
    put_etag(&mut response, &etag);
    response.headers_mut().extend([ASK_AGAIN]);
    Ok(response)
}

/// Sets a ticket's status; requesters close or reopen their own once it is resolved.
#[utoipa::path(post, path = "/api/tickets/{id}/status", request_body = NewStatus,
    params(OfTicket, Seen, Key),
    responses((status = 200, body = TicketBody), Refused))]
pub(super) async fn set_status(Id(ticket): Id, mut post: Post) -> Result<Response, Problem> {
    let versions = post.versions()?;
    let mut fields = post.fields();
    let to = fields.word("status");
    let to = fields.done(to)?;
    change(post, StatusCode::OK, Change::Status { ticket, versions, to }).await
}

/// Assigns a ticket to an agent, or unassigns it; a closed ticket cannot be changed.
#[utoipa::path(post, path = "/api/tickets/{id}/assignee", request_body = NewAssignee,
    params(OfTicket, Seen, Key),
    responses((status = 200, body = TicketBody), Refused))]
pub(super) async fn assign(Id(ticket): Id, mut post: Post) -> Result<Response, Problem> {
    let versions = post.versions()?;
    let mut fields = post.fields();
    let to = fields.id_or_null("assignee");
    let to = fields.done(to)?;
    change(post, StatusCode::OK, Change::Assignee { ticket, versions, to }).await
}

/// Adds a comment to a ticket that is not closed.
#[utoipa::path(post, path = "/api/tickets/{id}/comments", request_body = NewComment,
    params(OfTicket, Key),
    responses((status = 201, body = CommentBody), Refused))]
pub(super) async fn comment(Id(ticket): Id, mut post: Post) -> Result<Response, Problem> {
    let mut fields = post.fields();
    let body = fields.text("body", |text| fields::text(text, TEXT_MAX));
    let body = fields.done(body)?;
    change(post, StatusCode::CREATED, Change::Comment { ticket, body }).await
}

/// Lists the comments of a ticket, oldest first; of more than 1000, the newest 1000.
#[utoipa::path(get, path = "/api/tickets/{id}/comments", params(OfTicket),
    responses((status = 200, body = Items<CommentBody>), Refused))]
pub(super) async fn comments(ask: Ask, Id(id): Id) -> Result<Json<Items<CommentBody>>, Problem> {
    Ok(Json(Items::of(&ask.desk.comments(&ask.caller(), id).await?)))
}

/// Lists the history of a ticket, oldest first; of more than 1000, the newest 1000.
#[utoipa::path(get, path = "/api/tickets/{id}/history", params(OfTicket),
    responses((status = 200, body = Items<EntryBody>), Refused))]
pub(super) async fn history(ask: Ask, Id(id): Id) -> Result<Json<Items<EntryBody>>, Problem> {
    Ok(Json(Items::of(&ask.desk.history(&ask.caller(), id).await?)))
}
