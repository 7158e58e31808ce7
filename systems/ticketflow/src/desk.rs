//! The desk: what the API asks of a database. A ticket, its history and its event are one transaction.

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

/// The most lines of a history or of comments that are told of one ticket: the newest.
pub const LINES_MAX: i64 = 1000;

/// What the API asks of a database. Whatever fails has changed nothing, but for [`DeskError::Away`], which may have come
/// after the commit: a repeat with the same key of [`Once`] tells which.
#[async_trait]
pub trait Desk: Send + Sync {
    /// Says for whom the desk is; the first to say so decides for ever, and whoever says otherwise is refused.
    async fn claim(&self, kind: Kind) -> Result<(), DeskError>;
    /// Whose token it is. Nobody's, if they are disabled.
    async fn person_of(&self, token: &Token) -> Result<Option<Person>, DeskError>;
    /// Makes a change, its history and its event in one transaction, with what the caller is told of it: the second time,
    /// that is told again.
    async fn change(&self, act: &Act, change: Change, tell: &Tell) -> Result<Answer, DeskError>;
    /// Adds a person without anybody having asked: from the command line, and samples.
    async fn add_person(&self, person: &Person, token: &Token, at: Timestamp) -> Result<(), DeskError>;
    /// A person, disabled or not.
    async fn person(&self, whom: &Whom) -> Result<Person, DeskError>;
    /// Gives a person another token, from the command line: the one before ends, and a person who was disabled is let in again.
    async fn set_token(&self, person: &Person, token: &Token) -> Result<(), DeskError>;
    /// Lets nobody in as this person, from the command line, and gives them no more tickets, until they have another token.
    async fn disable(&self, person: &Person, at: Timestamp) -> Result<(), DeskError>;
    /// A ticket, if the caller may see it.
    async fn ticket(&self, caller: &Caller, id: Uuid) -> Result<Ticket, DeskError>;
    /// Tickets that the caller may see, newest first: those with numbers below `filter.below`.
    async fn tickets(&self, caller: &Caller, filter: &Filter) -> Result<Vec<Ticket>, DeskError>;
    /// What was written under a ticket, oldest first: the newest [`LINES_MAX`].
    async fn comments(&self, caller: &Caller, id: Uuid) -> Result<Vec<Comment>, DeskError>;
    /// What happened to a ticket, oldest first: the newest [`LINES_MAX`].
    async fn history(&self, caller: &Caller, id: Uuid) -> Result<Vec<Entry>, DeskError>;
    /// The people, by name.
    async fn people(&self, listing: &Listing) -> Result<Vec<Person>, DeskError>;
    /// E-mails that were sent, newest first; a requester sees their own.
    async fn emails(&self, caller: &Caller, ticket: Option<Uuid>, limit: i64) -> Result<Vec<Email>, DeskError>;
    /// What the worker has counted.
    async fn figures(&self) -> Result<Figures, DeskError>;
    /// Deletes at most [`PRUNE_MAX`] rows of before this time, the oldest first, in a transaction of their own; says how many.
    async fn prune(&self, what: Old, before: Timestamp) -> Result<u64, DeskError>;
    /// Whether it answers.
    async fn ping(&self) -> Result<(), DeskError>;
}

/// Who changes something, when, and for which request.
#[derive(Clone, Debug)]
pub struct Act {
    /// Who.
    pub by: Person,
    /// When.
    pub at: Timestamp,
    /// Carried through to the e-mail.
    pub correlation_id: String,
    /// If the request may come again.
    pub once: Option<Once>,
}

impl Act {
    /// The same person, as they are recorded.
    pub fn caller(&self) -> Caller {
        Caller::from(&self.by)
    }
}

/// A request that may come again.
#[derive(Clone, Debug)]
pub struct Once {
    /// What the caller calls it.
    pub key: String,
    /// Of all that it asks for.
    pub request_sha256: [u8; 32],
    /// How long it is remembered.
    pub remembered: Duration,
}

