//! Copies of dead letters at RabbitMQ, looked at and purged as the page about it says.

use std::process::Command;

use relevo::core::dead_letters::{DeadLetterAdmin as _, DeadLetterFilter, MarkAction, MarkRequest};
use relevo::stores::postgres;
use serde_json::Value;
use ticketflow::config::Role;
use ticketflow::flow::NOTIFICATIONS;

use crate::stage::{ANA, Stage, depth, so, until};

const PAGE: &str = include_str!("../../docs/rabbitmq-topology.md");

/// What the page's command with this word in it says, at the stage's virtual host.
fn typed(stage: &Stage, word: &str) -> String {
    let line =
        PAGE.lines().find(|line| line.starts_with("rabbitmqadmin ") && line.contains(word)).expect("the page has it");
    let url = stage.vhost.management_url();
    let (login, place) = url.strip_prefix("http://").and_then(|rest| rest.split_once('@')).expect("a login");
    let ((user, password), (host, port)) =
        login.split_once(':').zip(place.split_once(':')).expect("a password and a port");
    let options = format!("-H {host} -P {port} -u {user} -p {password} -V {}", stage.vhost.name());
    let line = line.replace("-V VHOST", &options);
    let output = Command::new("sh").args(["-euc", &line]).output().expect("`sh` runs");
    assert!(output.status.success(), "`{line}` fails: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_copy_of_a_redriven_email_stays_until_the_queue_is_purged() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    let of_inbox = async || all.sampled("mq_dlq_total", "consumer=\"notifications\"").await;
    let of_queue = async || all.sampled("mq_dlq_total", "queue=\"notifications.dlq\"").await;
    let some = |dead: Option<f64>| dead.is_some_and(|dead| dead > 0.5);
    let none = |dead: Option<f64>| dead.is_some_and(|dead| dead < 0.5);
    stage.smtp.bar_but("nowhere.example", "550 5.1.1 no such mailbox");
    all.open(ANA, "rejected").await;
    until(async || so(some(of_inbox().await) && some(of_queue().await), "nothing is dead")).await;
    let copies: Vec<Value> = serde_json::from_str(&typed(&stage, " get ")).expect("a list");
    let [copy] = &copies[..] else { panic!("{copies:?}") };
    assert_eq!(copy["properties"]["headers"]["dead-letter-class"], "refused", "{copy}");
    let id = copy["properties"]["headers"]["dead-letter-id"].as_str().expect("an id").parse().expect("an id");

    stage.smtp.unbar();
    let config = postgres::OperatorConfig::new(stage.database.options());
    let operator = postgres::Operator::open(config).await.expect("the tables are there");
    let mark = MarkRequest {
        filter: DeadLetterFilter { ids: vec![id], ..DeadLetterFilter::of_consumer(NOTIFICATIONS) },
        action: MarkAction::Redrive,
        dry_run: false,
        rate_per_second: None,
        by: "a test".to_owned(),
        reason: "there is a mailbox now".to_owned(),
    };
    assert_eq!(operator.mark_dead_letters(&mark).await.expect("it is there").count, 1);
    until(async || so(stage.smtp.mails().len() == 1, stage.smtp.events())).await;
    until(async || so(none(of_inbox().await), "it is dead")).await;
    let (_connection, channel) = stage.channel().await;
    assert_eq!(depth(&channel, "notifications.dlq").await, 1, "only an operator removes a copy");
    typed(&stage, " purge ");
    until(async || so(none(of_queue().await), "the copy is there")).await;
    all.stop().await;
}
