//! The texts of letters, in each language.

use crate::domain::event::What;
use crate::domain::{Event, Language, Priority, Status};

/// The texts of one language.
pub(super) struct Words {
    language: Language,
}

/// The content of a letter, before it is formatted as text or HTML.
pub(super) struct Content {
    pub(super) language: Language,
    pub(super) subject: String,
    pub(super) greeting: String,
    /// The sentence about the change.
    pub(super) sentence: String,
    /// The ticket's number and title.
    pub(super) number: String,
    pub(super) title: String,
    pub(super) status: &'static str,
    /// The status word, which selects a colour.
    pub(super) status_word: &'static str,
    /// Names and values.
    pub(super) facts: [(&'static str, String); 3],
    pub(super) button: &'static str,
    pub(super) link: String,
    pub(super) footer: &'static str,
}

impl Words {
    pub(super) const fn of(language: Language) -> Self {
        Self { language }
    }

    /// The content of a letter to `reader` about an event.
    pub(super) fn tell(&self, event: &Event, reader: &str, link: String) -> Content {
        let ticket = &event.ticket;
        let (subject, sentence) = self.news(event);
        let number = format!("#{}", ticket.number);
        let [status, priority, by] = self.pick(["Estado", "Prioridad", "Por"], ["Status", "Priority", "By"]);
        Content {
            language: self.language,
            subject: one_line(&format!("[{number}] {subject}: {}", ticket.title)),
            greeting: self.pick(format!("Hola, {reader}:"), format!("Hello {reader},")),
            sentence,
            number,
            title: ticket.title.clone(),
            status: self.status(ticket.status),
            status_word: ticket.status.word(),
            facts: [
                (status, self.status(ticket.status).to_owned()),
                (priority, self.priority(ticket.priority).to_owned()),
                (by, event.actor.name.clone()),
            ],
            button: self.pick("Ver el ticket", "See the ticket"),
            link,
            footer: self.pick(
                "TicketFlow envía este mensaje automáticamente. No hace falta responder.",
                "TicketFlow sends this message by itself. There is no need to answer.",
            ),
        }
    }

    /// The beginning of the subject, and the first sentence.
    fn news(&self, event: &Event) -> (String, String) {
        let (actor, status) = (&event.actor.name, self.status(event.ticket.status));
        match &event.what {
            What::Created => (
                self.pick("Ticket recibido", "Ticket received").to_owned(),
                self.pick(
                    "Hemos recibido tu ticket. Te escribiremos cuando haya novedades.",
                    "We have your ticket and will write when there is news.",
                )
                .to_owned(),
            ),
            What::Assigned { .. } => (
                self.pick("Ticket asignado a ti", "Ticket assigned to you").to_owned(),
                self.pick(
                    format!("{actor} te ha asignado este ticket."),
                    format!("{actor} has assigned this ticket to you."),
                ),
            ),
            What::StatusChanged { from, .. } => {
                let before = self.status(*from);
                let sentence = self.pick(
                    format!("{actor} ha cambiado el estado del ticket de «{before}» a «{status}»."),
                    format!("{actor} has changed the ticket from “{before}” to “{status}”."),
                );
                (format!("Ticket {status}"), sentence)
            }
            What::Commented => (self.pick("Comentario", "Comment").to_owned(), String::new()),
        }
    }

    const fn status(&self, status: Status) -> &'static str {
        match (self.language, status) {
            (Language::Es, Status::Open) => "abierto",
            (Language::Es, Status::InProgress) => "en curso",
            (Language::Es, Status::Waiting) => "en espera",
            (Language::Es, Status::Resolved) => "resuelto",
            (Language::Es, Status::Closed) => "cerrado",
            (Language::En, Status::Open) => "open",
            (Language::En, Status::InProgress) => "in progress",
            (Language::En, Status::Waiting) => "waiting",
            (Language::En, Status::Resolved) => "resolved",
            (Language::En, Status::Closed) => "closed",
        }
    }

    const fn priority(&self, priority: Priority) -> &'static str {
        match (self.language, priority) {
            (Language::Es, Priority::Low) => "baja",
            (Language::Es | Language::En, Priority::Normal) => "normal",
            (Language::Es, Priority::High) => "alta",
            (Language::Es, Priority::Urgent) => "urgente",
            (Language::En, Priority::Low) => "low",
            (Language::En, Priority::High) => "high",
            (Language::En, Priority::Urgent) => "urgent",
        }
    }

    fn pick<T>(&self, spanish: T, english: T) -> T {
        match self.language {
            Language::Es => spanish,
            Language::En => english,
        }
    }
}

impl Content {
    /// Formats it as plain text.
    pub(super) fn text(&self) -> String {
        let facts: Vec<_> = self.facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        format!(
            "{}\n\n{}\n\n{} {}\n{}\n\n{}:\n{}\n\n-- \n{}\n",
            self.greeting,
            self.sentence,
            self.number,
            self.title,
            facts.join("\n"),
            self.button,
            self.link,
            self.footer
        )
    }
}

/// A subject is one line whatever the title contains, so that a title cannot add a header.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}
