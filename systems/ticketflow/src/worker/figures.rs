//! Figures: tickets by status, time to first response and to resolution, per agent and day.
//!
//! They are counted once, in the transaction that inserts an event into the inbox, in the order of each ticket's events. A
//! dead-lettered event does not block its ticket. When it is redriven, it follows later events, and adds only what was not counted.

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use relevo::inbox::{Handler, HandlerResult, Incoming, Verdict};
use uuid::Uuid;

use super::books::{Books, of_database};
use super::heart::Pulse;
use crate::domain::event::What;
use crate::domain::{Event, Status};

/// Counts events.
pub(super) struct Count {
    pulse: Pulse,
}

impl Count {
    pub(super) const fn new(pulse: Pulse) -> Self {
        Self { pulse }
    }
}

#[async_trait]
impl<T: Books> Handler<T> for Count {
    async fn handle(&self, books: &mut T, incoming: &Incoming) -> HandlerResult {
        let event: Event = incoming.json()?;
        let handled = count(books, &event).await.map_err(of_database)?;
        self.pulse.beat();
        Ok(handled)
    }
}

async fn count(books: &mut impl Books, event: &Event) -> Result<Verdict, sqlx::Error> {
    let before = books.figure(event.ticket.id).await?;
    let (mut figure, changes) = after(before.as_ref(), event);
    if let Some(before) = before.filter(|before| before.version >= event.ticket.version) {
        // A replay of events that were counted.
        if changes.is_empty() {
            return Ok(Verdict::Skip);
        }
        // A later event had the current state of the ticket.
        let Figure { first_response_at, resolved_at, .. } = figure;
        figure = Figure { first_response_at, resolved_at, ..before };
    }
    books.keep(&figure).await?;
    for change in &changes {
        books.count(change).await?;
    }
    Ok(Verdict::Done)
}

/// The state of a ticket in the figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Figure {
    pub(super) ticket_id: Uuid,
    pub(super) number: i64,
    pub(super) status: Status,
    pub(super) requester_id: Uuid,
    pub(super) agent: Option<Agent>,
    pub(super) opened_at: Timestamp,
    pub(super) first_response_at: Option<Timestamp>,
    pub(super) resolved_at: Option<Timestamp>,
    pub(super) version: i64,
}

/// The actor of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agent {
    pub(super) id: Uuid,
    pub(super) name: String,
}

/// An addition to a day, with or without an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DayChange {
    pub(super) day: Date,
    pub(super) agent: Option<Agent>,
    pub(super) what: Counted,
}

/// The counted kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    Opened,
    /// With its duration in milliseconds.
    FirstResponse(i64),
    /// With its duration in milliseconds.
    Resolved(i64),
}

/// The figures after an event, and its additions to days. A ticket is opened, first answered and resolved once each. The figures
/// record which of these were counted: a known ticket was counted as opened.
fn after(known: Option<&Figure>, event: &Event) -> (Figure, Vec<DayChange>) {
    let ticket = &event.ticket;
    let at = event.occurred_at;
    let took = at.duration_since(ticket.created_at).as_millis().try_into().unwrap_or(i64::MAX).max(0);
    let actor = Agent { id: event.actor.id, name: event.actor.name.clone() };
    let mut figure = Figure {
        ticket_id: ticket.id,
        number: ticket.number,
        status: ticket.status,
        requester_id: ticket.requester.id,
        agent: ticket.assignee.as_ref().map(|agent| Agent { id: agent.id, name: agent.name.clone() }),
        opened_at: ticket.created_at,
        first_response_at: known.and_then(|figure| figure.first_response_at),
        resolved_at: known.and_then(|figure| figure.resolved_at),
        version: ticket.version,
    };
    let mut changes = Vec::new();
    if known.is_none() {
        changes.push(DayChange { day: day(ticket.created_at), agent: None, what: Counted::Opened });
    }
    let mut add = |agent: Option<Agent>, what| changes.push(DayChange { day: day(at), agent, what });
    let responds = matches!(event.what, What::Commented | What::StatusChanged { .. });
    if responds && actor.id != ticket.requester.id && figure.first_response_at.is_none() {
        figure.first_response_at = Some(at);
        add(Some(actor.clone()), Counted::FirstResponse(took));
    }
    if matches!(event.what, What::StatusChanged { to: Status::Resolved, .. }) && figure.resolved_at.is_none() {
        figure.resolved_at = Some(at);
        add(Some(actor), Counted::Resolved(took));
    }
    (figure, changes)
}

