//! Refusals that may be about one e-mail or about all: none is given up for what is wrong with the server.

use std::time::Duration;

use ticketflow::config::{Broker, Role};

use crate::stage::{ANA, DEAD, Stage, depth, number, so, take, until};

const EMAILS: &str = "SELECT count(*) FROM ticketflow.email";

/// Its lookups fail, or it forgot that it passes on what is ours; it says so when the recipient is named.
#[tokio::test]
async fn a_server_whose_own_parts_are_away_buries_nothing() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    let pia = all.person("pia@ticketflow.example").await;
    all.open(&pia, "taken").await;
    until(async || so(number(&mut stage.session().await, EMAILS).await == 1, stage.smtp.events())).await;
    for (sent, answer) in (1..).zip(["451 4.3.0 temporary lookup failure", "550 relay not permitted"]) {
        stage.smtp.bar_but("nowhere.example", answer);
        all.open(ANA, "who are we").await;
        until(async || so(all.metric("inbox_breakers_open", "notifications").await > 0.5, stage.smtp.events())).await;
        stage.smtp.unbar();
        until(async || so(stage.smtp.mails().len() == sent + 1, stage.smtp.events())).await;
        until(async || so(all.metric("inbox_breakers_open", "notifications").await < 0.5, answer)).await;
    }
    assert!(all.metric("inbox_failed_total", "notifications").await < 0.5);
    assert!(all.metric("inbox_handled_total", DEAD).await < 0.5);
    all.stop().await;
}

/// A scanner that is down: nothing but another e-mail tells that it is not about the first.
#[tokio::test]
async fn a_server_that_refuses_every_letter_it_has_is_away() {
    for answer in ["451 4.7.1 service unavailable", "550 5.7.26 not from such a sender"] {
        let stage = Stage::new().await;
        let all = stage.start(Role::All).await;
        stage.smtp.spurn(answer);
        for number in 0..5 {
            let person = all.person(&format!("p{number}@example.org")).await;
            all.open(&person, "spurned").await;
        }
        until(async || so(all.metric("inbox_breakers_open", "notifications").await > 0.5, stage.smtp.events())).await;
        stage.smtp.unspurn();
        until(async || so(number(&mut stage.session().await, EMAILS).await == 5, stage.smtp.events())).await;
        assert!(all.metric("inbox_handled_total", DEAD).await < 0.5, "{answer}");
        assert!(stage.message_ids().values().all(|times| *times == 1));
        all.stop().await;
    }
}

/// It is tried as often as one that asks for patience, because nobody knows; and then it is given up, because others are taken.
#[tokio::test]
async fn one_letter_that_is_refused_again_and_again_is_given_up_while_others_flow() {
    let mut stage = Stage::new().await;
    if let Broker::RabbitMq { ladder, .. } = &mut stage.config.broker {
        *ladder = vec![Duration::from_millis(200)];
    }
    let all = stage.start(Role::All).await;
    let pia = all.person("dmarc@example.org").await;
    all.open(&pia, "not from us").await;
    all.open(ANA, "meanwhile").await;
    until(async || so(number(&mut stage.session().await, EMAILS).await == 1, stage.smtp.events())).await;
    until(async || so(all.figures().await["dead"]["notifications"] == 1, all.figures().await)).await;
    assert_eq!(stage.asked("dmarc@example.org"), 4, "once, twice from memory, and once behind the rung");
    let (_connection, channel) = stage.channel().await;
    until(async || so(depth(&channel, "notifications.dlq").await == 1, "no copy")).await;
    assert_eq!(take(&channel, "notifications.dlq").await["dead-letter-class"], "refused");
    assert!(all.metric("inbox_breakers_open", "notifications").await < 0.5);
    all.stop().await;
}
