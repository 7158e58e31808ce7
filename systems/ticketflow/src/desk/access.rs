//! Authentication: replaced tokens, and disabled people.

use jiff::Timestamp;

use super::columns::{At, Id};
use super::link::{Link, Tx, Values};
use super::rows::{self, people};
use super::{DeskError, Token, Whom};
use crate::domain::Person;

/// The person with this token, unless they are disabled.
pub(super) async fn person_of(link: &Link, token: &Token) -> Result<Option<Person>, DeskError> {
    let sql = people!("WHERE token_sha256 = $1 AND disabled_at IS NULL");
    link.row(sql, &[&token.sha256()]).await?.as_ref().map(rows::person).transpose()
}

/// The person, disabled or not.
pub(super) async fn person(link: &Link, whom: &Whom) -> Result<Person, DeskError> {
    let row = match whom {
        Whom::Id(id) => link.row(people!("WHERE id = $1"), &[&Id(*id)]).await?,
        Whom::Email(email) => link.row(people!("WHERE lower(email) = lower($1)"), &[email]).await?,
    };
    row.as_ref().map(rows::person).transpose()?.ok_or(DeskError::NoPerson)
}

/// Replaces a person's token.
pub(super) async fn set_token(tx: &mut Tx, person: &Person, token: &Token) -> Result<(), DeskError> {
    let update = "UPDATE ticketflow.person SET token_sha256 = $2, disabled_at = NULL WHERE id = $1";
    found(tx, update, &[&Id(person.id), &token.sha256()]).await
}

/// Disables a person.
pub(super) async fn disable(tx: &mut Tx, person: &Person, at: Timestamp) -> Result<(), DeskError> {
    let update = "UPDATE ticketflow.person SET disabled_at = coalesce(disabled_at, $2) WHERE id = $1";
    found(tx, update, &[&Id(person.id), &At(at)]).await
}

async fn found(tx: &mut Tx, update: &'static str, values: Values<'_>) -> Result<(), DeskError> {
    if tx.run(update, values).await? == 0 { Err(DeskError::NoPerson) } else { Ok(()) }
}