/// What is to be changed. Fields have been checked.
#[derive(Clone, Debug)]
pub enum Change {
    /// Opens a ticket.
    Open {
        /// One line.
        title: String,
        /// What is wrong.
        description: String,
        /// How urgent it is.
        priority: Priority,
    },
    /// Another status.
    Status {
        /// The ticket.
        ticket: Uuid,
        /// What the caller has seen of it.
        versions: Versions,
        /// The new one.
        to: Status,
    },
    /// Another assignee, or nobody.
    Assignee {
        /// The ticket.
        ticket: Uuid,
        /// What the caller has seen of it.
        versions: Versions,
        /// The new one.
        to: Option<Uuid>,
    },
    /// Something written.
    Comment {
        /// The ticket.
        ticket: Uuid,
        /// What.
        body: String,
    },
    /// A new person.
    Person {
        /// Who.
        person: Person,
        /// By which they are known.
        token: Token,
    },
    /// Another token for a person: the one before ends, and a person who was disabled is let in again.
    Token {
        /// Who.
        person: Person,
        /// By which they are known from now on.
        token: Token,
    },
    /// Nobody is let in as this person, and they are given no more tickets, until they have another token.
    Disable {
        /// Who.
        person: Person,
    },
}

/// Which person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// By what never changes.
    Id(Uuid),
    /// By where e-mails go, in capitals or not.
    Email(String),
}

/// Which people are listed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Listing {
    /// Of this role.
    pub role: Option<Role>,
    /// Those who are disabled, instead of those who are not.
    pub disabled: bool,
}

/// The versions that a change accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Versions {
    /// Whichever it is: `If-Match: *`.
    Any,
    /// One of these.
    These(Vec<i64>),
}

/// What a change made.
#[derive(Clone, Debug)]
pub enum Changed {
    /// The ticket as it is since.
    Ticket(Ticket),
    /// What was written.
    Comment(Comment),
    /// The person whom it was about.
    Person(Person),
}

/// Makes of a change what its caller is told.
pub type Tell = dyn Fn(&Changed) -> Answer + Send + Sync;

/// What a caller is told of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Where the new thing is.
    pub location: Option<String>,
    /// Its version.
    pub etag: Option<String>,
    /// JSON.
    pub body: String,
    /// It was told before: nothing was done now.
    pub is_repeat: bool,
}

/// Which tickets; everything that is set must hold.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// In this status.
    pub status: Option<Status>,
    /// Of this priority.
    pub priority: Option<Priority>,
    /// Opened by this person.
    pub requester: Option<Uuid>,
    /// Answered by this person.
    pub assignee: Option<Uuid>,
    /// Answered by nobody.
    pub unassigned: bool,
    /// With this in title or description.
    pub text: Option<String>,
    /// With a lower number.
    pub below: Option<i64>,
    /// So many at most.
    pub limit: i64,
}

/// Why the desk did not do it.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// There is none, or the caller may not see it.
    #[error("there is no such ticket")]
    NoTicket,
    /// There is none.
    #[error("there is no such person")]
    NoPerson,
    /// The caller's role does not allow it.
    #[error("{0}")]
    NotAllowed(&'static str),
    /// The ticket has changed since the caller saw it.
    #[error("the ticket is at version {0}")]
    Stale(i64),
    /// The ticket cannot go there.
    #[error("a ticket that is {from} cannot become {to}")]
    Forbidden {
        /// Where it stands.
        from: Status,
        /// Where it was to go.
        to: Status,
        /// Where it may go.
        allowed: &'static [Status],
    },
    /// The ticket has come to its end.
    #[error("the ticket is closed, and a closed ticket stays as it is")]
    Closed,
    /// Nobody who could answer tickets has this id.
    #[error("no agent has this id")]
    NoAgent,
    /// Somebody else has this address.
    #[error("somebody has this e-mail address already")]
    EmailTaken,
    /// The key was used for another request.
    #[error("the key was used for another request")]
    KeyReused,
    /// The database cannot be used as it is.
    #[error("{0}")]
    Schema(String),
    /// The database does not answer, or answers that it cannot now.
    #[error("the database is away")]
    Away(#[source] sqlx::Error),
    /// The database has what it should not have, or was asked what it does not understand.
    #[error("the database refused")]
    Broken(#[source] anyhow::Error),
}
