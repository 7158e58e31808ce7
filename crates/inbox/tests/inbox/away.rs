//! Outages that handlers report: the lane pauses, no attempt is counted, one message probes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relevo_core::Policy;
use relevo_core::inbox::operate::Order;
use relevo_core::inbox::retries::Retries;
use relevo_inbox::Config;

use crate::stage::{Do, Stage, Told, acknowledged, call, inside, ordered, text, told, unordered, until};

fn config(order: Config) -> Config {
    Config { breaker: Policy { jitter_percent: 0, ..order.breaker.clone() }, ..order }
}

/// Messages of keys that begin with `mail` need a service that is down while this flag is set.
fn needs(away: &Arc<AtomicBool>) -> Told {
    let away = Arc::clone(away);
    told(
        move |incoming| {
            if incoming.key().starts_with("mail") && away.load(Ordering::SeqCst) { Do::Away } else { Do::Done }
        },
    )
}

#[tokio::test(start_paused = true)]
async fn an_outage_pauses_its_lane_only_and_costs_no_attempt() {
    for (handlers, order) in [(inside as fn(&Told) -> _, ordered()), (call, ordered()), (inside, unordered())] {
        let stage = Stage::new();
        let away = Arc::new(AtomicBool::new(true));
        let handler = needs(&away);
        for number in 0..10 {
            stage.send("mail", "mail", &number.to_string());
            stage.send("other", "other", &(100 + number).to_string());
        }
        let process = stage.start(config(order), handlers(&handler));
        until("the other lane is done", async || stage.ledger().len() == 10).await;
        assert!(stage.began.elapsed() < Duration::from_secs(1));
        until("the lane is paused", async || stage.wire.is_paused("mail")).await;
        tokio::time::sleep(Duration::from_mins(10)).await;
        let probes = handler.tried().iter().filter(|payload| payload.len() < 3).count();
        assert!((10..40).contains(&probes), "{probes} probes in ten minutes");
        away.store(false, Ordering::SeqCst);
        acknowledged(&stage, 20).await;
        assert_eq!((process.stats.failed(), process.stats.dead(), stage.ledger().len()), (0, 0, 20));
        until("the lane is resumed", async || !stage.wire.is_paused("mail")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_message_probes_after_pauses_that_grow() {
    let stage = Stage::new();
    let away = Arc::new(AtomicBool::new(true));
    let handler = needs(&away);
    stage.send("mail", "mail", "1");
    stage.send("mail", "mail", "2");
    let _process = stage.start(config(ordered()), inside(&handler));
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(handler.times("1", stage.began), [0, 10, 30, 70, 150, 310]);
    assert_eq!(handler.times("2", stage.began).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_is_seen_and_can_be_forced() {
    let stage = Stage::new();
    let away = Arc::new(AtomicBool::new(true));
    let handler = needs(&away);
    stage.send("mail", "mail", "1");
    let _process = stage.start(config(ordered()), inside(&handler));
    let breaker = async || stage.shown().await.lanes.first().and_then(|lane| lane.breaker.clone());
    until("it is seen", async || breaker().await == Some("it was told to be away".to_owned())).await;
    stage.order(Some("mail"), Order::OpenBreaker).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    away.store(false, Ordering::SeqCst);
    let tried = handler.tried().len();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(handler.tried().len(), tried, "nothing probes while a person holds it open");
    stage.order(Some("mail"), Order::FreeBreaker).await;
    acknowledged(&stage, 1).await;
    until("it is seen to be closed", async || breaker().await.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_breaker_that_a_person_closed_lets_messages_try() {
    let stage = Stage::new();
    let away = Arc::new(AtomicBool::new(true));
    let handler = needs(&away);
    stage.send("mail", "mail", "1");
    let process = stage.start(config(ordered()), inside(&handler));
    until("it opened for long", async || handler.tried().len() == 6).await;
    stage.order(Some("mail"), Order::CloseBreaker).await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    let tried = handler.tried().len();
    assert!(tried > 10, "{tried} tries");
    away.store(false, Ordering::SeqCst);
    acknowledged(&stage, 1).await;
    assert_eq!(process.stats.failed(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_of_the_retry_table_waits_for_its_lane_too() {
    for handlers in [inside, call] {
        let stage = Stage::new();
        let away = Arc::new(AtomicBool::new(false));
        let is_away = Arc::clone(&away);
        let first = AtomicBool::new(true);
        let handler = told(move |_| match (is_away.load(Ordering::SeqCst), first.swap(false, Ordering::SeqCst)) {
            (true, _) => Do::Away,
            (false, true) => Do::Fail,
            (false, false) => Do::Done,
        });
        stage.send("mail", "mail", "1");
        let retries = Retries::default().durable_only();
        let process = stage.start(Config { retries, ..config(ordered()) }, handlers(&handler));
        acknowledged(&stage, 1).await;
        away.store(true, Ordering::SeqCst);
        until("it was found away", async || process.stats.away() > 3).await;
        assert_eq!(stage.shown().await.queues[0].attempts, 1);
        away.store(false, Ordering::SeqCst);
        until("it is handled", async || stage.ledger() == ["mail:1"]).await;
        // The breaker is closed again for live messages of the lane.
        stage.send("mail", "mail", "2");
        acknowledged(&stage, 2).await;
        assert_eq!(process.stats.failed(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_a_message_of_the_retry_table_paused_is_probed_by_live_ones_too() {
    let stage = Stage::new();
    let first = AtomicBool::new(true);
    let handler = told(move |incoming| match text(incoming).as_str() {
        "1" if first.swap(false, Ordering::SeqCst) => Do::Fail,
        "1" => Do::Away,
        _ => Do::Done,
    });
    stage.send("mail", "mail", "1");
    let retries = Retries::default().durable_only();
    let process = stage.start(Config { retries, ..config(unordered()) }, inside(&handler));
    until("the lane is paused", async || process.stats.away() > 0 && stage.wire.is_paused("mail")).await;
    stage.send("mail", "other", "2");
    until("a live one passed", async || stage.ledger() == ["other:2"]).await;
}
