//! What a mail server answers, and what becomes of the e-mail.

use std::time::Duration;

use serde_json::json;
use ticketflow::config::{Broker, Mail, Role, Secret};

use crate::stage::{ANA, DEAD, Stage, depth, header, number, so, take, until};

#[tokio::test]
async fn an_email_arrives_as_it_was_written() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    let body = json!({ "title": "La impresora <b>no</b> imprime", "description": "x" });
    let answer = all.post(ANA, "/api/tickets", &["x-correlation-id: from-the-request.1"], &body).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    let mail = until(async || stage.smtp.mails().pop().ok_or_else(|| "nothing".to_owned())).await;
    let event = number(&mut stage.session().await, "SELECT count(*) FROM relevo.message").await;
    assert_eq!(event, 1);
    for (name, value) in [
        ("From", "TicketFlow <soporte@ticketflow.example>"),
        ("To", "Ana <ana@ticketflow.example>"),
        ("Subject", "[#1] Ticket recibido: La impresora <b>no</b> imprime"),
        ("X-Correlation-Id", "from-the-request.1"),
        ("Auto-Submitted", "auto-generated"),
        ("Content-Language", "es"),
    ] {
        assert_eq!(header(&mail, name).as_deref(), Some(value), "{name}");
    }
    assert!(header(&mail, "Message-ID").is_some_and(|id| id.ends_with("@ticketflow.example>")), "{mail}");
    assert!(header(&mail, "X-Event-Id").is_some_and(|id| id.len() == 36), "{mail}");
    assert!(header(&mail, "Content-Type").is_some_and(|kind| kind.starts_with("multipart/alternative")), "{mail}");
    assert!(mail.contains("Content-Type: text/plain; charset=utf-8") && mail.contains("Hola, Ana:"), "{mail}");
    assert!(
        mail.contains("Content-Type: text/html; charset=utf-8") && mail.contains("&lt;b&gt;no&lt;/b&gt;"),
        "{mail}"
    );
    all.stop().await;
}

#[tokio::test]
async fn a_rejected_address_is_a_dead_letter_and_others_continue() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    let rejected = all.person("refused@example.org").await;
    all.open(&rejected, "rejected").await;
    all.open(ANA, "to Ana").await;
    until(async || so(stage.smtp.mails().len() == 1, stage.smtp.events())).await;
    let figures = until(async || {
        let figures = all.figures().await;
        if figures["dead"]["notifications"] == 1 { Ok(figures) } else { Err(figures.to_string()) }
    });
    assert_eq!(figures.await["dead"]["metrics"], 0);
    assert_eq!(stage.asked("refused@example.org"), 1, "a refusal is not tried again");
    let (_connection, channel) = stage.channel().await;
    until(async || so(depth(&channel, "notifications.dlq").await == 1, "no copy")).await;
    let copy = take(&channel, "notifications.dlq").await;
    assert_eq!(copy["dead-letter-class"], "refused", "{copy:?}");
    assert!(copy["dead-letter-error"].contains("5.1.1") && copy.contains_key("x-event-id"), "{copy:?}");
    // The alert asks for more than none.
    until(async || {
        let dead = all.sampled("mq_dlq_total", "").await;
        so(dead.is_some_and(|dead| dead > 0.5), dead)
    })
    .await;
    all.stop().await;
}

#[tokio::test]
async fn a_greylisted_email_is_retried_and_arrives() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    let pia = all.person("grey2@example.org").await;
    all.open(&pia, "patience").await;
    until(async || so(stage.smtp.mails().len() == 1, stage.smtp.events())).await;
    assert_eq!(stage.asked("grey2@example.org"), 3);
    assert!(all.metric("inbox_handled_total", DEAD).await < 0.5);
    all.stop().await;
}

#[tokio::test]
async fn an_unreachable_mail_server_opens_the_breaker_and_counts_no_attempt() {
    let mut stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    stage.smtp.kill9();
    for number in 0..5 {
        all.open(ANA, &format!("away {number}")).await;
    }
    until(async || {
        let open = all.metric("inbox_member_breakers_open", "consumer=\"notifications\"").await;
        so(open > 0.5, open)
    })
    .await;
    // Figures need no mail server.
    until(async || so(all.figures().await["by_status"]["open"] == 5, "not all counted")).await;
    stage.smtp.start_again();
    until(async || so(stage.smtp.mails().len() == 5, stage.smtp.events())).await;
    until(async || so(all.metric("inbox_member_breakers_open", "notifications").await < 0.5, "still open")).await;
    assert!(all.metric("inbox_handler_failures_total", "notifications").await < 0.5, "an outage is no try");
    assert!(all.metric("inbox_handled_total", DEAD).await < 0.5);
    assert!(stage.message_ids().values().all(|times| *times == 1));
    all.stop().await;
}

