//! Changes: each is one transaction, which locks the ticket's row before it reads the ticket.

use uuid::Uuid;

use super::columns::{At, Id};
use super::link::{Link, Tx, Values};
use super::rows::{self, people, tickets};
use super::{Act, Answer, Change, Changed, DeskError, Tell, Token, Versions, access, once};
use crate::domain::event::{Event, EventTicket, What};
use crate::domain::{Comment, Contact, Kind, Person, Priority, Status, Ticket};

/// Writes a change, its history and its event, and stores the response if the request may be repeated.
pub(super) async fn change(link: &Link, act: &Act, change: Change, tell: &Tell) -> Result<Answer, DeskError> {
    let mut tx = link.begin().await?;
    if let Some(once) = &act.once
        && let Some(answer) = once::claim(&mut tx, act, once).await?
    {
        return Ok(answer);
    }
    let changed = match change {
        Change::Open { title, description, priority } => open(&mut tx, act, title, description, priority).await?,
        Change::Status { ticket, versions, to } => set_status(&mut tx, act, ticket, &versions, to).await?,
        Change::Assignee { ticket, versions, to } => assign(&mut tx, act, ticket, &versions, to).await?,
        Change::Comment { ticket, body } => comment(&mut tx, act, ticket, body).await?,
        Change::Person { person, token } => {
            add_person(&mut tx, &person, &token, act.at).await?;
            Changed::Person(person)
        }
        Change::Token { person, token } => {
            access::set_token(&mut tx, &person, &token).await?;
            Changed::Person(person)
        }
        Change::Disable { person } => {
            access::disable(&mut tx, &person, act.at).await?;
            Changed::Person(person)
        }
    };
    let answer = tell(&changed);
    if let Some(once) = &act.once {
        once::record(&mut tx, act, once, &answer).await?;
    }
    tx.commit().await?;
    Ok(answer)
}

async fn open(
    tx: &mut Tx,
    act: &Act,
    title: String,
    description: String,
    priority: Priority,
) -> Result<Changed, DeskError> {
    let mut ticket = Ticket {
        id: Uuid::now_v7(),
        number: 0,
        title,
        description,
        status: Status::Open,
        priority,
        requester: Contact::from(&act.by),
        assignee: None,
        version: 1,
        created_at: act.at,
        updated_at: act.at,
        first_response_at: None,
        resolved_at: None,
    };
    let insert = "INSERT INTO ticketflow.ticket \
                  (id, title, description, status, priority, requester_id, version, created_at, updated_at) \
                  VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8) RETURNING number";
    let (status, priority) = (ticket.status.word(), ticket.priority.word());
    let values: Values = &[
        &Id(ticket.id),
        &ticket.title,
        &ticket.description,
        &status,
        &priority,
        &Id(act.by.id),
        &ticket.version,
        &At(act.at),
    ];
    ticket.number = tx.row(insert, values).await?.ok_or(DeskError::NoTicket)?.get(0)?;
    tell_of(tx, act, &ticket, What::Created, None).await?;
    Ok(Changed::Ticket(ticket))
}

async fn set_status(tx: &mut Tx, act: &Act, id: Uuid, versions: &Versions, to: Status) -> Result<Changed, DeskError> {
    let mut ticket = locked(tx, act, id).await?;
    check(&ticket, versions)?;
    let (from, allowed) = (ticket.status, ticket.allowed(&act.caller()));
    if !allowed.contains(&to) {
        return Err(if from.next().contains(&to) {
            DeskError::NotAllowed(
                "only agents and admins set this status now; a requester closes or reopens a ticket once it is resolved",
            )
        } else {
            DeskError::Forbidden { from, to, allowed }
        });
    }
    ticket.set_status(to, &act.caller(), act.at);
    store(tx, &ticket).await?;
    tell_of(tx, act, &ticket, What::StatusChanged { from, to }, None).await?;
    Ok(Changed::Ticket(ticket))
}

async fn assign(tx: &mut Tx, act: &Act, id: Uuid, versions: &Versions, to: Option<Uuid>) -> Result<Changed, DeskError> {
    if !act.by.role.answers() {
        return Err(DeskError::NotAllowed("only agents and admins assign tickets"));
    }
    let mut ticket = locked(tx, act, id).await?;
    check(&ticket, versions)?;
    check_open(&ticket)?;
    let from = ticket.assignee.as_ref().map(|assignee| assignee.id);
    if from == to {
        // Nothing changes, so there is no event.
        return Ok(Changed::Ticket(ticket));
    }
    let assignee = match to {
        None => None,
        Some(to) => Some(agent(tx, to).await?),
    };
    ticket.assign(assignee, act.at);
    store(tx, &ticket).await?;
    tell_of(tx, act, &ticket, What::Assigned { from, to }, None).await?;
    Ok(Changed::Ticket(ticket))
}

