//! Queries: tickets, comments, history, people, e-mails and figures.

use std::collections::BTreeMap;

use jiff::Timestamp;
use uuid::Uuid;

use super::columns::{At, Id};
use super::link::{Link, Row, Values};
use super::rows::{self, people, tickets};
use super::{DeskError, Filter, LINES_MAX, Listing};
use crate::domain::{Caller, Comment, Entry, Person, Priority, Role, Status, Ticket};

/// The maximum number of days that are returned, each with all its agents.
const DAYS_MAX: i64 = 366;
/// The maximum number of lines of days and agents: a year of fifty agents.
const DAY_LINES_MAX: i64 = 20_000;
/// The maximum number of lines of agents and statuses that are returned.
const AGENT_LINES_MAX: i64 = 5000;

/// A sent e-mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Email {
    /// Its event.
    pub event_id: Uuid,
    /// The ticket.
    pub ticket_id: Uuid,
    /// The ticket's number.
    pub number: i64,
    /// The recipient.
    pub to: String,
    /// Its subject.
    pub subject: String,
    /// Its language.
    pub language: String,
    /// Its Message-ID.
    pub message_id: String,
    /// The correlation id of the request that caused it.
    pub correlation_id: String,
    /// As plain text.
    pub text: String,
    /// As HTML.
    pub html: String,
    /// When.
    pub sent_at: Timestamp,
}

/// The figures of the worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The number of tickets in each status.
    pub by_status: BTreeMap<String, i64>,
    /// The same by current assignee: id and name, or none.
    pub by_agent: BTreeMap<Option<Agent>, BTreeMap<String, i64>>,
    /// The figures of each day, newest first: first the line without an agent, then the agents by name.
    pub days: Vec<Day>,
}

/// An agent or an admin in the figures.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Agent {
    /// The displayed name.
    pub name: String,
    /// The id, which never changes.
    pub id: String,
}

/// The work of an agent on a day, whatever the assignee. Opened tickets are on a line without an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Day {
    /// From midnight to midnight UTC, as `2026-11-16`.
    pub day: String,
    /// The agent; none on the line of opened tickets.
    pub agent: Option<Agent>,
    /// Tickets opened.
    pub opened: i64,
    /// Tickets that the agent resolved; only the first time counts.
    pub resolved: i64,
    /// First responses by the agent: the first comment or status by a person other than the requester.
    pub first_responses: i64,
    /// Their total time.
    pub first_response_ms: i64,
    /// The total time of the resolutions.
    pub resolution_ms: i64,
}

pub(super) async fn ticket(link: &Link, caller: &Caller, id: Uuid) -> Result<Ticket, DeskError> {
    let row = link.row(tickets!("WHERE t.id = $1"), &[&Id(id)]).await?;
    let ticket = row.as_ref().map(rows::ticket).transpose()?;
    ticket.filter(|ticket| ticket.is_seen_by(caller)).ok_or(DeskError::NoTicket)
}

pub(super) async fn list(link: &Link, caller: &Caller, filter: &Filter) -> Result<Vec<Ticket>, DeskError> {
    let sql = tickets!(
        "WHERE ($1 IS NULL OR t.status = $1) AND ($2 IS NULL OR t.priority = $2) \
         AND ($3 IS NULL OR t.requester_id = $3) AND ($4 IS NULL OR t.requester_id = $4) \
         AND ($5 IS NULL OR t.assignee_id = $5) AND ($6 = 0 OR t.assignee_id IS NULL) \
         AND ($7 IS NULL OR lower(t.title) LIKE lower($7) ESCAPE '\\' OR lower(t.description) LIKE lower($7) ESCAPE '\\') \
         AND ($8 IS NULL OR t.number < $8) ORDER BY t.number DESC LIMIT $9"
    );
    let own = (!caller.role.answers()).then_some(Id(caller.id));
    let unassigned = i64::from(filter.unassigned);
    let values: Values = &[
        &filter.status.map(Status::word),
        &filter.priority.map(Priority::word),
        &own,
        &filter.requester.map(Id),
        &filter.assignee.map(Id),
        &unassigned,
        &filter.text.as_deref().map(pattern),
        &filter.below,
        &filter.limit,
    ];
    link.rows(sql, values).await?.iter().map(rows::ticket).collect()
}

