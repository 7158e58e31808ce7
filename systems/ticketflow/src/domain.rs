//! Tickets, permissions, and the events of changes. No I/O and no clock.

pub mod event;
pub mod fields;
mod person;
mod status;
mod ticket;
mod words;

pub use event::Event;
pub use person::{Caller, Contact, Language, Person, Role};
pub use status::Status;
pub use ticket::{Comment, Entry, Kind, Priority, Ticket};
pub use words::UnknownWord;
