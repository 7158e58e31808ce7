//! Events of tickets: the bytes that the worker and other consumers read.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Caller, Contact, Priority, Status, Ticket};

/// The header with the event's id.
pub const EVENT_ID: &str = "x-event-id";
/// The header with the id of the request that caused it, up to the e-mail.
pub const CORRELATION_ID: &str = "x-correlation-id";

/// A change of a ticket. Its id is the message's id, and the ticket's id is the message's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The message's id.
    pub event_id: Uuid,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
    /// When.
    pub occurred_at: Timestamp,
    /// The ticket after the change.
    pub ticket: EventTicket,
    /// Who did it.
    pub actor: Caller,
}

/// What happened to a ticket; its name is the message's topic and type, and so the routing key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum What {
    /// It was opened.
    #[serde(rename = "ticket.created")]
    Created,
    /// Its status changed.
    #[serde(rename = "ticket.status.changed")]
    StatusChanged {
        /// The previous status.
        from: Status,
        /// The new status.
        to: Status,
    },
    /// It was assigned or unassigned.
    #[serde(rename = "ticket.assigned")]
    Assigned {
        /// The previous assignee.
        from: Option<Uuid>,
        /// The new assignee.
        to: Option<Uuid>,
    },
    /// A comment was added. Only the figures need it: it may be the first response.
    #[serde(rename = "ticket.commented")]
    Commented,
}

impl What {
    /// Every name.
    pub const NAMES: [&'static str; 4] =
        ["ticket.created", "ticket.status.changed", "ticket.assigned", "ticket.commented"];

    /// Topic, type and routing key.
    pub const fn name(&self) -> &'static str {
        let [created, status_changed, assigned, commented] = Self::NAMES;
        match self {
            Self::Created => created,
            Self::StatusChanged { .. } => status_changed,
            Self::Assigned { .. } => assigned,
            Self::Commented => commented,
        }
    }
}

/// A ticket in an event: the fields that e-mails and figures need, without the description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventTicket {
    /// The message's key.
    pub id: Uuid,
    /// For people.
    pub number: i64,
    /// One line.
    pub title: String,
    /// Its status.
    pub status: Status,
    /// How urgent it is.
    pub priority: Priority,
    /// Increases with every event of the ticket.
    pub version: i64,
    /// When it was opened.
    pub created_at: Timestamp,
    /// Who opened it.
    pub requester: Contact,
    /// The assignee, if there is one.
    pub assignee: Option<Contact>,
}

impl From<&Ticket> for EventTicket {
    fn from(ticket: &Ticket) -> Self {
        Self {
            id: ticket.id,
            number: ticket.number,
            title: ticket.title.clone(),
            status: ticket.status,
            priority: ticket.priority,
            version: ticket.version,
            created_at: ticket.created_at,
            requester: ticket.requester.clone(),
            assignee: ticket.assignee.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Language, Role};

    fn event(what: What) -> Event {
        let ana =
            Contact { id: Uuid::nil(), name: "Ana".into(), email: "ana@example.org".into(), language: Language::Es };
        Event {
            event_id: Uuid::nil(),
            what,
            occurred_at: "2026-11-16T12:00:00.123Z".parse().unwrap(),
            ticket: EventTicket {
                id: Uuid::nil(),
                number: 7,
                title: "No light".into(),
                status: Status::Resolved,
                priority: Priority::Normal,
                version: 4,
                created_at: "2026-11-16T11:00:00.5Z".parse().unwrap(),
                requester: ana,
                assignee: None,
            },
            actor: Caller { id: Uuid::nil(), name: "Dan".into(), role: Role::Agent },
        }
    }

    #[test]
    fn an_event_has_these_bytes() {
        let json =
            serde_json::to_string(&event(What::StatusChanged { from: Status::Open, to: Status::Resolved })).unwrap();
        assert_eq!(
            json,
            concat!(
                r#"{"event_id":"00000000-0000-0000-0000-000000000000","type":"ticket.status.changed","from":"open","#,
                r#""to":"resolved","occurred_at":"2026-11-16T12:00:00.123Z","#,
                r#""ticket":{"id":"00000000-0000-0000-0000-000000000000","number":7,"title":"No light","#,
                r#""status":"resolved","priority":"normal","version":4,"created_at":"2026-11-16T11:00:00.5Z","#,
                r#""requester":{"id":"00000000-0000-0000-0000-000000000000","name":"Ana","email":"ana@example.org","#,
                r#""language":"es"},"assignee":null},"#,
                r#""actor":{"id":"00000000-0000-0000-0000-000000000000","name":"Dan","role":"agent"}}"#
            )
        );
    }

    #[test]
    fn every_event_is_read_back_under_its_name() {
        let whats = [
            What::Created,
            What::StatusChanged { from: Status::Open, to: Status::Waiting },
            What::Assigned { from: None, to: Some(Uuid::nil()) },
            What::Commented,
        ];
        for (what, name) in whats.into_iter().zip(What::NAMES) {
            assert_eq!(what.name(), name);
            let event = event(what);
            let json = serde_json::to_value(&event).unwrap();
            assert_eq!(json["type"], name);
            assert_eq!(serde_json::from_value::<Event>(json).unwrap(), event);
        }
    }
}
