//! The store of tickets and people. A ticket, its history and its event are written in one transaction.

mod access;
mod change;
mod classify;
mod columns;
mod kind;
mod link;
pub mod migrate;
mod once;
mod open;
mod prune;
mod read;
mod rows;
mod token;

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use uuid::Uuid;

use crate::domain::{Caller, Comment, Entry, Person, Priority, Role, Status, Ticket};
pub use kind::Kind;
pub(crate) use link::STATEMENT_DEADLINE;
pub use migrate::migrate;
pub use open::{open, recipients};
pub use prune::{Old, PRUNE_MAX};
pub use read::{Agent, Day, Email, Figures};
pub use token::Token;

/// The maximum number of history lines or comments that are returned for a ticket: the newest.
pub const LINES_MAX: i64 = 1000;

/// The store that the API uses. A failed call has changed nothing, except that [`DeskError::Away`] may occur after the commit: a
/// repeat with the same key of [`Once`] returns the result.
#[async_trait]
pub trait Desk: Send + Sync {
    /// Marks the database as of this kind. The first call decides permanently, and a later call with the other kind is rejected.
    async fn claim(&self, kind: Kind) -> Result<(), DeskError>;
    /// The person with this token. `None` if the person is disabled.
    async fn person_of(&self, token: &Token) -> Result<Option<Person>, DeskError>;
    /// Writes a change, its history and its event in one transaction, and stores the response. A repeated request gets the stored
    /// response.
    async fn change(&self, act: &Act, change: Change, tell: &Tell) -> Result<Answer, DeskError>;
    /// Adds a person outside of a request: from the command line, and for samples.
    async fn add_person(&self, person: &Person, token: &Token, at: Timestamp) -> Result<(), DeskError>;
    /// A person, disabled or not.
    async fn person(&self, whom: &Whom) -> Result<Person, DeskError>;
    /// Replaces a person's token, from the command line: the old one is no longer valid, and a disabled person is enabled again.
    async fn set_token(&self, person: &Person, token: &Token) -> Result<(), DeskError>;
    /// Disables a person, from the command line: they are rejected and get no more tickets, until they have a new token.
    async fn disable(&self, person: &Person, at: Timestamp) -> Result<(), DeskError>;
    /// A ticket, if the caller may see it.
    async fn ticket(&self, caller: &Caller, id: Uuid) -> Result<Ticket, DeskError>;
    /// Tickets that the caller may see, newest first: those with numbers below `filter.below`.
    async fn tickets(&self, caller: &Caller, filter: &Filter) -> Result<Vec<Ticket>, DeskError>;
    /// The comments of a ticket, oldest first: the newest [`LINES_MAX`].
    async fn comments(&self, caller: &Caller, id: Uuid) -> Result<Vec<Comment>, DeskError>;
    /// The history of a ticket, oldest first: the newest [`LINES_MAX`].
    async fn history(&self, caller: &Caller, id: Uuid) -> Result<Vec<Entry>, DeskError>;
    /// The people, by name.
    async fn people(&self, listing: &Listing) -> Result<Vec<Person>, DeskError>;
    /// Sent e-mails, newest first; a requester sees only their own.
    async fn emails(&self, caller: &Caller, ticket: Option<Uuid>, limit: i64) -> Result<Vec<Email>, DeskError>;
    /// The figures of the worker.
    async fn figures(&self) -> Result<Figures, DeskError>;
    /// Deletes at most [`PRUNE_MAX`] rows from before this time, the oldest first, in a separate transaction. Returns their number.
    async fn prune(&self, what: Old, before: Timestamp) -> Result<u64, DeskError>;
    /// Checks that the database responds.
    async fn ping(&self) -> Result<(), DeskError>;
}

/// The context of a change: the person, the time and the request.
#[derive(Clone, Debug)]
pub struct Act {
    /// The person.
    pub by: Person,
    /// When.
    pub at: Timestamp,
    /// The correlation id, which the e-mail has too.
    pub correlation_id: String,
    /// Set if the request may be repeated.
    pub once: Option<Once>,
}

impl Act {
    /// The person, as recorded.
    pub fn caller(&self) -> Caller {
        Caller::from(&self.by)
    }
}

/// A request that may be repeated.
#[derive(Clone, Debug)]
pub struct Once {
    /// The caller's key.
    pub key: String,
    /// The hash of the request's content.
    pub request_sha256: [u8; 32],
    /// How long the response is stored.
    pub remembered: Duration,
}