async fn comment(tx: &mut Tx, act: &Act, id: Uuid, body: String) -> Result<Changed, DeskError> {
    let mut ticket = locked(tx, act, id).await?;
    check_open(&ticket)?;
    ticket.comment(&act.caller(), act.at);
    store(tx, &ticket).await?;
    let comment = Comment { id: Uuid::now_v7(), ticket: id, author: act.caller(), body, created_at: act.at };
    let insert = "INSERT INTO ticketflow.comment (id, ticket_id, author_id, body, created_at) \
                  VALUES ($1, $2, $3, $4, $5)";
    tx.run(insert, &[&Id(comment.id), &Id(id), &Id(act.by.id), &comment.body, &At(act.at)]).await?;
    tell_of(tx, act, &ticket, What::Commented, Some(comment.id)).await?;
    Ok(Changed::Comment(comment))
}

/// Adds a person. Their address must be new.
pub(super) async fn add_person(
    tx: &mut Tx,
    person: &Person,
    token: &Token,
    at: jiff::Timestamp,
) -> Result<(), DeskError> {
    let insert = "INSERT INTO ticketflow.person (id, name, email, role, language, token_sha256, created_at) \
                  VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING";
    let (role, language) = (person.role.word(), person.language.word());
    let values: Values = &[&Id(person.id), &person.name, &person.email, &role, &language, &token.sha256(), &At(at)];
    if tx.run(insert, values).await? == 0 { Err(DeskError::EmailTaken) } else { Ok(()) }
}

/// Locks the ticket until the transaction ends, and returns it if the caller may see it.
async fn locked(tx: &mut Tx, act: &Act, id: Uuid) -> Result<Ticket, DeskError> {
    // A later statement reads it. The statement that waits for the lock sees the new version of the ticket but the old people: a
    // person who was assigned meanwhile would be missing, and the next update would unassign them.
    tx.row("SELECT 1 FROM ticketflow.ticket WHERE id = $1 FOR UPDATE", &[&Id(id)]).await?;
    let row = tx.row(tickets!("WHERE t.id = $1"), &[&Id(id)]).await?;
    let ticket = row.as_ref().map(rows::ticket).transpose()?;
    ticket.filter(|ticket| ticket.is_seen_by(&act.caller())).ok_or(DeskError::NoTicket)
}

fn check(ticket: &Ticket, versions: &Versions) -> Result<(), DeskError> {
    match versions {
        Versions::These(versions) if !versions.contains(&ticket.version) => Err(DeskError::Stale(ticket.version)),
        Versions::Any | Versions::These(_) => Ok(()),
    }
}

/// The last status is final.
fn check_open(ticket: &Ticket) -> Result<(), DeskError> {
    if ticket.status.next().is_empty() { Err(DeskError::Closed) } else { Ok(()) }
}

async fn agent(tx: &mut Tx, id: Uuid) -> Result<Contact, DeskError> {
    let row = tx.row(people!("WHERE id = $1 AND disabled_at IS NULL"), &[&Id(id)]).await?;
    let person = row.as_ref().map(rows::person).transpose()?;
    person.filter(|person| person.role.answers()).map(|person| Contact::from(&person)).ok_or(DeskError::NoAgent)
}

async fn store(tx: &mut Tx, ticket: &Ticket) -> Result<(), DeskError> {
    let update = "UPDATE ticketflow.ticket SET status = $2, assignee_id = $3, version = $4, updated_at = $5, \
                  first_response_at = $6, resolved_at = $7 WHERE id = $1";
    let status = ticket.status.word();
    let assignee = ticket.assignee.as_ref().map(|assignee| Id(assignee.id));
    let (first_response_at, resolved_at) = (ticket.first_response_at.map(At), ticket.resolved_at.map(At));
    let values: Values = &[
        &Id(ticket.id),
        &status,
        &assignee,
        &ticket.version,
        &At(ticket.updated_at),
        &first_response_at,
        &resolved_at,
    ];
    tx.run(update, values).await?;
    Ok(())
}

/// Writes the history line and the event, which always belong together.
async fn tell_of(tx: &mut Tx, act: &Act, ticket: &Ticket, what: What, comment: Option<Uuid>) -> Result<(), DeskError> {
    let (kind, before, after) = match &what {
        What::Created => (Kind::Created, None, None),
        What::StatusChanged { from, to } => (Kind::Status, Some(from.to_string()), Some(to.to_string())),
        What::Assigned { from, to } => {
            (Kind::Assigned, from.map(|person| person.to_string()), to.map(|person| person.to_string()))
        }
        What::Commented => (Kind::Comment, None, None),
    };
    let insert = "INSERT INTO ticketflow.history \
                  (ticket_id, version, at, actor_id, kind, before, after, comment_id, correlation_id) \
                  VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let (kind, comment) = (kind.word(), comment.map(Id));
    let values: Values = &[
        &Id(ticket.id),
        &ticket.version,
        &At(act.at),
        &Id(act.by.id),
        &kind,
        &before,
        &after,
        &comment,
        &act.correlation_id,
    ];
    tx.run(insert, values).await?;
    let event = Event {
        event_id: Uuid::now_v7(),
        what,
        occurred_at: act.at,
        ticket: EventTicket::from(ticket),
        actor: act.caller(),
    };
    tx.emit(&event, &act.correlation_id).await
}
