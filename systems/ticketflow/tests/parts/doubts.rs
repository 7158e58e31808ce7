//! Rejections that may be about one e-mail or about all: a problem of the server dead-letters none.

use std::time::Duration;

use ticketflow::config::{Broker, Role};

use crate::stage::{ANA, DEAD, Stage, depth, number, so, take, until};

const EMAILS: &str = "SELECT count(*) FROM ticketflow.email";

/// Its lookups fail, or it forgot that it passes on what is ours; it says so when the recipient is named.
#[tokio::test]
async fn a_server_with_an_unavailable_component_dead_letters_nothing() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    let pia = all.person("pia@ticketflow.example").await;
    all.open(&pia, "taken").await;
    until(async || so(number(&mut stage.session().await, EMAILS).await == 1, stage.smtp.events())).await;
    for answer in ["451 4.3.0 temporary lookup failure", "550 relay not permitted"] {
        stage.waits_while_barred(&all, answer).await;
    }
    assert!(all.metric("inbox_handler_failures_total", "notifications").await < 0.5);
    assert!(all.metric("inbox_handled_total", DEAD).await < 0.5);
    all.stop().await;
}

/// A scanner that is down, a rule that is wrong: nothing but another e-mail tells that it is not about the first.
#[tokio::test]
async fn a_rejection_after_the_data_is_never_final_at_once() {
    for answer in ["451 4.7.1 service unavailable", "550 5.7.26 not from such a sender"] {
        let mut stage = Stage::new().await;
        if let Broker::RabbitMq { ladder, .. } = &mut stage.config.broker {
            *ladder = [5, 6, 7].map(Duration::from_secs).to_vec();
        }
        let all = stage.start(Role::All).await;
        stage.smtp.spurn(answer);
        for number in 0..5 {
            let person = all.person(&format!("p{number}@example.org")).await;
            all.open(&person, "spurned").await;
        }
        until(async || {
            let spurned = stage.smtp.events().iter().filter(|event| event.starts_with("spurned ")).count();
            so(spurned > 5, spurned)
        })
        .await;
        stage.smtp.unspurn();
        until(async || so(number(&mut stage.session().await, EMAILS).await == 5, stage.smtp.events())).await;
        assert!(all.metric("inbox_handled_total", DEAD).await < 0.5, "{answer}");
        assert!(stage.message_ids().values().all(|times| *times == 1));
        all.stop().await;
    }
}

/// It is retried like a temporary rejection, because the reason is unknown, and then dead-lettered, because others are accepted.
#[tokio::test]
async fn one_letter_that_is_rejected_repeatedly_is_dead_lettered_while_others_continue() {
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
    assert!(all.metric("inbox_member_breakers_open", "notifications").await < 0.5);
    all.stop().await;
}

/// They cannot be distinguished from a server that rejects all letters, but the others must not wait.
#[tokio::test]
async fn several_rejected_letters_do_not_delay_others() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    for number in 0..3 {
        let person = all.person(&format!("dmarc{number}@example.org")).await;
        all.open(&person, "not from us").await;
    }
    until(async || so((0..3).all(|number| stage.asked(&format!("dmarc{number}@example.org")) > 0), "not yet")).await;
    for sent in 1..=2 {
        all.open(ANA, "meanwhile").await;
        until(async || so(stage.smtp.mails().len() == sent, stage.smtp.events())).await;
    }
    assert!(all.metric("inbox_member_breakers_open", "notifications").await < 0.5);
    all.stop().await;
}