/// A change. Its fields are valid.
#[derive(Clone, Debug)]
pub enum Change {
    /// Opens a ticket.
    Open {
        /// One line.
        title: String,
        /// The description.
        description: String,
        /// The priority.
        priority: Priority,
    },
    /// Sets the status.
    Status {
        /// The ticket.
        ticket: Uuid,
        /// The versions that the caller accepts.
        versions: Versions,
        /// The new one.
        to: Status,
    },
    /// Sets or clears the assignee.
    Assignee {
        /// The ticket.
        ticket: Uuid,
        /// The versions that the caller accepts.
        versions: Versions,
        /// The new one.
        to: Option<Uuid>,
    },
    /// Adds a comment.
    Comment {
        /// The ticket.
        ticket: Uuid,
        /// The text.
        body: String,
    },
    /// Adds a person.
    Person {
        /// The person.
        person: Person,
        /// The person's token.
        token: Token,
    },
    /// Replaces a person's token: the old one is no longer valid, and a disabled person is enabled again.
    Token {
        /// The person.
        person: Person,
        /// The new token.
        token: Token,
    },
    /// Disables a person: they are rejected and get no more tickets, until they have a new token.
    Disable {
        /// The person.
        person: Person,
    },
}

/// Identifies a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// By id, which never changes.
    Id(Uuid),
    /// By e-mail address, case-insensitive.
    Email(String),
}

/// Selects people.
#[derive(Clone, Copy, Debug, Default)]
pub struct Listing {
    /// With this role.
    pub role: Option<Role>,
    /// Disabled people instead of enabled ones.
    pub disabled: bool,
}

/// The versions that a change accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Versions {
    /// Any version: `If-Match: *`.
    Any,
    /// One of these.
    These(Vec<i64>),
}

/// The result of a change.
#[derive(Clone, Debug)]
pub enum Changed {
    /// The ticket after the change.
    Ticket(Ticket),
    /// The new comment.
    Comment(Comment),
    /// The changed person.
    Person(Person),
}

/// Makes the response to a change.
pub type Tell = dyn Fn(&Changed) -> Answer + Send + Sync;

/// The response to a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The path of the new resource.
    pub location: Option<String>,
    /// Its version.
    pub etag: Option<String>,
    /// JSON.
    pub body: String,
    /// The response is a stored one: nothing was changed.
    pub is_repeat: bool,
}

/// Selects tickets; all conditions must hold.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// In this status.
    pub status: Option<Status>,
    /// Of this priority.
    pub priority: Option<Priority>,
    /// Opened by this person.
    pub requester: Option<Uuid>,
    /// Assigned to this person.
    pub assignee: Option<Uuid>,
    /// Without an assignee.
    pub unassigned: bool,
    /// With this text in title or description.
    pub text: Option<String>,
    /// With a lower number.
    pub below: Option<i64>,
    /// The maximum number of tickets.
    pub limit: i64,
}

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// The ticket does not exist, or the caller may not see it.
    #[error("there is no such ticket")]
    NoTicket,
    /// The person does not exist.
    #[error("there is no such person")]
    NoPerson,
    /// The caller's role does not allow it.
    #[error("{0}")]
    NotAllowed(&'static str),
    /// The ticket has changed since the caller saw it.
    #[error("the ticket is at version {0}")]
    Stale(i64),
    /// The status cannot follow the current one.
    #[error("a ticket that is {from} cannot become {to}")]
    Forbidden {
        /// The current status.
        from: Status,
        /// The requested status.
        to: Status,
        /// The allowed statuses.
        allowed: &'static [Status],
    },
    /// The ticket is closed.
    #[error("the ticket is closed, and a closed ticket stays as it is")]
    Closed,
    /// No agent has this id.
    #[error("no agent has this id")]
    NoAgent,
    /// Another person has this address.
    #[error("another person has this e-mail address")]
    EmailTaken,
    /// The key was used for another request.
    #[error("the key was used for another request")]
    KeyReused,
    /// The database cannot be used as it is.
    #[error("{0}")]
    Schema(String),
    /// The database is unreachable or temporarily unavailable.
    #[error("the database is unreachable")]
    Away(#[source] sqlx::Error),
    /// The database rejected a statement, or has invalid data.
    #[error("the database rejected the statement")]
    Broken(#[source] anyhow::Error),
}
