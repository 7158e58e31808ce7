//! The worker's books in PostgreSQL.
//!
//! No statement is prepared: the transaction is the inbox's, which may come through a pooler.

use async_trait::async_trait;
use jiff::Timestamp;
use relevo::stores::postgres::inbox::Transaction;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use sqlx::query::Query;
use uuid::Uuid;

use super::books::{Books, added};
use super::figures::{Agent, DayChange, Figure};
use crate::mail::Letter;

const SENT: &str =
    "INSERT INTO ticketflow.email (message_id, event_id, ticket_id, person_id, recipient, subject, language,
        correlation_id, body_text, body_html, sent_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, to_timestamp($11 / 1000.0))";

const FIGURE: &str = "SELECT number, status, requester_id, agent_id, agent_name, version,
        (extract(epoch FROM opened_at) * 1000)::bigint AS opened_ms,
        (extract(epoch FROM first_response_at) * 1000)::bigint AS first_response_ms,
        (extract(epoch FROM resolved_at) * 1000)::bigint AS resolved_ms
    FROM ticketflow.figure_ticket WHERE ticket_id = $1";

const KEEP: &str = "INSERT INTO ticketflow.figure_ticket AS f (ticket_id, number, status, requester_id, agent_id, agent_name,
        opened_at, first_response_at, resolved_at, version)
    VALUES ($1, $2, $3, $4, $5, $6, to_timestamp($7 / 1000.0), to_timestamp($8 / 1000.0), to_timestamp($9 / 1000.0), $10)
    ON CONFLICT (ticket_id) DO UPDATE SET status = excluded.status, agent_id = excluded.agent_id,
        agent_name = excluded.agent_name, first_response_at = excluded.first_response_at,
        resolved_at = excluded.resolved_at, version = excluded.version";

const COUNT: &str = "INSERT INTO ticketflow.figure_day AS f (day, agent_id, agent_name, opened, resolved, first_responses,
        first_response_ms, resolution_ms)
    VALUES ($1::date, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (day, (coalesce(agent_id, '00000000-0000-0000-0000-000000000000'::uuid))) DO UPDATE SET
        agent_name = excluded.agent_name, opened = f.opened + excluded.opened, resolved = f.resolved + excluded.resolved,
        first_responses = f.first_responses + excluded.first_responses,
        first_response_ms = f.first_response_ms + excluded.first_response_ms,
        resolution_ms = f.resolution_ms + excluded.resolution_ms";

#[async_trait]
impl Books for Transaction {
    async fn sent(&mut self, letter: &Letter) -> Result<(), sqlx::Error> {
        let query = sqlx::query(SENT).persistent(false).bind(&letter.message_id).bind(letter.event_id);
        let query = query.bind(letter.ticket_id).bind(letter.to.id).bind(&letter.to.email).bind(&letter.subject);
        let query = query.bind(letter.language().word()).bind(&letter.correlation_id).bind(&letter.text);
        query.bind(&letter.html).bind(Timestamp::now().as_millisecond()).execute(&mut **self).await?;
        Ok(())
    }

    async fn figure(&mut self, ticket: Uuid) -> Result<Option<Figure>, sqlx::Error> {
        let row = sqlx::query(FIGURE).persistent(false).bind(ticket).fetch_optional(&mut **self).await?;
        row.map(|row| read(ticket, &row)).transpose()
    }

    async fn keep(&mut self, figure: &Figure) -> Result<(), sqlx::Error> {
        let agent = figure.agent.as_ref();
        let query = sqlx::query(KEEP).persistent(false).bind(figure.ticket_id).bind(figure.number);
        let query = query.bind(figure.status.word()).bind(figure.requester_id).bind(agent.map(|agent| agent.id));
        let query = query.bind(agent.map(|agent| &agent.name)).bind(figure.opened_at.as_millisecond());
        let query = query.bind(figure.first_response_at.map(Timestamp::as_millisecond));
        let query = query.bind(figure.resolved_at.map(Timestamp::as_millisecond)).bind(figure.version);
        query.execute(&mut **self).await?;
        Ok(())
    }

    async fn count(&mut self, change: &DayChange) -> Result<(), sqlx::Error> {
        let agent = change.agent.as_ref();
        let query = sqlx::query(COUNT).persistent(false).bind(change.day.to_string());
        let query = query.bind(agent.map(|agent| agent.id)).bind(agent.map(|agent| &agent.name));
        let query = added(change).into_iter().fold(query, Query::bind);
        query.execute(&mut **self).await?;
        Ok(())
    }
}

fn read(ticket_id: Uuid, row: &PgRow) -> Result<Figure, sqlx::Error> {
    let time = |column: &str| -> Result<Option<Timestamp>, sqlx::Error> {
        let millis: Option<i64> = row.try_get(column)?;
        millis.map(Timestamp::from_millisecond).transpose().map_err(|error| sqlx::Error::Decode(error.into()))
    };
    let agent = match (row.try_get("agent_id")?, row.try_get("agent_name")?) {
        (Some(id), Some(name)) => Some(Agent { id, name }),
        _ => None,
    };
    Ok(Figure {
        ticket_id,
        number: row.try_get("number")?,
        status: row.try_get::<&str, _>("status")?.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
        requester_id: row.try_get("requester_id")?,
        agent,
        opened_at: time("opened_ms")?.ok_or(sqlx::Error::RowNotFound)?,
        first_response_at: time("first_response_ms")?,
        resolved_at: time("resolved_ms")?,
        version: row.try_get("version")?,
    })
}
