//! Who opens tickets and who answers them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::words::words;

words! {
    /// What a person may do.
    Role {
        /// Opens tickets, and sees their own.
        Requester = "requester",
        /// Answers tickets.
        Agent = "agent",
        /// The same, and adds people.
        Admin = "admin",
    }
}

words! {
    /// The language in which a person is written to.
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
    /// As it is shown.
    pub name: String,
    /// Where e-mails go.
    pub email: String,
    /// What they may do.
    pub role: Role,
    /// In which they are written to.
    pub language: Language,
}

/// A person as e-mails need them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// The person.
    pub id: Uuid,
    /// As it is shown.
    pub name: String,
    /// Where e-mails go.
    pub email: String,
    /// In which they are written to.
    pub language: Language,
}

impl From<&Person> for Contact {
    fn from(person: &Person) -> Self {
        Self { id: person.id, name: person.name.clone(), email: person.email.clone(), language: person.language }
    }
}

/// Whoever asks for something: told by a token, recorded with everything they do.
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
