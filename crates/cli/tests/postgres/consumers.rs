//! Consumers in PostgreSQL.

use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::inbox::InboxRetention;
use relevo_store_postgres::inbox::{Config, Inbox};

use super::cases::{self, Run};
use super::fixture::{arrival, billing, id, set_back};
use super::support::{Cli, stable};
use relevo_core::inbox::retries::InboxFailureAction;

impl Run for Cli {
    fn run(&self, args: &[&str]) -> (i32, String, String) {
        Self::run(self, args, "")
    }
}

async fn inbox(cli: &Cli, consumer: &str, keeping: InboxRetention) -> Inbox {
    Inbox::open(&Config::new(cli.database.options()), consumer, keeping).await.expect("a migrated database")
}

async fn fixture() -> (Cli, Inbox) {
    let cli = Cli::with_destination().await;
    let inbox = inbox(&cli, "billing", InboxRetention::default()).await;
    (cli, inbox)
}

#[tokio::test]
async fn consumers_are_listed_and_shown() {
    let (cli, inbox) = fixture().await;
    cases::consumers_are_listed_and_shown(&cli, &inbox).await;
    let (list, _) = cli.succeeds(&["consumer", "list"]);
    let (shown, _) = cli.succeeds(&["consumer", "show", "billing"]);
    insta::assert_snapshot!("consumers", format!("{}\n\n{}", stable(&list, &cli), stable(&shown, &cli)));
}

#[tokio::test]
async fn orders_reach_the_members() {
    let (cli, inbox) = fixture().await;
    cases::orders_reach_the_members(&cli, &inbox).await;
}

#[tokio::test]
async fn a_removed_consumer_keeps_its_inbox() {
    let (cli, inbox) = fixture().await;
    cases::a_removed_consumer_keeps_its_inbox(&cli, &inbox).await;
}

#[tokio::test]
async fn dead_letters_are_shown_as_they_came() {
    let (cli, inbox) = fixture().await;
    cases::dead_letters_are_shown_as_they_came(&cli, &inbox).await;
    let (list, _) = cli.succeeds(&["dead-letter", "list"]);
    let (shown, _) = cli.succeeds(&["dead-letter", "show", &id(3).to_string()]);
    insta::assert_snapshot!("consumers_dead", format!("{}\n\n{}", stable(&list, &cli), stable(&shown, &cli)));
}

#[tokio::test]
async fn a_redrive_happens_once_and_what_fails_again_is_seen() {
    let (cli, inbox) = fixture().await;
    cases::a_redrive_happens_once_and_what_fails_again_is_seen(&cli, &inbox).await;
}

#[tokio::test]
async fn two_operators_who_redrive_at_once_do_it_once() {
    let (cli, inbox) = fixture().await;
    billing(&inbox).await;
    let redrive = || {
        let args =
            ["dead-letter", "redrive", "--consumer", "billing", "--all", "--reason", "fixed", "--yes", "-o", "json"];
        super::support::objects(&cli.succeeds(&args).0)[0]["count"].as_u64().expect("a count")
    };
    let counts = std::thread::scope(|scope| {
        let both = [scope.spawn(redrive), scope.spawn(redrive)];
        both.map(|one| one.join().expect("it ends"))
    });
    assert_eq!(counts.iter().sum::<u64>(), 2, "{counts:?}");
    assert_eq!(cli.number("SELECT count(*) FROM relevo.inbox_dead_letter WHERE redrives = 1").await, 2);
}

#[tokio::test]
async fn a_discarded_dead_letter_lets_its_key_continue() {
    let (cli, inbox) = fixture().await;
    cases::a_discarded_dead_letter_lets_its_key_continue(&cli, &inbox).await;
}

#[tokio::test]
async fn with_several_consumers_one_is_chosen() {
    let (cli, billing) = fixture().await;
    let shipping = inbox(&cli, "shipping", InboxRetention::default()).await;
    cases::with_several_consumers_one_is_chosen(&cli, &billing, &shipping).await;
}

#[tokio::test]
async fn a_trace_follows_a_message() {
    let (cli, billing) = fixture().await;
    let shipping = inbox(&cli, "shipping", InboxRetention::default()).await;
    cases::a_trace_follows_a_message(&cli, &billing, &shipping).await;
    let emitted = cli.emit("o-1", "2");
    let message = arrival(emitted.parse().expect("an id"), "o-1", "2");
    super::fixture::handle(&billing, &message).await;
    set_back(&shipping, &message, InboxFailureAction::DeadLetter(AfterDead::Hold), "poison", "too heavy").await;
    let (trace, _) = cli.succeeds(&["trace", &emitted]);
    insta::assert_snapshot!("trace", stable(&trace, &cli));
}

#[tokio::test]
async fn the_doctor_names_an_inbox_that_forgets_too_early() {
    let cli = Cli::with_destination().await;
    let brief =
        inbox(&cli, "billing", InboxRetention { done: Duration::from_hours(1), ..InboxRetention::default() }).await;
    cases::the_doctor_names_an_inbox_that_forgets_too_early(&cli, &brief).await;
}