fn day(at: Timestamp) -> Date {
    at.to_zoned(TimeZone::UTC).date()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::EventTicket;
    use crate::domain::{Caller, Contact, Language, Priority, Role};

    fn event(what: What, actor: u128, version: i64, at: &str) -> Event {
        let ana = Contact {
            id: Uuid::from_u128(1),
            name: "Ana".into(),
            email: "ana@example.org".into(),
            language: Language::Es,
        };
        let status = if let What::StatusChanged { to, .. } = what { to } else { Status::Open };
        Event {
            event_id: Uuid::now_v7(),
            what,
            occurred_at: at.parse().unwrap(),
            ticket: EventTicket {
                id: Uuid::from_u128(7),
                number: 7,
                title: "No light".into(),
                status,
                priority: Priority::Normal,
                version,
                created_at: "2026-11-16T23:59:58Z".parse().unwrap(),
                requester: ana,
                assignee: None,
            },
            actor: Caller { id: Uuid::from_u128(actor), name: format!("p{actor}"), role: Role::Agent },
        }
    }

    fn resolved(from: Status) -> What {
        What::StatusChanged { from, to: Status::Resolved }
    }

    #[test]
    fn a_ticket_is_opened_answered_and_resolved_once_each_on_its_own_day() {
        let mut figure = None;
        let mut said = Vec::new();
        let reopened = What::StatusChanged { from: Status::Resolved, to: Status::InProgress };
        for (version, (what, actor, at)) in (1..).zip([
            (What::Created, 1, "2026-11-16T23:59:58Z"),
            (What::Commented, 1, "2026-11-16T23:59:59Z"), // the requester's own comment is not a response
            (What::Assigned { from: None, to: Some(Uuid::from_u128(2)) }, 2, "2026-11-16T23:59:59Z"),
            (What::Commented, 2, "2026-11-17T00:00:00Z"),
            (resolved(Status::Open), 3, "2026-11-17T00:00:01.5Z"),
            (reopened, 1, "2026-11-18T00:00:00Z"),
            (resolved(Status::InProgress), 2, "2026-11-18T00:00:01Z"),
        ]) {
            let (after, changes) = after(figure.as_ref(), &event(what, actor, version, at));
            said.extend(changes.iter().map(|change| {
                let agent = change.agent.as_ref().map_or("none", |agent| agent.name.as_str()).to_owned();
                (change.day.to_string(), agent, change.what)
            }));
            figure = Some(after);
        }
        let expected = [
            ("2026-11-16", "none", Counted::Opened),
            ("2026-11-17", "p2", Counted::FirstResponse(2_000)),
            ("2026-11-17", "p3", Counted::Resolved(3_500)),
        ];
        assert_eq!(said, expected.map(|(day, agent, what)| (day.to_owned(), agent.to_owned(), what)));
        let figure = figure.unwrap();
        assert_eq!((figure.status, figure.version), (Status::Resolved, 7));
    }

    #[test]
    fn a_ticket_that_was_never_seen_counts_from_where_it_stands() {
        let (figure, changes) = after(None, &event(resolved(Status::Waiting), 2, 5, "2026-11-18T00:00:00Z"));
        let counted: Vec<_> = changes.iter().map(|change| (change.day.to_string(), change.what)).collect();
        assert_eq!(figure.version, 5);
        let [opened, resolved] = ["2026-11-16", "2026-11-18"].map(str::to_owned);
        let took = 24 * 3_600_000 + 2_000;
        let expected = [
            (opened, Counted::Opened),
            (resolved.clone(), Counted::FirstResponse(took)),
            (resolved, Counted::Resolved(took)),
        ];
        assert_eq!(counted, expected);
    }

    /// The figures of one ticket, in memory.
    #[derive(Default)]
    struct Page {
        figure: Option<Figure>,
        counted: Vec<Counted>,
    }

    #[async_trait]
    impl Books for Page {
        async fn sent(&mut self, _: &crate::mail::Letter) -> Result<(), sqlx::Error> {
            unreachable!("figures send nothing")
        }

        async fn figure(&mut self, _: Uuid) -> Result<Option<Figure>, sqlx::Error> {
            Ok(self.figure.clone())
        }

        async fn keep(&mut self, figure: &Figure) -> Result<(), sqlx::Error> {
            self.figure = Some(figure.clone());
            Ok(())
        }

        async fn count(&mut self, change: &DayChange) -> Result<(), sqlx::Error> {
            self.counted.push(change.what);
            Ok(())
        }
    }

    #[tokio::test]
    async fn an_event_behind_later_ones_adds_what_is_missing_and_changes_nothing_else() {
        let closed = What::StatusChanged { from: Status::Resolved, to: Status::Closed };
        let events = [
            event(What::Created, 1, 1, "2026-11-16T23:59:58Z"),
            event(resolved(Status::Open), 2, 2, "2026-11-17T00:00:00Z"),
            event(closed, 1, 3, "2026-11-18T00:00:00Z"),
        ];
        let [created, resolved, closed] = &events;
        let mut page = Page::default();
        for event in [closed, resolved] {
            assert_eq!(count(&mut page, event).await.unwrap(), Verdict::Done);
        }
        assert_eq!(page.counted, [Counted::Opened, Counted::FirstResponse(2_000), Counted::Resolved(2_000)]);
        let figure = page.figure.clone().unwrap();
        assert_eq!((figure.status, figure.version), (Status::Closed, 3));
        assert_eq!(figure.resolved_at, Some(resolved.occurred_at));
        for event in [created, resolved, closed] {
            assert_eq!(count(&mut page, event).await.unwrap(), Verdict::Skip, "nothing is counted twice");
        }
        assert_eq!((page.counted.len(), page.figure), (3, Some(figure)));
    }

    #[test]
    fn clocks_that_run_apart_make_no_time_negative() {
        let (_, changes) = after(None, &event(resolved(Status::Open), 2, 5, "2026-11-16T00:00:00Z"));
        let times = changes.iter().filter(|change| change.what != Counted::Opened);
        assert!(times.clone().all(|change| matches!(change.what, Counted::FirstResponse(0) | Counted::Resolved(0))));
        assert_eq!(times.count(), 2);
    }
}
