//! Consumers in a SQLite file.

use std::time::Duration;

use relevo_core::inbox::Keeping;
use relevo_store_sqlite::inbox::{Config, Inbox};

use super::File;
use super::cases::{self, Run};

impl Run for File {
    fn run(&self, args: &[&str]) -> (i32, String, String) {
        Self::run(self, args)
    }
}

async fn inbox(file: &File, consumer: &str, keeping: Keeping) -> Inbox {
    Inbox::open(&Config::new(file.path()), consumer, keeping).await.expect("a migrated file")
}

async fn stage(name: &str) -> (File, Inbox) {
    let file = File::with_destination(name);
    let inbox = inbox(&file, "billing", Keeping::default()).await;
    (file, inbox)
}

#[tokio::test]
async fn consumers_are_listed_and_shown() {
    let (file, inbox) = stage("consumers").await;
    cases::consumers_are_listed_and_shown(&file, &inbox).await;
}

#[tokio::test]
async fn orders_reach_the_members() {
    let (file, inbox) = stage("orders").await;
    cases::orders_reach_the_members(&file, &inbox).await;
}

#[tokio::test]
async fn dead_letters_are_shown_as_they_came() {
    let (file, inbox) = stage("dead").await;
    cases::dead_letters_are_shown_as_they_came(&file, &inbox).await;
}

#[tokio::test]
async fn a_redrive_happens_once_and_what_fails_again_is_seen() {
    let (file, inbox) = stage("redrive").await;
    cases::a_redrive_happens_once_and_what_fails_again_is_seen(&file, &inbox).await;
}

#[tokio::test]
async fn what_is_archived_lets_its_key_go_on() {
    let (file, inbox) = stage("archive").await;
    cases::what_is_archived_lets_its_key_go_on(&file, &inbox).await;
}

#[tokio::test]
async fn with_several_consumers_one_is_chosen() {
    let (file, billing) = stage("several").await;
    let shipping = inbox(&file, "shipping", Keeping::default()).await;
    cases::with_several_consumers_one_is_chosen(&file, &billing, &shipping).await;
}

#[tokio::test]
async fn a_trace_follows_a_message() {
    let (file, billing) = stage("trace").await;
    let traced = Keeping { trace: Some(Duration::from_hours(1)), ..Keeping::default() };
    let shipping = inbox(&file, "shipping", traced).await;
    cases::a_trace_follows_a_message(&file, &billing, &shipping).await;
}

#[tokio::test]
async fn the_doctor_names_an_inbox_that_forgets_too_early() {
    let file = File::with_destination("doctor");
    let brief = inbox(&file, "billing", Keeping { done: Duration::from_hours(1), ..Keeping::default() }).await;
    cases::the_doctor_names_an_inbox_that_forgets_too_early(&file, &brief).await;
}
