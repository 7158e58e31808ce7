//! What RabbitMQ may deliver beyond what was sent once: the same event again, and what is no event.

use lapin::options::{BasicGetOptions, BasicPublishOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel};
use ticketflow::config::Role;

use crate::stage::{ANA, DAN, Stage, depth, number, so, until};

/// Puts a message straight into a queue.
async fn put(channel: &Channel, queue: &str, payload: &[u8], properties: BasicProperties) {
    let options = BasicPublishOptions::default();
    let sent = channel.basic_publish("".into(), queue.into(), options, payload, properties).await;
    sent.expect("the channel is open").await.expect("the server takes it");
}

#[tokio::test]
async fn a_repeated_event_is_handled_once() {
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    stage.has_queues().await;
    let (_connection, channel) = stage.channel().await;
    // A third queue has a copy of everything, as anybody may have.
    let none = FieldTable::default;
    channel.queue_declare("copies".into(), QueueDeclareOptions::default(), none()).await.expect("a queue");
    let bound = channel.queue_bind("copies".into(), "tickets".into(), "#".into(), QueueBindOptions::default(), none());
    bound.await.expect("the exchange is there");
    let ticket = all.open(ANA, "once").await;
    all.set(DAN, &ticket, "resolved").await;
    until(async || so(depth(&channel, "copies").await == 2, "fewer copies")).await;
    until(async || so(stage.smtp.mails().len() == 2, stage.smtp.events())).await;
    let figures = until(async || {
        let figures = all.figures().await;
        if figures["by_status"]["resolved"] == 1 { Ok(figures) } else { Err(figures.to_string()) }
    })
    .await;

    for _ in 0..2 {
        let copy =
            channel.basic_get("copies".into(), BasicGetOptions { no_ack: true }).await.expect("the queue is there");
        let copy = copy.expect("a message").delivery;
        for queue in ["notifications", "metrics"] {
            put(&channel, queue, &copy.data, copy.properties.clone()).await;
        }
    }
    for consumer in ["notifications", "metrics"] {
        let labels = format!("consumer=\"{consumer}\",outcome=\"duplicate\"");
        until(async || {
            let duplicates = all.metric("inbox_handled_total", &labels).await;
            so((duplicates - 2.0).abs() < 0.5, duplicates)
        })
        .await;
        let processed =
            format!("SELECT count(*) FROM ticketflow.\"ProcessedEvents\" WHERE \"Consumer\" = '{consumer}'");
        assert_eq!(number(&mut stage.session().await, &processed).await, 2, "{consumer}");
    }
    assert_eq!(stage.smtp.mails().len(), 2);
    let again = all.figures().await;
    assert_eq!((&again["by_status"], &again["days"]), (&figures["by_status"], &figures["days"]));
    all.stop().await;
}

#[tokio::test]
async fn an_invalid_event_is_a_dead_letter_with_its_bytes_and_others_continue() {
    const GARBAGE: &[u8] = b"{ \"no\": \xff event";
    let stage = Stage::new().await;
    let all = stage.start(Role::All).await;
    stage.has_queues().await;
    let (_connection, channel) = stage.channel().await;
    let properties = BasicProperties::default()
        .with_message_id(uuid::Uuid::now_v7().to_string().into())
        .with_type("ticket.created".into())
        .with_content_type("application/json".into());
    put(&channel, "notifications", GARBAGE, properties).await;
    all.open(ANA, "behind it").await;
    until(async || so(stage.smtp.mails().len() == 1, stage.smtp.events())).await;
    until(async || so(all.figures().await["dead"]["notifications"] == 1, all.figures().await)).await;
    let mut session = stage.session().await;
    let kept: Vec<u8> =
        sqlx::query_scalar("SELECT payload FROM relevo.inbox_dead_letter WHERE consumer = 'notifications'")
            .fetch_one(&mut session)
            .await
            .expect("one row");
    assert_eq!(kept, GARBAGE);
    until(async || so(depth(&channel, "notifications.dlq").await == 1, "no copy")).await;
    let copy = channel.basic_get("notifications.dlq".into(), BasicGetOptions { no_ack: true }).await;
    assert_eq!(copy.expect("the queue is there").expect("a message").delivery.data, GARBAGE);
    all.stop().await;
}
