//! E-mails and figures.

use axum::Json;
use axum::extract;

use super::State;
use super::bodies::{AgentTicketsBody, DayBody, EmailBody, FiguresBody, Items};
use super::problem::Problem;
use super::request::Ask;
use super::schema::Refused;

const LIMIT_MAX: i64 = 100;
const LIMIT: i64 = 25;

/// Lists sent e-mails, newest first; requesters see only their own.
#[utoipa::path(get, path = "/api/emails",
    params(("ticket" = Option<String>, Query, description = "a ticket's id"),
        ("limit" = Option<i64>, Query, description = "1 to 100, 25 if it is left out")),
    responses((status = 200, body = Items<EmailBody>), Refused))]
pub(super) async fn emails(mut ask: Ask) -> Result<Json<Items<EmailBody>>, Problem> {
    let mut query = ask.query();
    let ticket = query.maybe_id("ticket");
    let limit = query.maybe_number("limit", 1, LIMIT_MAX).unwrap_or(LIMIT);
    let (ticket, limit) = query.done(Some((ticket, limit)))?;
    Ok(Json(Items::of(&ask.desk.emails(&ask.caller(), ticket, limit).await?)))
}

/// Returns the figures, the backlog and the dead letters; for agents and admins.
#[utoipa::path(get, path = "/api/figures",
    responses((status = 200, body = FiguresBody), Refused))]
pub(super) async fn figures(
    extract::State(api): extract::State<State>,
    ask: Ask,
) -> Result<Json<FiguresBody>, Problem> {
    ask.must_answer()?;
    let figures = ask.desk.figures().await?;
    let flow = api.health.flow().await.map_err(|error| Problem::away(format!("{error:#}")))?;
    let by_agent = figures.by_agent.into_iter().map(|(agent, by_status)| AgentTicketsBody::new(agent, by_status));
    Ok(Json(FiguresBody {
        by_status: figures.by_status,
        by_agent: by_agent.collect(),
        days: figures.days.iter().map(DayBody::from).collect(),
        pending: flow.pending,
        dead: flow.dead,
    }))
}
