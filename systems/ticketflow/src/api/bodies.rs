//! The JSON of the API.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::desk;
use crate::domain::{Caller, Comment, Contact, Entry, Kind, Language, Person, Priority, Role, Status, Ticket};

/// A list.
#[derive(Serialize, ToSchema)]
pub(super) struct Items<T> {
    pub(super) items: Vec<T>,
}

impl<T> Items<T> {
    pub(super) fn of<'a, S>(items: &'a [S]) -> Self
    where
        T: From<&'a S>,
    {
        Self { items: items.iter().map(T::from).collect() }
    }
}

/// A page of tickets, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct Tickets {
    pub(super) items: Vec<TicketBody>,
    /// The cursor of the next page; null on the last.
    pub(super) next: Option<String>,
}

/// A person in a ticket.
#[derive(Serialize, ToSchema)]
pub(super) struct Named {
    id: Uuid,
    name: String,
}

impl From<&Contact> for Named {
    fn from(contact: &Contact) -> Self {
        Self { id: contact.id, name: contact.name.clone() }
    }
}

/// A ticket, as shown to the caller.
#[derive(Serialize, ToSchema)]
#[schema(as = Ticket)]
pub(super) struct TicketBody {
    id: Uuid,
    /// Shown to users.
    number: i64,
    title: String,
    description: String,
    status: Status,
    /// The statuses that the caller may set now.
    allowed: &'static [Status],
    priority: Priority,
    requester: Named,
    assignee: Option<Named>,
    /// Also in the `ETag`.
    version: i64,
    created_at: Timestamp,
    updated_at: Timestamp,
    /// When a person other than the requester first commented or changed the status.
    first_response_at: Option<Timestamp>,
    resolved_at: Option<Timestamp>,
}

impl TicketBody {
    pub(super) fn new(ticket: &Ticket, reader: &Caller) -> Self {
        Self {
            id: ticket.id,
            number: ticket.number,
            title: ticket.title.clone(),
            description: ticket.description.clone(),
            status: ticket.status,
            allowed: ticket.allowed(reader),
            priority: ticket.priority,
            requester: Named::from(&ticket.requester),
            assignee: ticket.assignee.as_ref().map(Named::from),
            version: ticket.version,
            created_at: ticket.created_at,
            updated_at: ticket.updated_at,
            first_response_at: ticket.first_response_at,
            resolved_at: ticket.resolved_at,
        }
    }
}

/// The actor of a change.
#[derive(Serialize, ToSchema)]
pub(super) struct Actor {
    id: Uuid,
    name: String,
    role: Role,
}

impl From<&Caller> for Actor {
    fn from(caller: &Caller) -> Self {
        Self { id: caller.id, name: caller.name.clone(), role: caller.role }
    }
}

/// A comment on a ticket.
#[derive(Serialize, ToSchema)]
#[schema(as = Comment)]
pub(super) struct CommentBody {
    id: Uuid,
    ticket_id: Uuid,
    author: Actor,
    body: String,
    created_at: Timestamp,
}

impl From<&Comment> for CommentBody {
    fn from(comment: &Comment) -> Self {
        Self {
            id: comment.id,
            ticket_id: comment.ticket,
            author: Actor::from(&comment.author),
            body: comment.body.clone(),
            created_at: comment.created_at,
        }
    }
}

/// A line of a ticket's history.
#[derive(Serialize, ToSchema)]
#[schema(as = HistoryEntry)]
pub(super) struct EntryBody {
    at: Timestamp,
    actor: Actor,
    kind: Kind,
    /// The previous status or person's id.
    from: Option<String>,
    /// The new status or person's id.
    to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    correlation_id: String,
}

impl From<&Entry> for EntryBody {
    fn from(entry: &Entry) -> Self {
        Self {
            at: entry.at,
            actor: Actor::from(&entry.actor),
            kind: entry.kind,
            from: entry.from.clone(),
            to: entry.to.clone(),
            comment: entry.comment.clone(),
            correlation_id: entry.correlation_id.clone(),
        }
    }
}

