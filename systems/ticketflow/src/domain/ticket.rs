//! A ticket, and who may do what with it.

use jiff::Timestamp;
use uuid::Uuid;

use super::words::words;
use super::{Caller, Contact, Status};

words! {
    /// How urgent a ticket is.
    Priority {
        /// When there is time.
        Low = "low",
        /// As they come.
        Normal = "normal",
        /// Before others.
        High = "high",
        /// Now.
        Urgent = "urgent",
    }
}

words! {
    /// What happened to a ticket.
    Kind {
        /// It was opened.
        Created = "created",
        /// Its status changed.
        Status = "status",
        /// Somebody was given it, or nobody.
        Assigned = "assigned",
        /// Somebody wrote.
        Comment = "comment",
    }
}

/// A ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Never changes; the key of its events.
    pub id: Uuid,
    /// 1, 2, 3 …, for people.
    pub number: i64,
    /// One line.
    pub title: String,
    /// What is wrong.
    pub description: String,
    /// Where it stands.
    pub status: Status,
    /// How urgent it is.
    pub priority: Priority,
    /// Who opened it.
    pub requester: Contact,
    /// Who answers it, if anybody does.
    pub assignee: Option<Contact>,
    /// Rises with every change; its `ETag`.
    pub version: i64,
    /// When it was opened.
    pub created_at: Timestamp,
    /// When it changed last.
    pub updated_at: Timestamp,
    /// When somebody other than the requester first wrote or changed its status.
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

    /// A new status, and what follows from it.
    pub fn set_status(&mut self, status: Status, by: &Caller, at: Timestamp) {
        self.status = status;
        self.responded(by, at);
        if status == Status::Resolved {
            self.resolved_at.get_or_insert(at);
        }
        self.changed(at);
    }

    /// Somebody else answers it now, or nobody.
    pub fn assign(&mut self, assignee: Option<Contact>, at: Timestamp) {
        self.assignee = assignee;
        self.changed(at);
    }

    /// Somebody wrote.
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
        // Clocks of two machines differ: a ticket never seems to have changed before it last did.
        self.updated_at = self.updated_at.max(at);
    }
}

/// What somebody wrote under a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// Never changes.
    pub id: Uuid,
    /// The ticket.
    pub ticket: Uuid,
    /// Who wrote it.
    pub author: Caller,
    /// As it came; HTML in it is text.
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
    /// The status or the person before.
    pub from: Option<String>,
    /// The status or the person since.
    pub to: Option<String>,
    /// What was written.
    pub comment: Option<String>,
    /// Of the request that did it.
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
    fn the_first_response_is_the_first_by_somebody_else_and_stays() {
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