/// A pattern that finds the text anywhere, with the wildcards of LIKE escaped. The database converts it to lower case like the
/// columns: SQLite does so for ASCII only.
fn pattern(text: &str) -> String {
    let mut pattern = String::from("%");
    for character in text.chars() {
        if matches!(character, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern + "%"
}

pub(super) async fn comments(link: &Link, caller: &Caller, id: Uuid) -> Result<Vec<Comment>, DeskError> {
    ticket(link, caller, id).await?;
    let sql = "SELECT c.id, p.id, p.name, p.role, c.body, c.created_at FROM ticketflow.history AS h \
               JOIN ticketflow.comment AS c ON c.id = h.comment_id JOIN ticketflow.person AS p ON p.id = c.author_id \
               WHERE h.ticket_id = $1 ORDER BY h.version DESC LIMIT $2";
    let rows = link.rows(sql, &[&Id(id), &LINES_MAX]).await?;
    let comment = |row: &Row| -> Result<Comment, DeskError> {
        Ok(Comment {
            id: rows::id(row, 0)?,
            ticket: id,
            author: rows::caller(row, 1)?,
            body: row.get(4)?,
            created_at: row.get::<At>(5)?.0,
        })
    };
    rows.iter().rev().map(comment).collect()
}

pub(super) async fn history(link: &Link, caller: &Caller, id: Uuid) -> Result<Vec<Entry>, DeskError> {
    ticket(link, caller, id).await?;
    let sql = "SELECT h.at, p.id, p.name, p.role, h.kind, h.before, h.after, c.body, h.correlation_id \
               FROM ticketflow.history AS h JOIN ticketflow.person AS p ON p.id = h.actor_id \
               LEFT JOIN ticketflow.comment AS c ON c.id = h.comment_id \
               WHERE h.ticket_id = $1 ORDER BY h.version DESC LIMIT $2";
    let rows = link.rows(sql, &[&Id(id), &LINES_MAX]).await?;
    let entry = |row: &Row| -> Result<Entry, DeskError> {
        Ok(Entry {
            at: row.get::<At>(0)?.0,
            actor: rows::caller(row, 1)?,
            kind: row.word(4)?,
            from: row.get(5)?,
            to: row.get(6)?,
            comment: row.get(7)?,
            correlation_id: row.get(8)?,
        })
    };
    rows.iter().rev().map(entry).collect()
}

pub(super) async fn people(link: &Link, listing: &Listing) -> Result<Vec<Person>, DeskError> {
    let sql = people!("WHERE ($1 IS NULL OR role = $1) AND (disabled_at IS NOT NULL) = $2 ORDER BY name, id LIMIT $3");
    let values: Values = &[&listing.role.map(Role::word), &listing.disabled, &LINES_MAX];
    link.rows(sql, values).await?.iter().map(rows::person).collect()
}

pub(super) async fn emails(
    link: &Link,
    caller: &Caller,
    ticket: Option<Uuid>,
    limit: i64,
) -> Result<Vec<Email>, DeskError> {
    let sql = "SELECT e.event_id, e.ticket_id, t.number, e.recipient, e.subject, e.language, e.message_id, \
               e.correlation_id, e.body_text, e.body_html, e.sent_at \
               FROM ticketflow.email AS e JOIN ticketflow.ticket AS t ON t.id = e.ticket_id \
               WHERE ($1 IS NULL OR e.person_id = $1) AND ($2 IS NULL OR e.ticket_id = $2) \
               ORDER BY e.sent_at DESC, e.event_id DESC LIMIT $3";
    let own = (!caller.role.answers()).then_some(Id(caller.id));
    let rows = link.rows(sql, &[&own, &ticket.map(Id), &limit]).await?;
    let email = |row: &Row| -> Result<Email, DeskError> {
        Ok(Email {
            event_id: rows::id(row, 0)?,
            ticket_id: rows::id(row, 1)?,
            number: row.get(2)?,
            to: row.get(3)?,
            subject: row.get(4)?,
            language: row.get(5)?,
            message_id: row.get(6)?,
            correlation_id: row.get(7)?,
            text: row.get(8)?,
            html: row.get(9)?,
            sent_at: row.get::<At>(10)?.0,
        })
    };
    rows.iter().map(email).collect()
}

pub(super) async fn figures(link: &Link) -> Result<Figures, DeskError> {
    let mut figures = Figures::default();
    let sql = "SELECT status, count(*) FROM ticketflow.figure_ticket GROUP BY status";
    for row in link.rows(sql, &[]).await? {
        figures.by_status.insert(row.get(0)?, row.get(1)?);
    }
    let sql = "SELECT CAST(agent_id AS text), max(agent_name), status, count(*) FROM ticketflow.figure_ticket \
               GROUP BY agent_id, status LIMIT $1";
    for row in link.rows(sql, &[&AGENT_LINES_MAX]).await? {
        let by_status = figures.by_agent.entry(agent(&row, 0)?).or_default();
        by_status.insert(row.get(2)?, row.get(3)?);
    }
    let sql = "SELECT CAST(day AS text), CAST(agent_id AS text), agent_name, opened, resolved, first_responses, \
               first_response_ms, resolution_ms FROM ticketflow.figure_day WHERE day IN ( \
               SELECT DISTINCT day FROM ticketflow.figure_day ORDER BY day DESC LIMIT $1) ORDER BY day DESC LIMIT $2";
    for row in link.rows(sql, &[&DAYS_MAX, &DAY_LINES_MAX]).await? {
        figures.days.push(Day {
            day: row.get(0)?,
            agent: agent(&row, 1)?,
            opened: row.get(3)?,
            resolved: row.get(4)?,
            first_responses: row.get(5)?,
            first_response_ms: row.get(6)?,
            resolution_ms: row.get(7)?,
        });
    }
    // The databases sort names and nulls differently.
    figures.days.sort_by(|one, other| other.day.cmp(&one.day).then_with(|| one.agent.cmp(&other.agent)));
    Ok(figures)
}

/// Id and name, from this column on; both are null without a person.
fn agent(row: &Row, column: usize) -> Result<Option<Agent>, DeskError> {
    let (id, name): (Option<String>, Option<String>) = (row.get(column)?, row.get(column + 1)?);
    Ok(id.zip(name).map(|(id, name)| Agent { name, id }))
}
