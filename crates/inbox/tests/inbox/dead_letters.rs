//! Dead letters: original bytes, held and continuing keys, redrive, copies at a broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use relevo_broker_memory::{Config as BrokerConfig, MemoryBroker};
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_core::{AfterDead, Broker, RawMessage, RetryPolicy};
use relevo_inbox::{Config, DeadLetterCopy, ForeignMessages, HandlerOptions, Handlers, JsonSchemas};

use crate::harness::{
    Action, Env, call_handlers, failing, ordered_config, payload_text, scripted, transaction_handlers,
    unordered_config, wait_for_acks, wait_until,
};

fn undecodable() -> RawMessage {
    let headers = vec![("x-binary".to_owned(), Bytes::from_static(&[0xff, 0xfe])), ("a".to_owned(), "b".into())];
    RawMessage { headers, payload: Bytes::from_static(&[0, 0xff, b'{']) }
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_message_is_dead_lettered_with_its_bytes() {
    for config in [ordered_config(), unordered_config()] {
        let stage = Env::new();
        let place = stage.broker.publish("0", undecodable());
        stage.send("0", "k", "1");
        let process = stage.start(config, transaction_handlers(&failing(0)));
        wait_for_acks(&stage, 2).await;
        let dead = &stage.dead_letters().await[0];
        assert_eq!((dead.class.as_str(), dead.error.as_str()), ("undecodable", "header `ce-specversion` is missing"));
        let (message, _) = stage.first_dead_letter().await;
        assert_eq!((&message.raw, message.offset), (&undecodable(), Some(place)));
        assert_eq!((process.status.undecodable(), stage.effects()), (1, vec!["k:1".to_owned()]));
        assert_eq!(stage.consumer().await.queues.len(), 0, "it holds nothing back");
    }
}

#[tokio::test(start_paused = true)]
async fn equal_undecodable_messages_at_two_offsets_are_two_dead_letters() {
    let stage = Env::new();
    stage.broker.publish("0", undecodable());
    stage.broker.publish("0", undecodable());
    let _process = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 2).await;
    assert_eq!(stage.dead_letters().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn foreign_messages_are_handled_if_configured() {
    let stage = Env::new();
    let raw =
        RawMessage { headers: vec![("customer".to_owned(), "c-1".into())], payload: Bytes::from_static(b"plain") };
    stage.broker.publish("0", raw);
    let foreign = ForeignMessages { kind: "legacy".into(), id_header: None, key_header: Some("customer".to_owned()) };
    let handlers = Handlers::new().handler("legacy", failing(4));
    let _process = stage.start(Config { foreign_messages: Some(foreign), ..ordered_config() }, handlers);
    wait_until("it is handled, from the retry table", async || stage.effects() == ["c-1:plain"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_breaks_its_schema_is_undecodable() {
    let stage = Env::new();
    let schema = ("OrderPlaced".to_owned(), r#"{"type": "integer"}"#.to_owned());
    let validator = Arc::new(JsonSchemas::new([schema]).unwrap());
    for payload in ["7", "\"x\""] {
        stage.send("0", payload, payload);
    }
    let handler = failing(0);
    let config = Config { validator: Some(validator), batch_max: 10, ..ordered_config() };
    let _process = stage.start(config, transaction_handlers(&handler));
    wait_for_acks(&stage, 2).await;
    assert_eq!(stage.dead_letters().await[0].class, "undecodable");
    assert_eq!(stage.effects(), ["7:7"]);
    assert!(!handler.attempted().contains(&"\"x\"".to_owned()), "its handler never saw it");
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_blocks_its_key_until_it_is_redriven() {
    let stage = Env::new();
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = Arc::clone(&broken);
    let handler = scripted(move |incoming| {
        if payload_text(incoming) == "1" && is_broken.load(Ordering::SeqCst) { Action::Poison } else { Action::Done }
    });
    for number in 1..=3 {
        stage.send("0", "k", &number.to_string());
    }
    stage.send("0", "other", "4");
    let _process = stage.start(ordered_config(), transaction_handlers(&handler));
    wait_for_acks(&stage, 4).await;
    tokio::time::sleep(std::time::Duration::from_hours(1)).await;
    assert_eq!(stage.effects(), ["other:4"]);
    broken.store(false, Ordering::SeqCst);
    assert_eq!((stage.redrive_all().await, stage.redrive_all().await), (1, 0));
    wait_until("all are handled", async || stage.effects().len() == 4).await;
    assert_eq!(stage.effects()[1..], ["k:1", "k:2", "k:3"]);
}

#[tokio::test(start_paused = true)]
async fn a_key_continues_after_a_dead_letter_if_configured() {
    for durably in [false, true] {
        let stage = Env::new();
        let failed = AtomicBool::new(!durably);
        let handler = scripted(move |incoming| match payload_text(incoming).as_str() {
            "1" if failed.swap(true, Ordering::SeqCst) => Action::Poison,
            "1" => Action::Fail,
            _ => Action::Done,
        });
        for number in 1..=3 {
            stage.send("0", "k", &number.to_string());
        }
        let options = HandlerOptions { after_dead: Some(AfterDead::Continue), ..HandlerOptions::default() };
        let mut config = ordered_config();
        config.retry.in_memory.clear();
        let _process = stage.start(config, Handlers::new().handler_with("*", options, handler));
        wait_until("the others are handled", async || stage.effects() == ["k:2", "k:3"]).await;
        assert_eq!(stage.dead_letters().await.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_redriven_message_that_fails_again_is_the_same_dead_letter() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    let process = stage.start(unordered_config(), transaction_handlers(&scripted(|_| Action::Poison)));
    wait_for_acks(&stage, 1).await;
    assert_eq!(stage.redrive_all().await, 1);
    wait_until("it is dead again", async || process.status.dead_lettered() == 2).await;
    let dead = stage.dead_letters().await;
    assert_eq!((dead.len(), dead[0].redrives), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_copy_is_published_if_configured() {
    let stage = Env::new();
    let broker = MemoryBroker::new(BrokerConfig { keeps_messages: true, ..BrokerConfig::default() });
    let to = DeadLetterCopy { broker: Arc::new(broker.clone()) as Arc<dyn Broker>, address: "billing.dlq".into() };
    stage.send("0", "k", "1");
    stage.broker.publish("0", undecodable());
    let process = stage.start(
        Config { dead_letter_copy: Some(to), ..ordered_config() },
        transaction_handlers(&scripted(|_| Action::Poison)),
    );
    wait_for_acks(&stage, 2).await;
    let mut copies = broker.received_messages();
    copies.sort_by_key(|copy| copy.message.payload.len());
    assert_eq!(copies.len(), 2);
    let (ours, theirs) = (&copies[0].message, &copies[1].message);
    assert_eq!(
        (&*copies[0].address, &ours.payload[..], &*ours.kind, &*ours.key),
        ("billing.dlq", &b"1"[..], "OrderPlaced", "k")
    );
    assert_eq!(ours.headers["dead-letter-error"], "simulated poison");
    assert_eq!(ours.headers["dead-letter-class"], "poison");
    let id = relevo_core::MessageId::v7(1, [7; 10]);
    assert_eq!(ours.headers["dead-letter-id"], id.to_string());
    assert_ne!(ours.id, id, "a broker that recognises repeats would drop it");
    assert_eq!((&theirs.payload, &*theirs.kind), (&undecodable().payload, "undecodable"));
    assert_eq!(process.status.dead_letter_copies_failed(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_copy_broker_does_not_block_the_consumer() {
    let stage = Env::new();
    let broker = MemoryBroker::new(BrokerConfig::default());
    broker.down();
    let to = DeadLetterCopy { broker: Arc::new(broker) as Arc<dyn Broker>, address: "billing.dlq".into() };
    stage.send("0", "k", "1");
    let process = stage.start(
        Config { dead_letter_copy: Some(to), ..ordered_config() },
        transaction_handlers(&scripted(|_| Action::Poison)),
    );
    wait_for_acks(&stage, 1).await;
    assert_eq!((stage.dead_letters().await.len(), process.status.dead_letter_copies_failed()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_redriven_message_is_the_first_after_the_running_call() {
    let stage = Env::new();
    let (bad, slow) = (AtomicBool::new(true), AtomicBool::new(true));
    let handler = scripted(move |incoming| match payload_text(incoming).as_str() {
        "bad" if bad.swap(false, Ordering::Relaxed) => Action::Poison,
        "slow" if slow.swap(false, Ordering::Relaxed) => Action::Fail,
        "slow" => Action::DoneAfter(Duration::from_secs(10)),
        _ => Action::Done,
    });
    let retry = HandlerRetryPolicy::default().without_in_memory();
    stage.send("0", "k", "bad");
    stage.send("0", "k", "slow");
    let config = Config { after_dead: AfterDead::Continue, retry, ..ordered_config() };
    let process = stage.start(config, call_handlers(&handler));
    wait_until("it is called for from the retry table", async || handler.attempted() == ["bad", "slow", "slow"]).await;
    let began = tokio::time::Instant::now();
    assert_eq!(stage.redrive_all().await, 1);
    wait_until("both are handled", async || stage.effects() == ["k:bad", "k:slow"]).await;
    assert_eq!(handler.attempted(), ["bad", "slow", "slow", "bad", "slow"]);
    assert_eq!(handler.max_running.load(Ordering::SeqCst), 1, "calls follow one another");
    assert_eq!(process.status.fenced(), 1);
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_redrive_keeps_the_attempts_of_queued_messages() {
    let stage = Env::new();
    let bad = AtomicBool::new(true);
    let handler = scripted(move |incoming| match payload_text(incoming).as_str() {
        "bad" if bad.swap(false, Ordering::Relaxed) => Action::Poison,
        "bad" => Action::Done,
        _ => Action::Fail,
    });
    let durable = RetryPolicy { attempts_max: 6, ..HandlerRetryPolicy::default().durable };
    let retry = HandlerRetryPolicy { durable, ..HandlerRetryPolicy::default() }.without_in_memory();
    stage.send("0", "k", "bad");
    stage.send("0", "k", "fails");
    let config = Config { after_dead: AfterDead::Continue, retry, ..ordered_config() };
    let _process = stage.start(config, transaction_handlers(&handler));
    wait_until("it failed three times", async || handler.attempted().len() == 4).await;
    assert_eq!(stage.redrive_all().await, 1);
    wait_until("it is dead-lettered", async || stage.dead_letters().await.iter().any(|letter| letter.attempts == 6))
        .await;
    let tries = handler.attempted().iter().filter(|text| *text == "fails").count();
    assert_eq!((tries, stage.effects()), (6, vec!["k:bad".to_owned()]));
}
