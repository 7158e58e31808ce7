//! Requesters, agents and admins.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::words::words;

words! {
    /// A person's permissions.
    Role {
        /// Opens tickets, and sees only their own.
        Requester = "requester",
        /// Works on tickets.
        Agent = "agent",
        /// The same, and adds people.
        Admin = "admin",
    }
}

words! {
    /// The language of a person's e-mails.
    Language {
        /// Spanish.
        Es = "es",
        /// English.
        En = "en",
    }
}

impl Role {
    /// Agents and admins see and change every ticket.
    pub const fn answers(self) -> bool {
        matches!(self, Self::Agent | Self::Admin)
    }
}

/// A person of the desk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// Never changes.
    pub id: Uuid,
    /// The displayed name.
    pub name: String,
    /// The address for e-mails.
    pub email: String,
    /// Their role.
    pub role: Role,
    /// The language of their e-mails.
    pub language: Language,
}

/// The fields of a person that e-mails need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// The person.
    pub id: Uuid,
    /// The displayed name.
    pub name: String,
    /// The address for e-mails.
    pub email: String,
    /// The language of their e-mails.
    pub language: Language,
}

impl From<&Person> for Contact {
    fn from(person: &Person) -> Self {
        Self { id: person.id, name: person.name.clone(), email: person.email.clone(), language: person.language }
    }
}

/// The caller of a request: identified by a token, and recorded with every change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// The person.
    pub id: Uuid,
    /// Their name.
    pub name: String,
    /// Their role.
    pub role: Role,
}

impl From<&Person> for Caller {
    fn from(person: &Person) -> Self {
        Self { id: person.id, name: person.name.clone(), role: person.role }
    }
}
