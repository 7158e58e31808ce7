//! Dead letters: original bytes, held and continuing keys, redrive, copies at a broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use relevo_broker_memory::{MemoryBroker, Settings};
use relevo_core::inbox::operate::{DeadFilter, Mark, Operate as _};
use relevo_core::inbox::retries::Retries;
use relevo_core::{AfterDead, Broker, Policy, Raw};
use relevo_inbox::{Config, DeadLetterTo, Foreign, Handlers, JsonSchemas, Options};

use crate::stage::{Do, Stage, acknowledged, call, fails, inside, ordered, text, told, unordered, until};

fn all() -> Mark {
    Mark { filter: DeadFilter::default(), dry_run: false, rate: None, by: "ana".to_owned(), note: "again".to_owned() }
}

fn garbage() -> Raw {
    let headers = vec![("x-binary".to_owned(), Bytes::from_static(&[0xff, 0xfe])), ("a".to_owned(), "b".into())];
    Raw { headers, payload: Bytes::from_static(&[0, 0xff, b'{']) }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_decoded_goes_straight_to_the_dead_letters_with_its_bytes() {
    for config in [ordered(), unordered()] {
        let stage = Stage::new();
        let place = stage.wire.put("0", garbage());
        stage.send("0", "k", "1");
        let process = stage.start(config, inside(&fails(0)));
        acknowledged(&stage, 2).await;
        let dead = &stage.dead().await[0];
        assert_eq!((dead.class.as_str(), dead.error.as_str()), ("undecodable", "header `ce-specversion` is missing"));
        assert_eq!((&dead.arrival.raw, dead.arrival.place), (&garbage(), Some(place)));
        assert_eq!((process.stats.undecodable(), stage.ledger()), (1, vec!["k:1".to_owned()]));
        assert_eq!(stage.shown().await.queues.len(), 0, "it holds nothing back");
    }
}

#[tokio::test(start_paused = true)]
async fn equal_garbage_at_two_places_is_two_dead_letters_and_a_redelivery_is_none() {
    let stage = Stage::new();
    stage.wire.put("0", garbage());
    stage.wire.put("0", garbage());
    let _process = stage.start(ordered(), inside(&fails(0)));
    acknowledged(&stage, 2).await;
    assert_eq!(stage.dead().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn messages_of_others_are_handled_where_they_are_wanted() {
    let stage = Stage::new();
    let raw = Raw { headers: vec![("customer".to_owned(), "c-1".into())], payload: Bytes::from_static(b"plain") };
    stage.wire.put("0", raw);
    let foreign = Foreign { kind: "legacy".into(), id_header: None, key_header: Some("customer".to_owned()) };
    let handlers = Handlers::new().inside("legacy", fails(4));
    let _process = stage.start(Config { foreign: Some(foreign), ..ordered() }, handlers);
    until("it is handled, from the retry table", async || stage.ledger() == ["c-1:plain"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_breaks_its_schema_is_undecodable() {
    let stage = Stage::new();
    let schema = ("OrderPlaced".to_owned(), r#"{"type": "integer"}"#.to_owned());
    let validator = Arc::new(JsonSchemas::new([schema]).unwrap());
    for payload in ["7", "\"x\""] {
        stage.send("0", payload, payload);
    }
    let handler = fails(0);
    let config = Config { validator: Some(validator), batch_max: 10, ..ordered() };
    let _process = stage.start(config, inside(&handler));
    acknowledged(&stage, 2).await;
    assert_eq!(stage.dead().await[0].class, "undecodable");
    assert_eq!(stage.ledger(), ["7:7"]);
    assert!(!handler.tried().contains(&"\"x\"".to_owned()), "its handler never saw it");
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_dead_letter_holds_until_a_person_redrives_it_in_order() {
    let stage = Stage::new();
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = Arc::clone(&broken);
    let handler = told(
        move |incoming| {
            if text(incoming) == "1" && is_broken.load(Ordering::SeqCst) { Do::Poison } else { Do::Done }
        },
    );
    for number in 1..=3 {
        stage.send("0", "k", &number.to_string());
    }
    stage.send("0", "other", "4");
    let _process = stage.start(ordered(), inside(&handler));
    acknowledged(&stage, 4).await;
    tokio::time::sleep(std::time::Duration::from_hours(1)).await;
    assert_eq!(stage.ledger(), ["other:4"]);
    broken.store(false, Ordering::SeqCst);
    let (once, twice) = (stage.outbox.operator().redrive(&all()).await, stage.outbox.operator().redrive(&all()).await);
    assert_eq!((once.unwrap(), twice.unwrap()), (1, 0));
    until("all are handled", async || stage.ledger().len() == 4).await;
    assert_eq!(stage.ledger()[1..], ["k:1", "k:2", "k:3"]);
}

#[tokio::test(start_paused = true)]
async fn where_the_key_may_go_on_it_does() {
    for durably in [false, true] {
        let stage = Stage::new();
        let failed = AtomicBool::new(!durably);
        let handler = told(move |incoming| match text(incoming).as_str() {
            "1" if failed.swap(true, Ordering::SeqCst) => Do::Poison,
            "1" => Do::Fail,
            _ => Do::Done,
        });
        for number in 1..=3 {
            stage.send("0", "k", &number.to_string());
        }
        let options = Options { after_dead: Some(AfterDead::Continue), ..Options::default() };
        let mut config = ordered();
        config.retries.memory.clear();
        let _process = stage.start(config, Handlers::new().inside_with("*", options, handler));
        until("the others are handled", async || stage.ledger() == ["k:2", "k:3"]).await;
        assert_eq!(stage.dead().await.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_again_after_a_redrive_is_the_same_dead_letter() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    let process = stage.start(unordered(), inside(&told(|_| Do::Poison)));
    acknowledged(&stage, 1).await;
    stage.outbox.operator().redrive(&all()).await.unwrap();
    until("it is dead again", async || process.stats.dead() == 2).await;
    let dead = stage.dead().await;
    assert_eq!((dead.len(), dead[0].redriven), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_a_dead_letter_goes_to_a_broker_where_that_is_wanted() {
    let stage = Stage::new();
    let broker = MemoryBroker::new(Settings { records: true, ..Settings::default() });
    let to = DeadLetterTo { broker: Arc::new(broker.clone()) as Arc<dyn Broker>, address: "billing.dlq".into() };
    stage.send("0", "k", "1");
    stage.wire.put("0", garbage());
    let process = stage.start(Config { dead_letter_to: Some(to), ..ordered() }, inside(&told(|_| Do::Poison)));
    acknowledged(&stage, 2).await;
    let mut copies = broker.receipts();
    copies.sort_by_key(|copy| copy.message.payload.len());
    assert_eq!(copies.len(), 2);
    let (ours, theirs) = (&copies[0].message, &copies[1].message);
    assert_eq!(
        (&*copies[0].address, &ours.payload[..], &*ours.kind, &*ours.key),
        ("billing.dlq", &b"1"[..], "OrderPlaced", "k")
    );
    assert_eq!(ours.headers["dead-letter-error"], "it was told to be poison");
    assert_eq!(ours.headers["dead-letter-class"], "poison");
    let id = relevo_core::MessageId::v7(1, [7; 10]);
    assert_eq!(ours.headers["dead-letter-id"], id.to_string());
    assert_ne!(ours.id, id, "a broker that recognises repeats would drop it");
    assert_eq!((&theirs.payload, &*theirs.kind), (&garbage().payload, "undecodable"));
    assert_eq!(process.stats.copies_failed(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_broker_for_copies_that_is_away_holds_nothing_back_for_ever() {
    let stage = Stage::new();
    let broker = MemoryBroker::new(Settings::default());
    broker.down();
    let to = DeadLetterTo { broker: Arc::new(broker) as Arc<dyn Broker>, address: "billing.dlq".into() };
    stage.send("0", "k", "1");
    let process = stage.start(Config { dead_letter_to: Some(to), ..ordered() }, inside(&told(|_| Do::Poison)));
    acknowledged(&stage, 1).await;
    assert_eq!((stage.dead().await.len(), process.stats.copies_failed()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_redriven_message_waits_for_the_call_that_runs_and_then_goes_first() {
    let stage = Stage::new();
    let (bad, slow) = (AtomicBool::new(true), AtomicBool::new(true));
    let handler = told(move |incoming| match text(incoming).as_str() {
        "bad" if bad.swap(false, Ordering::Relaxed) => Do::Poison,
        "slow" if slow.swap(false, Ordering::Relaxed) => Do::Fail,
        "slow" => Do::DoneAfter(Duration::from_secs(10)),
        _ => Do::Done,
    });
    let retries = Retries::default().durable_only();
    stage.send("0", "k", "bad");
    stage.send("0", "k", "slow");
    let config = Config { after_dead: AfterDead::Continue, retries, ..ordered() };
    let process = stage.start(config, call(&handler));
    until("it is called for from the retry table", async || handler.tried() == ["bad", "slow", "slow"]).await;
    let began = tokio::time::Instant::now();
    assert_eq!(stage.outbox.operator().redrive(&all()).await.unwrap(), 1);
    until("both are handled", async || stage.ledger() == ["k:bad", "k:slow"]).await;
    assert_eq!(handler.tried(), ["bad", "slow", "slow", "bad", "slow"]);
    assert_eq!(handler.most.load(Ordering::SeqCst), 1, "calls follow one another");
    assert_eq!(process.stats.lost(), 1);
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn attempts_of_what_waits_survive_a_redrive_in_front_of_it() {
    let stage = Stage::new();
    let bad = AtomicBool::new(true);
    let handler = told(move |incoming| match text(incoming).as_str() {
        "bad" if bad.swap(false, Ordering::Relaxed) => Do::Poison,
        "bad" => Do::Done,
        _ => Do::Fail,
    });
    let durable = Policy { attempts_max: 6, ..Retries::default().durable };
    let retries = Retries { durable, ..Retries::default() }.durable_only();
    stage.send("0", "k", "bad");
    stage.send("0", "k", "fails");
    let config = Config { after_dead: AfterDead::Continue, retries, ..ordered() };
    let _process = stage.start(config, inside(&handler));
    until("it failed three times", async || handler.tried().len() == 4).await;
    assert_eq!(stage.outbox.operator().redrive(&all()).await.unwrap(), 1);
    until("it is given up", async || stage.dead().await.iter().any(|letter| letter.attempts == 6)).await;
    let tries = handler.tried().iter().filter(|text| *text == "fails").count();
    assert_eq!((tries, stage.ledger()), (6, vec!["k:bad".to_owned()]));
}
