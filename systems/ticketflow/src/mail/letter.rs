//! One e-mail about one event, in its reader's language.

use jiff::Timestamp;
use lettre::message::Mailbox;
use uuid::Uuid;

use super::html;
use super::words::Words;
use crate::config::Letters;
use crate::domain::event::What;
use crate::domain::{Contact, Event, Language};

/// An e-mail to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Its event.
    pub event_id: Uuid,
    /// Its ticket.
    pub ticket_id: Uuid,
    /// The recipient.
    pub to: Contact,
    /// The sender.
    pub from: Mailbox,
    /// Without the angle brackets; the same at every attempt.
    pub message_id: String,
    /// The correlation id of the request that caused the event.
    pub correlation_id: String,
    /// When the event happened.
    pub date: Timestamp,
    /// One line.
    pub subject: String,
    /// The plain text.
    pub text: String,
    /// The same as HTML.
    pub html: String,
}

/// The settings of all e-mails.
#[derive(Clone, Debug)]
pub struct Sender {
    from: Mailbox,
    domain: String,
    base_url: String,
}

/// The configured sender is not an address.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no sender: name it as `TicketFlow <desk@example.org>`")]
pub struct WrongSender(String);

impl Sender {
    /// The configured sender.
    pub fn new(config: &Letters) -> Result<Self, WrongSender> {
        let from = config.from.parse().map_err(|_| WrongSender(config.from.clone()))?;
        let base_url = config.base_url.trim_end_matches('/').to_owned();
        Ok(Self { from, domain: config.domain.clone(), base_url })
    }

    /// The letter about an event, or `None` if there is no recipient. `id` identifies the delivery: its repeats have the same.
    pub fn letter(&self, event: &Event, id: Uuid, correlation_id: &str) -> Option<Letter> {
        let to = reader(event)?;
        let words = Words::of(to.language);
        let content = words.tell(event, &to.name, format!("{}/#/tickets/{}", self.base_url, event.ticket.id));
        Some(Letter {
            event_id: event.event_id,
            ticket_id: event.ticket.id,
            to: to.clone(),
            from: self.from.clone(),
            message_id: format!("{id}@{}", self.domain),
            correlation_id: correlation_id.to_owned(),
            date: event.occurred_at,
            text: content.text(),
            html: html::page(&content),
            subject: content.subject,
        })
    }
}

impl Letter {
    /// Its language.
    pub const fn language(&self) -> Language {
        self.to.language
    }
}

/// The recipient: the person who waits for the change, unless they made it.
fn reader(event: &Event) -> Option<&Contact> {
    let ticket = &event.ticket;
    let unless_actor = |contact: &&Contact| contact.id != event.actor.id;
    match event.what {
        What::Created => Some(&ticket.requester), // a confirmation
        What::Assigned { .. } => ticket.assignee.as_ref().filter(unless_actor),
        What::StatusChanged { .. } => {
            Some(&ticket.requester).filter(unless_actor).or(ticket.assignee.as_ref().filter(unless_actor))
        }
        What::Commented => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::domain::event::EventTicket;
    use crate::domain::{Caller, Priority, Role, Status};

    pub(in crate::mail) fn contact(number: u128, name: &str, language: Language) -> Contact {
        let email = format!("{}@example.org", name.to_lowercase());
        Contact { id: Uuid::from_u128(number), name: name.to_owned(), email, language }
    }

    pub(in crate::mail) fn event(what: What) -> Event {
        Event {
            event_id: Uuid::from_u128(100),
            what,
            occurred_at: "2026-11-16T12:00:00.123Z".parse().unwrap(),
            ticket: EventTicket {
                id: Uuid::from_u128(200),
                number: 7,
                title: "La impresora <b>no imprime</b> & huele raro".to_owned(),
                status: Status::Resolved,
                priority: Priority::High,
                version: 4,
                created_at: "2026-11-16T11:00:00Z".parse().unwrap(),
                requester: contact(1, "Ana", Language::Es),
                assignee: Some(contact(2, "Ben", Language::En)),
            },
            actor: Caller { id: Uuid::from_u128(2), name: "Ben".to_owned(), role: Role::Agent },
        }
    }

    pub(in crate::mail) fn letter(event: &Event) -> Option<Letter> {
        let sender = Sender::new(&Letters::default()).unwrap();
        sender.letter(event, Uuid::from_u128(300), "corr-1")
    }

    pub(in crate::mail) const RESOLVED: What = What::StatusChanged { from: Status::InProgress, to: Status::Resolved };
    const TAKEN: What = What::Assigned { from: None, to: Some(Uuid::from_u128(2)) };

    fn recipient(what: What, actor: u128, assignee: bool) -> Option<String> {
        let mut event = event(what);
        event.actor.id = Uuid::from_u128(actor);
        event.ticket.assignee = event.ticket.assignee.filter(|_| assignee);
        letter(&event).map(|letter| letter.to.name)
    }

    #[test]
    fn the_person_who_waits_gets_an_email_unless_they_made_the_change() {
        let (ana, ben) = (Some("Ana".to_owned()), Some("Ben".to_owned()));
        for (what, actor, assignee, expected) in [
            (What::Created, 1, false, &ana),
            (What::Created, 2, false, &ana),
            (TAKEN, 3, true, &ben),
            (TAKEN, 2, true, &None),
            (What::Assigned { from: Some(Uuid::nil()), to: None }, 3, false, &None),
            (RESOLVED, 2, true, &ana),
            (RESOLVED, 1, true, &ben),
            (RESOLVED, 1, false, &None),
            (What::Commented, 2, true, &None),
        ] {
            assert_eq!(&recipient(what.clone(), actor, assignee), expected, "{what:?} by {actor}");
        }
    }

    #[test]
    fn letters_say_this() {
        let all = [What::Created, RESOLVED, What::Assigned { from: None, to: Some(Uuid::from_u128(2)) }];
        let mut said = String::new();
        for (what, language) in all.iter().flat_map(|what| [(what, Language::Es), (what, Language::En)]) {
            let mut event = event(what.clone());
            event.actor = Caller { id: Uuid::from_u128(9), name: "Eva".to_owned(), role: Role::Admin };
            event.ticket.requester.language = language;
            event.ticket.assignee = Some(contact(2, "Ben", language));
            let letter = letter(&event).unwrap();
            writeln!(said, "Subject: {}\n\n{}\n-----", letter.subject, letter.text).unwrap();
        }
        insta::assert_snapshot!(said);
    }

    #[test]
    fn a_sender_that_is_no_address_is_refused() {
        let wrong = Letters { from: "invalid".to_owned(), ..Letters::default() };
        assert!(Sender::new(&wrong).is_err());
    }
}
