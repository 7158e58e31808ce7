//! A ticket, and its permissions.

use jiff::Timestamp;
use uuid::Uuid;

use super::words::words;
use super::{Caller, Contact, Status};

words! {
    /// The priority of a ticket.
    Priority {
        /// Low.
        Low = "low",
        /// Normal.
        Normal = "normal",
        /// High.
        High = "high",
        /// Urgent.
        Urgent = "urgent",
    }
}

words! {
    /// The kind of a change.
    Kind {
        /// It was opened.
        Created = "created",
        /// Its status changed.
        Status = "status",
        /// It was assigned or unassigned.
        Assigned = "assigned",
        /// A comment was added.
        Comment = "comment",
    }
}

/// A ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Never changes; the key of its events.
    pub id: Uuid,
    /// 1, 2, 3 …, shown to users.
    pub number: i64,
    /// One line.
    pub title: String,
    /// The description.
    pub description: String,
    /// Its status.
    pub status: Status,
    /// Its priority.
    pub priority: Priority,
    /// Who opened it.
    pub requester: Contact,
    /// The assignee, if there is one.
    pub assignee: Option<Contact>,
    /// Increases with every change; its `ETag`.
    pub version: i64,
    /// When it was opened.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When a person other than the requester first commented or changed its status.
    pub first_response_at: Option<Timestamp>,
    /// When it was first resolved.
    pub resolved_at: Option<Timestamp>,
}

impl Ticket {
    /// Requesters see their own tickets, the others all.
    pub fn is_seen_by(&self, caller: &Caller) -> bool {
        caller.role.answers() || self.requester.id == caller.id
    }

    /// The statuses that the caller may set now. A requester closes or reopens their own ticket once it is resolved.
    pub fn allowed(&self, caller: &Caller) -> &'static [Status] {
        if caller.role.answers() || (self.requester.id == caller.id && self.status == Status::Resolved) {
            self.status.next()
        } else {
            &[]
        }
    }

    /// Sets a new status and the fields that depend on it.
    pub fn set_status(&mut self, status: Status, by: &Caller, at: Timestamp) {
        self.status = status;
        self.responded(by, at);
        if status == Status::Resolved {
            self.resolved_at.get_or_insert(at);
        }
        self.changed(at);
    }

    /// Sets or clears the assignee.
    pub fn assign(&mut self, assignee: Option<Contact>, at: Timestamp) {
        self.assignee = assignee;
        self.changed(at);
    }

    /// A comment was added.
    pub fn comment(&mut self, by: &Caller, at: Timestamp) {
        self.responded(by, at);
        self.changed(at);
    }

    fn responded(&mut self, by: &Caller, at: Timestamp) {
        if by.id != self.requester.id {
            self.first_response_at.get_or_insert(at);
        }
    }

    fn changed(&mut self, at: Timestamp) {
        self.version += 1;
        // Clocks of two machines differ: the time of a change is never before that of the previous change.
        self.updated_at = self.updated_at.max(at);
    }
}

/// A comment on a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// Never changes.
    pub id: Uuid,
    /// The ticket.
    pub ticket: Uuid,
    /// Who wrote it.
    pub author: Caller,
    /// The text as received; HTML in it is text.
    pub body: String,
    /// When.
    pub created_at: Timestamp,
}

/// A line of a ticket's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub at: Timestamp,
    /// Who did it.
    pub actor: Caller,
    /// What.
    pub kind: Kind,
    /// The previous status or assignee.
    pub from: Option<String>,
    /// The new status or assignee.
    pub to: Option<String>,
    /// The comment.
    pub comment: Option<String>,
    /// The correlation id of the request.
    pub correlation_id: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Language, Role};

    fn ticket(status: Status) -> (Ticket, Caller) {
        let requester =
            Contact { id: Uuid::now_v7(), name: "Ana".into(), email: "ana@example.org".into(), language: Language::Es };
        let caller = Caller { id: requester.id, name: requester.name.clone(), role: Role::Requester };
        let at = Timestamp::UNIX_EPOCH;
        let ticket = Ticket {
            id: Uuid::now_v7(),
            number: 1,
            title: "No light".into(),
            description: "None at all".into(),
            status,
            priority: Priority::Normal,
            requester,
            assignee: None,
            version: 1,
            created_at: at,
            updated_at: at,
            first_response_at: None,
            resolved_at: None,
        };
        (ticket, caller)
    }

    fn agent() -> Caller {
        Caller { id: Uuid::now_v7(), name: "Dan".into(), role: Role::Agent }
    }

    #[test]
    fn a_requester_closes_or_reopens_only_what_is_resolved() {
        for &status in Status::ALL {
            let (ticket, ana) = ticket(status);
            let expected = if status == Status::Resolved { status.next() } else { &[] };
            assert_eq!(ticket.allowed(&ana), expected, "{status}");
            assert_eq!(ticket.allowed(&agent()), status.next(), "{status}");
            let other = Caller { role: Role::Requester, ..agent() };
            assert!(ticket.allowed(&other).is_empty() && !ticket.is_seen_by(&other));
        }
    }

    #[test]
    fn the_first_response_is_the_first_by_another_person_and_stays() {
        let (mut ticket, ana) = ticket(Status::Open);
        let second = |second| Timestamp::from_second(second).unwrap();
        ticket.comment(&ana, second(1));
        assert_eq!(ticket.first_response_at, None);
        ticket.assign(None, second(2));
        assert_eq!(ticket.first_response_at, None);
        ticket.comment(&agent(), second(3));
        ticket.set_status(Status::Resolved, &agent(), second(4));
        assert_eq!(ticket.first_response_at, Some(second(3)));
        ticket.set_status(Status::InProgress, &ana, second(5));
        ticket.set_status(Status::Resolved, &agent(), second(6));
        assert_eq!((ticket.resolved_at, ticket.version), (Some(second(4)), 7));
    }
}