#[tokio::test]
async fn a_mail_server_that_hangs_is_unreachable() {
    let mut stage = Stage::new().await;
    stage.config.worker.deadline = Duration::from_secs(1);
    let all = stage.start(Role::All).await;
    stage.smtp.deafen();
    all.open(ANA, "patience").await;
    until(async || so(all.metric("inbox_member_breakers_open", "notifications").await > 0.5, stage.smtp.events()))
        .await;
    assert!(all.metric("inbox_handler_failures_total", "notifications").await < 0.5, "an outage is no try");
    stage.smtp.hear();
    until(async || so(number(&mut stage.session().await, "SELECT count(*) FROM ticketflow.email").await == 1, "none"))
        .await;
    assert!(all.metric("inbox_handled_total", DEAD).await < 0.5);
    assert!(stage.message_ids().values().all(|times| *times == 1));
    all.stop().await;
}

/// The server may have taken it each time, so that tries without an end would be e-mails without an end.
#[tokio::test]
async fn an_email_without_a_response_is_counted_and_dead_lettered_while_others_continue() {
    const TRIES: usize = 4; // once, twice from memory, and once behind the rung
    let mut stage = Stage::new().await;
    if let Broker::RabbitMq { ladder, .. } = &mut stage.config.broker {
        *ladder = vec![Duration::from_millis(200)];
    }
    stage.config.worker.answer = Duration::from_secs(3);
    let all = stage.start(Role::All).await;
    for address in ["cut@example.org", "mute@example.org"] {
        let pia = all.person(address).await;
        all.open(&pia, "no answer").await;
    }
    all.open(ANA, "meanwhile").await;
    stage.has_queues().await;
    let (_connection, channel) = stage.channel().await;
    until(async || so(depth(&channel, "notifications.dlq").await == 2, stage.smtp.events())).await;
    for _ in 0..2 {
        assert_eq!(take(&channel, "notifications.dlq").await["dead-letter-class"], "unanswered");
    }
    let mut times: Vec<_> = stage.message_ids().into_values().collect();
    times.sort_unstable();
    assert_eq!(times, [1, TRIES, TRIES], "Ana's once, and the others' under one Message-ID each");
    assert!(all.metric("inbox_member_breakers_open", "notifications").await < 0.5, "the server takes others");
    all.stop().await;
}

#[tokio::test]
async fn an_email_with_a_lost_response_is_sent_again_with_the_same_message_id() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    let pia = all.person("lost@example.org").await;
    all.open(&pia, "lost").await;
    until(async || so(stage.smtp.mails().len() == 2, stage.smtp.events())).await;
    let mails = stage.smtp.mails();
    assert_eq!(mails[0], mails[1], "the repeat is the same to the last byte");
    until(async || so(number(&mut stage.session().await, "SELECT count(*) FROM ticketflow.email").await == 1, "none"))
        .await;
    all.stop().await;
}

#[tokio::test]
async fn a_server_that_closes_the_session_for_one_email_is_retried_and_counted() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    let pia = all.person("closing2@example.org").await;
    all.open(&pia, "closed").await;
    until(async || so(stage.smtp.mails().len() == 1, stage.smtp.events())).await;
    assert_eq!(stage.asked("closing2@example.org"), 3);
    let failed = all.metric("inbox_handler_failures_total", "notifications").await;
    assert!((failed - 2.0).abs() < 0.5, "{failed}");
    all.stop().await;
}

/// It says the same codes as one that refuses an e-mail.
#[tokio::test]
async fn a_server_that_rejects_the_login_is_unreachable_and_dead_letters_nothing() {
    let mut stage = Stage::new().await;
    stage.config.mail =
        Mail::Smtp { url: Secret::new(stage.smtp.url().replace("smtp://", "smtp://us:wrong@")), ca_file: None };
    let all = stage.start(Role::All).await;
    all.open(ANA, "who are we").await;
    until(async || so(all.metric("inbox_member_breakers_open", "notifications").await > 0.5, stage.smtp.events()))
        .await;
    assert!(all.metric("inbox_handler_failures_total", "notifications").await < 0.5);
    assert!(all.metric("inbox_handled_total", DEAD).await < 0.5);
    all.stop().await;
}

