//! The worker's records in SQLite: times are milliseconds, ids are text.

use async_trait::async_trait;
use jiff::Timestamp;
use relevo::stores::sqlite::inbox::Transaction;
use sqlx::Row as _;
use sqlx::query::Query;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::books::{Books, added};
use super::figures::{Agent, DayChange, Figure};
use crate::mail::Letter;

const SENT: &str = "INSERT INTO email (message_id, event_id, ticket_id, person_id, recipient, subject, language,
        correlation_id, body_text, body_html, sent_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

const FIGURE: &str =
    "SELECT number, status, requester_id, agent_id, agent_name, version, opened_at, first_response_at, resolved_at
    FROM figure_ticket WHERE ticket_id = ?";

const KEEP: &str = "INSERT INTO figure_ticket (ticket_id, number, status, requester_id, agent_id, agent_name,
        opened_at, first_response_at, resolved_at, version)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (ticket_id) DO UPDATE SET status = excluded.status, agent_id = excluded.agent_id,
        agent_name = excluded.agent_name, first_response_at = excluded.first_response_at,
        resolved_at = excluded.resolved_at, version = excluded.version";

const COUNT: &str = "INSERT INTO figure_day (day, agent_id, agent_name, opened, resolved, first_responses, first_response_ms, resolution_ms)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (day, coalesce(agent_id, '')) DO UPDATE SET
        agent_name = excluded.agent_name, opened = opened + excluded.opened, resolved = resolved + excluded.resolved,
        first_responses = first_responses + excluded.first_responses,
        first_response_ms = first_response_ms + excluded.first_response_ms,
        resolution_ms = resolution_ms + excluded.resolution_ms";

#[async_trait]
impl Books for Transaction {
    async fn sent(&mut self, letter: &Letter) -> Result<(), sqlx::Error> {
        let query = sqlx::query(SENT).bind(&letter.message_id).bind(letter.event_id.to_string());
        let query = query.bind(letter.ticket_id.to_string()).bind(letter.to.id.to_string()).bind(&letter.to.email);
        let query = query.bind(&letter.subject).bind(letter.language().word()).bind(&letter.correlation_id);
        let query = query.bind(&letter.text).bind(&letter.html).bind(Timestamp::now().as_millisecond());
        query.execute(&mut **self).await?;
        Ok(())
    }

    async fn figure(&mut self, ticket: Uuid) -> Result<Option<Figure>, sqlx::Error> {
        let row = sqlx::query(FIGURE).bind(ticket.to_string()).fetch_optional(&mut **self).await?;
        row.map(|row| read(ticket, &row)).transpose()
    }

    async fn keep(&mut self, figure: &Figure) -> Result<(), sqlx::Error> {
        let agent = figure.agent.as_ref();
        let query = sqlx::query(KEEP).bind(figure.ticket_id.to_string()).bind(figure.number);
        let query = query.bind(figure.status.word()).bind(figure.requester_id.to_string());
        let query = query.bind(agent.map(|agent| agent.id.to_string())).bind(agent.map(|agent| &agent.name));
        let query = query.bind(figure.opened_at.as_millisecond());
        let query = query.bind(figure.first_response_at.map(Timestamp::as_millisecond));
        let query = query.bind(figure.resolved_at.map(Timestamp::as_millisecond)).bind(figure.version);
        query.execute(&mut **self).await?;
        Ok(())
    }

    async fn count(&mut self, change: &DayChange) -> Result<(), sqlx::Error> {
        let agent = change.agent.as_ref();
        let query = sqlx::query(COUNT).bind(change.day.to_string());
        let query = query.bind(agent.map(|agent| agent.id.to_string())).bind(agent.map(|agent| &agent.name));
        let query = added(change).into_iter().fold(query, Query::bind);
        query.execute(&mut **self).await?;
        Ok(())
    }
}

fn read(ticket_id: Uuid, row: &SqliteRow) -> Result<Figure, sqlx::Error> {
    fn wrong(error: impl std::error::Error + Send + Sync + 'static) -> sqlx::Error {
        sqlx::Error::Decode(Box::new(error))
    }
    let time = |column: &str| -> Result<Option<Timestamp>, sqlx::Error> {
        let millis: Option<i64> = row.try_get(column)?;
        millis.map(Timestamp::from_millisecond).transpose().map_err(wrong)
    };
    let agent = match (row.try_get::<Option<&str>, _>("agent_id")?, row.try_get("agent_name")?) {
        (Some(id), Some(name)) => Some(Agent { id: id.parse().map_err(wrong)?, name }),
        _ => None,
    };
    Ok(Figure {
        ticket_id,
        number: row.try_get("number")?,
        status: row.try_get::<&str, _>("status")?.parse().map_err(wrong)?,
        requester_id: row.try_get::<&str, _>("requester_id")?.parse().map_err(wrong)?,
        agent,
        opened_at: time("opened_at")?.ok_or(sqlx::Error::RowNotFound)?,
        first_response_at: time("first_response_at")?,
        resolved_at: time("resolved_at")?,
        version: row.try_get("version")?,
    })
}
