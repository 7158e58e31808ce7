//! A mail server's answers, each to its own e-mail.

use std::time::Duration;

use relevo_testkit::smtp::Smtp;
use ticketflow::config::Letters;
use ticketflow::domain::event::{EventTicket, What};
use ticketflow::domain::{Caller, Contact, Event, Language, Priority, Role, Status};
use ticketflow::mail::{self, Letter, Patience, Post as _, PostError, Sender};
use uuid::Uuid;

pub(crate) fn letter_to(email: &str) -> Letter {
    let (name, language) = ("Pia".to_owned(), Language::En);
    let pia = Contact { id: Uuid::now_v7(), name: name.clone(), email: email.to_owned(), language };
    let at = "2026-11-16T12:00:00Z".parse().expect("a time");
    let event = Event {
        event_id: Uuid::now_v7(),
        what: What::Created,
        occurred_at: at,
        actor: Caller { id: pia.id, name, role: Role::Requester },
        ticket: EventTicket {
            id: Uuid::now_v7(),
            number: 1,
            title: "No light".to_owned(),
            status: Status::Open,
            priority: Priority::Normal,
            version: 1,
            created_at: at,
            requester: pia,
            assignee: None,
        },
    };
    let sender = Sender::new(&Letters::default()).expect("the default is a sender");
    sender.letter(&event, Uuid::now_v7(), "c").expect("the requester gets an e-mail")
}

#[tokio::test]
async fn a_late_response_is_not_taken_for_the_next_emails() {
    let server = Smtp::start();
    let patience = Patience { deadline: Duration::from_secs(10), answer: Duration::from_secs(8) };
    let post = mail::Smtp::new(&server.url(), None, patience, &[]).expect("a URL");
    post.send(&letter_to("first@example.org")).await.expect("it is taken, and its connection kept");
    server.hold();
    post.send(&letter_to("late@example.org")).await.expect_err("its time is over");
    server.release();
    // Taken for refused would be a nuisance; refused for taken would be a loss.
    let refused = post.send(&letter_to("spam@example.org")).await;
    assert!(matches!(refused, Err(PostError::Refused(_))), "{refused:?}");
    post.send(&letter_to("next@example.org")).await.expect("it is taken");
    let kept = server.events().into_iter().filter(|event| event.starts_with("kept ")).collect::<Vec<_>>();
    let expected =
        ["first", "late", "next"].into_iter().zip(1..).map(|(to, n)| format!("kept {to}@example.org {n:06}"));
    assert_eq!(kept, expected.collect::<Vec<_>>());
}