/// Nothing that is said about us may be held against an e-mail.
#[tokio::test]
async fn a_server_that_rejects_the_sender_is_unreachable_and_the_email_arrives_later() {
    for answer in [
        "530 5.7.0 authentication required",
        "553 5.7.1 sender is not yours",
        "452 4.3.1 not now",
        "421 4.3.2 going down",
    ] {
        let stage = Stage::new().await;
        let all = stage.start(Role::All).await;
        stage.smtp.unwelcome(answer);
        all.open(ANA, "who are we").await;
        until(async || so(all.metric("inbox_member_breakers_open", "notifications").await > 0.5, stage.smtp.events()))
            .await;
        assert!(all.metric("inbox_handler_failures_total", "notifications").await < 0.5, "{answer}");
        assert!(all.metric("inbox_handled_total", DEAD).await < 0.5, "{answer}");
        stage.smtp.welcome();
        until(async || so(stage.smtp.mails().len() == 1, stage.smtp.events())).await;
        all.stop().await;
    }
}

/// Like a server that checks client, name and sender after the recipient: the rejection is about the sender.
#[tokio::test]
async fn a_rejection_of_the_sender_after_the_recipient_dead_letters_nothing() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    let refusals = [
        "554 5.7.1 relay access denied",
        "550 5.7.54 unable to relay",
        "454 4.7.1 relay access denied",
        "450 4.7.1 client host rejected",
    ];
    for answer in refusals {
        stage.waits_while_barred(&all, answer).await;
    }
    assert!(all.metric("inbox_handler_failures_total", "notifications").await < 0.5);
    assert!(all.metric("inbox_handled_total", DEAD).await < 0.5);
    all.stop().await;
}

/// Where our login is missing, a server takes what is for its own domain and passes nothing on. That it did so before, a new worker
/// knows from the database.
#[tokio::test]
async fn a_server_that_stops_relaying_dead_letters_nothing() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    let pia = all.person("pia@example.org").await;
    all.open(&pia, "passed on").await;
    until(async || so(number(&mut stage.session().await, "SELECT count(*) FROM ticketflow.email").await == 1, "none"))
        .await;
    all.stop().await;
    let all = stage.start(Role::All).await;
    stage.smtp.bar_but("ticketflow.example", "554 5.7.1 relay access denied");
    let zoe = all.person("zoe@example.com").await;
    all.open(&zoe, "far away").await;
    until(async || so(all.metric("inbox_member_breakers_open", "notifications").await > 0.5, stage.smtp.events()))
        .await;
    stage.smtp.unbar();
    until(async || so(stage.smtp.mails().len() == 2, stage.smtp.events())).await;
    assert!(all.metric("inbox_handler_failures_total", "notifications").await < 0.5);
    assert!(all.metric("inbox_handled_total", DEAD).await < 0.5);
    all.stop().await;
}

/// Nor does it stop what it takes.
#[tokio::test]
async fn a_server_that_never_relayed_continues_with_its_own_domain() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    stage.smtp.bar_but("ticketflow.example", "554 5.7.1 relay access denied");
    let pia = all.person("pia@example.org").await;
    all.open(&pia, "far away").await;
    until(async || so(all.figures().await["dead"]["notifications"] == 1, all.figures().await)).await;
    all.open(ANA, "at home").await;
    until(async || so(stage.smtp.mails().len() == 1, stage.smtp.events())).await;
    assert!(all.metric("inbox_member_breakers_open", "notifications").await < 0.5);
    all.stop().await;
}

#[tokio::test]
async fn a_recipient_rejected_by_a_policy_is_a_dead_letter_and_others_continue() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    all.open(ANA, "to Ana").await;
    until(async || so(stage.smtp.mails().len() == 1, stage.smtp.events())).await;
    let rejected = all.person("policy@ticketflow.example").await;
    all.open(&rejected, "rejected").await;
    until(async || so(all.figures().await["dead"]["notifications"] == 1, all.figures().await)).await;
    // Ana is asked for instead, and has no second e-mail.
    assert_eq!((stage.asked("policy@ticketflow.example"), stage.asked("ana@ticketflow.example")), (1, 2));
    assert_eq!(stage.smtp.mails().len(), 1);
    assert!(all.metric("inbox_member_breakers_open", "notifications").await < 0.5);
    all.stop().await;
}

#[tokio::test]
async fn a_server_that_requires_a_login_for_a_recipient_dead_letters_nothing() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    let pia = all.person("login2@example.org").await;
    all.open(&pia, "let us in").await;
    until(async || so(stage.smtp.mails().len() == 1, stage.smtp.events())).await;
    assert_eq!(stage.asked("login2@example.org"), 3);
    assert!(all.metric("inbox_handler_failures_total", "notifications").await < 0.5);
    all.stop().await;
}
