//! Reading tickets and people out of rows.

use uuid::Uuid;

use super::DeskError;
use super::columns::{At, Id};
use super::link::Row;
use crate::domain::{Caller, Contact, Person, Ticket};

/// The beginning of every statement that reads tickets; [`ticket`] reads its rows.
macro_rules! tickets {
    ($rest:literal) => {
        concat!(
            "SELECT t.id, t.number, t.title, t.description, t.status, t.priority, t.version, t.created_at, t.updated_at, \
             t.first_response_at, t.resolved_at, r.id, r.name, r.email, r.language, a.id, a.name, a.email, a.language \
             FROM ticketflow.ticket AS t JOIN ticketflow.person AS r ON r.id = t.requester_id \
             LEFT JOIN ticketflow.person AS a ON a.id = t.assignee_id ",
            $rest
        )
    };
}

/// The same for people; [`person`] reads its rows.
macro_rules! people {
    ($rest:literal) => {
        concat!("SELECT id, name, email, role, language FROM ticketflow.person ", $rest)
    };
}

pub(super) use {people, tickets};

pub(super) fn ticket(row: &Row) -> Result<Ticket, DeskError> {
    let assignee: Option<Id> = row.get(15)?;
    Ok(Ticket {
        id: id(row, 0)?,
        number: row.get(1)?,
        title: row.get(2)?,
        description: row.get(3)?,
        status: row.word(4)?,
        priority: row.word(5)?,
        version: row.get(6)?,
        created_at: row.get::<At>(7)?.0,
        updated_at: row.get::<At>(8)?.0,
        first_response_at: row.get::<Option<At>>(9)?.map(|at| at.0),
        resolved_at: row.get::<Option<At>>(10)?.map(|at| at.0),
        requester: contact(row, 11)?,
        assignee: if assignee.is_some() { Some(contact(row, 15)?) } else { None },
    })
}

pub(super) fn person(row: &Row) -> Result<Person, DeskError> {
    Ok(Person { id: id(row, 0)?, name: row.get(1)?, email: row.get(2)?, role: row.word(3)?, language: row.word(4)? })
}

/// Id, name and role, from this column on.
pub(super) fn caller(row: &Row, column: usize) -> Result<Caller, DeskError> {
    Ok(Caller { id: id(row, column)?, name: row.get(column + 1)?, role: row.word(column + 2)? })
}

pub(super) fn id(row: &Row, column: usize) -> Result<Uuid, DeskError> {
    Ok(row.get::<Id>(column)?.0)
}

fn contact(row: &Row, column: usize) -> Result<Contact, DeskError> {
    Ok(Contact {
        id: id(row, column)?,
        name: row.get(column + 1)?,
        email: row.get(column + 2)?,
        language: row.word(column + 3)?,
    })
}
