//! People.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use uuid::Uuid;

use super::answer::{change, respond, response};
use super::bodies::{Items, PersonBody};
use super::problem::Problem;
use super::request::{Ask, PersonId, Post};
use super::schema::{Key, NewPerson, Nothing, OfPerson, Refused};

use crate::desk::{Change, Changed, Listing, Token, Whom};
use crate::domain::fields::{self, Fault, NAME_MAX};
use crate::domain::{Language, Person};

/// Returns the caller.
#[utoipa::path(get, path = "/api/me",
    responses((status = 200, body = PersonBody), Refused))]
pub(super) async fn me(ask: Ask) -> Json<PersonBody> {
    Json(PersonBody::from(&ask.person))
}

/// Lists people, by name; for agents and admins.
#[utoipa::path(get, path = "/api/people",
    params(("role" = Option<String>, Query, description = "a role"),
        ("disabled" = Option<bool>, Query, description = "`true` lists those who are disabled, instead of those who are not")),
    responses((status = 200, body = Items<PersonBody>), Refused))]
pub(super) async fn list(mut ask: Ask) -> Result<Json<Items<PersonBody>>, Problem> {
    ask.must_answer()?;
    let mut query = ask.query();
    let role = query.maybe_word("role");
    let disabled = query.maybe_text("disabled", |word| match word {
        "true" | "false" => Ok(()),
        _ => Err(Fault::new("unknown", "must be one of true, false")),
    });
    let listing = Listing { role, disabled: disabled.as_deref() == Some("true") };
    let listing = query.done(Some(listing))?;
    Ok(Json(Items::of(&ask.desk.people(&listing).await?)))
}

/// Adds a person; for admins. The token is only in this response, and not in that of a repeat.
#[utoipa::path(post, path = "/api/people", request_body = NewPerson,
    params(Key),
    responses((status = 201, body = PersonBody), Refused))]
pub(super) async fn add(mut post: Post) -> Result<Response, Problem> {
    post.must_be_admin("only admins add people")?;
    let mut fields = post.fields();
    let name = fields.text("name", |text| fields::line(text, NAME_MAX));
    let email = fields.text("email", fields::email);
    let role = fields.word("role");
    let language = fields.maybe_word("language").unwrap_or(Language::Es);
    let ((name, email), role) = fields.done(name.zip(email).zip(role))?;
    let person = Person { id: Uuid::now_v7(), name, email, role, language };
    let token = Token::random();
    let whole = PersonBody::from(&person).with_token(&token);
    respond_once(post, StatusCode::CREATED, Change::Person { person, token }, whole).await
}

/// Replaces a person's token; for admins. The old one is no longer valid, and a disabled person is enabled again. The token is only
/// in this response, and not in that of a repeat.
#[utoipa::path(post, path = "/api/people/{id}/token", request_body = Nothing,
    params(OfPerson, Key),
    responses((status = 200, body = PersonBody), Refused))]
pub(super) async fn set_token(PersonId(id): PersonId, mut post: Post) -> Result<Response, Problem> {
    post.must_be_admin("only admins give tokens")?;
    post.fields().done(Some(()))?;
    let person = post.ask.desk.person(&Whom::Id(id)).await?;
    let token = Token::random();
    let whole = PersonBody::from(&person).with_token(&token);
    respond_once(post, StatusCode::OK, Change::Token { person, token }, whole).await
}

/// Disables a person; for admins. They are rejected and get no more tickets, until they have a new token. Their tickets and comments
/// stay.
#[utoipa::path(post, path = "/api/people/{id}/disable", request_body = Nothing,
    params(OfPerson, Key),
    responses((status = 200, body = PersonBody), Refused))]
pub(super) async fn disable(PersonId(id): PersonId, mut post: Post) -> Result<Response, Problem> {
    post.must_be_admin("only admins disable people")?;
    post.fields().done(Some(()))?;
    let person = post.ask.desk.person(&Whom::Id(id)).await?;
    change(post, StatusCode::OK, Change::Disable { person }).await
}

/// Makes a change and responds with the token. The stored response for a repeat does not have it.
async fn respond_once(post: Post, status: StatusCode, change: Change, whole: PersonBody) -> Result<Response, Problem> {
    let (desk, caller) = (post.ask.desk.clone(), post.ask.caller());
    let tell = move |changed: &Changed| response(status, changed, &caller);
    let kept = desk.change(&post.act(), change, &tell).await?;
    if kept.is_repeat { Ok(respond(&kept)) } else { Ok((status, Json(whole)).into_response()) }
}