/// A person.
#[derive(Serialize, ToSchema)]
#[schema(as = Person)]
pub(super) struct PersonBody {
    id: Uuid,
    name: String,
    email: String,
    role: Role,
    language: Language,
    /// Shown once, when it is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl From<&Person> for PersonBody {
    fn from(person: &Person) -> Self {
        Self {
            id: person.id,
            name: person.name.clone(),
            email: person.email.clone(),
            role: person.role,
            language: person.language,
            token: None,
        }
    }
}

impl PersonBody {
    pub(super) fn with_token(self, token: &desk::Token) -> Self {
        Self { token: Some(token.expose().to_owned()), ..self }
    }
}

/// A sent e-mail.
#[derive(Serialize, ToSchema)]
#[schema(as = Email)]
pub(super) struct EmailBody {
    event_id: Uuid,
    ticket_id: Uuid,
    number: i64,
    to: String,
    subject: String,
    language: String,
    message_id: String,
    correlation_id: String,
    text: String,
    html: String,
    sent_at: Timestamp,
}

impl From<&desk::Email> for EmailBody {
    fn from(email: &desk::Email) -> Self {
        let email = email.clone();
        Self {
            event_id: email.event_id,
            ticket_id: email.ticket_id,
            number: email.number,
            to: email.to,
            subject: email.subject,
            language: email.language,
            message_id: email.message_id,
            correlation_id: email.correlation_id,
            text: email.text,
            html: email.html,
            sent_at: email.sent_at,
        }
    }
}

/// The figures of the worker, the backlog and the dead letters.
#[derive(Serialize, ToSchema)]
#[schema(as = Figures)]
pub(super) struct FiguresBody {
    /// The number of tickets in each status.
    pub(super) by_status: BTreeMap<String, i64>,
    /// The same by current assignee.
    pub(super) by_agent: Vec<AgentTicketsBody>,
    /// The figures of each day, newest first.
    pub(super) days: Vec<DayBody>,
    /// Events that were not published.
    pub(super) pending: u64,
    /// Dead letters, by consumer.
    pub(super) dead: BTreeMap<String, u64>,
}

/// The current tickets of an agent.
#[derive(Serialize, ToSchema)]
#[schema(as = AgentTickets)]
pub(super) struct AgentTicketsBody {
    /// Null for tickets without an assignee.
    agent: Option<AgentBody>,
    /// Their number in each status.
    by_status: BTreeMap<String, i64>,
}

impl AgentTicketsBody {
    pub(super) fn new(agent: Option<desk::Agent>, by_status: BTreeMap<String, i64>) -> Self {
        Self { agent: agent.map(AgentBody::from), by_status }
    }
}

/// The work of an agent on a day, whatever the assignee.
#[derive(Serialize, ToSchema)]
#[schema(as = Day)]
pub(super) struct DayBody {
    /// From midnight to midnight UTC, as `2026-11-16`.
    day: String,
    /// The agent; null on the line of opened tickets.
    agent: Option<AgentBody>,
    opened: i64,
    /// Only the first time counts for each ticket.
    resolved: i64,
    /// First comments or statuses by a person other than the requester.
    first_responses: i64,
    first_response_seconds_avg: Option<f64>,
    resolution_seconds_avg: Option<f64>,
}

/// An agent or an admin.
#[derive(Serialize, ToSchema)]
#[schema(as = Agent)]
pub(super) struct AgentBody {
    id: String,
    name: String,
}

impl From<desk::Agent> for AgentBody {
    fn from(agent: desk::Agent) -> Self {
        Self { id: agent.id, name: agent.name }
    }
}

impl From<&desk::Day> for DayBody {
    fn from(day: &desk::Day) -> Self {
        Self {
            day: day.day.clone(),
            agent: day.agent.clone().map(AgentBody::from),
            opened: day.opened,
            resolved: day.resolved,
            first_responses: day.first_responses,
            first_response_seconds_avg: average(day.first_response_ms, day.first_responses),
            resolution_seconds_avg: average(day.resolution_ms, day.resolved),
        }
    }
}

/// In seconds, to the millisecond.
#[expect(clippy::cast_precision_loss, reason = "milliseconds of years fit into 52 bits")]
fn average(ms: i64, count: i64) -> Option<f64> {
    (count > 0).then(|| (ms / count) as f64 / 1000.0)
}
