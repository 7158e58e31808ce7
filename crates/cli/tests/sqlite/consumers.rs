//! Consumers in a SQLite file.

use std::time::Duration;

use relevo_core::inbox::InboxRetention;
use relevo_core::inbox::members::InboxMembers as _;
use relevo_store_sqlite::inbox::{Config, Inbox};

use super::File;
use super::cases::{self, Run};

impl Run for File {
    fn run(&self, args: &[&str]) -> (i32, String, String) {
        Self::run(self, args)
    }
}

async fn inbox(file: &File, consumer: &str, keeping: InboxRetention) -> Inbox {
    Inbox::open(&Config::new(file.path()), consumer, keeping).await.expect("a migrated file")
}

async fn fixture(name: &str) -> (File, Inbox) {
    let file = File::with_destination(name);
    let inbox = inbox(&file, "billing", InboxRetention::default()).await;
    (file, inbox)
}

#[tokio::test]
async fn consumers_are_listed_and_shown() {
    let (file, inbox) = fixture("consumers").await;
    cases::consumers_are_listed_and_shown(&file, &inbox).await;
}

#[tokio::test]
async fn orders_reach_the_members() {
    let (file, inbox) = fixture("orders").await;
    cases::orders_reach_the_members(&file, &inbox).await;
}

#[tokio::test]
async fn a_removed_consumer_keeps_its_inbox() {
    let (file, inbox) = fixture("forget").await;
    cases::a_removed_consumer_keeps_its_inbox(&file, &inbox).await;
}

#[tokio::test]
async fn dead_letters_are_shown_as_they_came() {
    let (file, inbox) = fixture("dead").await;
    cases::dead_letters_are_shown_as_they_came(&file, &inbox).await;
}

#[tokio::test]
async fn a_redrive_happens_once_and_what_fails_again_is_seen() {
    let (file, inbox) = fixture("redrive").await;
    cases::a_redrive_happens_once_and_what_fails_again_is_seen(&file, &inbox).await;
}

#[tokio::test]
async fn a_discarded_dead_letter_lets_its_key_continue() {
    let (file, inbox) = fixture("archive").await;
    cases::a_discarded_dead_letter_lets_its_key_continue(&file, &inbox).await;
}

#[tokio::test]
async fn with_several_consumers_one_is_chosen() {
    let (file, billing) = fixture("several").await;
    let shipping = inbox(&file, "shipping", InboxRetention::default()).await;
    cases::with_several_consumers_one_is_chosen(&file, &billing, &shipping).await;
}

#[tokio::test]
async fn a_trace_follows_a_message() {
    let (file, billing) = fixture("trace").await;
    let shipping = inbox(&file, "shipping", InboxRetention::default()).await;
    cases::a_trace_follows_a_message(&file, &billing, &shipping).await;
}

#[tokio::test]
async fn the_doctor_names_an_inbox_that_forgets_too_early() {
    let file = File::with_destination("doctor");
    let brief =
        inbox(&file, "billing", InboxRetention { done: Duration::from_hours(1), ..InboxRetention::default() }).await;
    cases::the_doctor_names_an_inbox_that_forgets_too_early(&file, &brief).await;
}

#[tokio::test]
async fn the_doctor_compares_the_inboxes_of_other_databases_with_a_whole_configuration() {
    let shop = File::with_destination("doctor-shop");
    let shipping = File::with_destination("doctor-shipping");
    let brief =
        inbox(&shipping, "shipping", InboxRetention { done: Duration::from_hours(1), ..InboxRetention::default() })
            .await;
    super::fixture::member(&brief).await;
    brief.prune(10).await.expect("it prunes");
    let config = shop.0.join("relevo.toml");
    let broker = shop.0.join("broker.db");
    let text = format!(
        "[outboxes.shop]\ndatabase = \"sqlite:{}\"\n[outboxes.shop.destinations.main]\n\
         broker = {{ kind = \"embedded\", path = \"{}\" }}\n",
        shop.path().display(),
        broker.display()
    );
    std::fs::write(&config, text).expect("a file of the test's own");
    let url = format!("sqlite:{}", shipping.path().display());
    let (code, findings, stderr) =
        shop.run(&["doctor", "-c", config.to_str().expect("UTF-8"), "--inbox", &url, "-o", "json"]);
    assert_eq!((code, stderr.as_str()), (3, ""));
    let found: Vec<_> = super::objects(&findings).into_iter().filter(|it| it["subject"] == "inbox retention").collect();
    assert_eq!((found.len(), found[0]["severity"].as_str()), (1, Some("warning")), "{findings}");
    assert_eq!(found[0]["inbox"], shipping.path().display().to_string());
    assert!(found[0]["observed"].as_str().expect("a sentence").contains("(outbox `shop`)"), "{}", found[0]);
    let (_, report, _) = shop.run(&["doctor", "-c", config.to_str().expect("UTF-8"), "--inbox", &url]);
    assert!(report.contains(&format!("inboxes at {}:\n", shipping.path().display())), "{report}");
}
