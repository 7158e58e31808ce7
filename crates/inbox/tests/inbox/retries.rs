//! Failed messages are retried in memory, then durably, and are dead-lettered in the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relevo_core::inbox::retries::Retries;
use relevo_core::message::Headers;
use relevo_core::{BrokerConsumer as _, Policy};
use relevo_inbox::{Config, Durable, Handlers, Options, Order, RuntimeError};

use crate::stage::{Do, Stage, acknowledged, call, fails, inside, ordered, text, told, unordered, until};

/// Without jitter, so that tests can assert exact times.
fn exact(attempts_max: u32) -> Retries {
    let durable = Policy { jitter_percent: 0, attempts_max, ..Retries::default().durable };
    Retries { durable, ..Retries::default() }
}

#[tokio::test(start_paused = true)]
async fn tries_in_memory_come_after_one_two_and_five_seconds() {
    for handlers in [inside, call] {
        let stage = Stage::new();
        let handler = fails(3);
        stage.send("0", "k", "1");
        let process = stage.start(ordered(), handlers(&handler));
        acknowledged(&stage, 1).await;
        assert_eq!(handler.times("1", stage.began), [0, 10, 30, 80]);
        assert_eq!(
            (process.stats.failed(), process.stats.retried_in_memory(), process.stats.retried_later()),
            (3, 3, 0)
        );
        assert_eq!(stage.ledger(), ["k:1"], "what failed left no trace");
    }
}

#[tokio::test(start_paused = true)]
async fn what_fails_in_mid_turn_holds_back_its_own_key_for_as_long_as_it_waits() {
    let stage = Stage::new();
    let failed = AtomicBool::new(false);
    let handler = told(move |incoming| match text(incoming).as_str() {
        "3" if !failed.swap(true, Ordering::Relaxed) => Do::Fail,
        _ => Do::Done,
    });
    for payload in ["1", "2", "3", "4"] {
        stage.send("0", "k", payload);
    }
    stage.send("0", "other", "5");
    let process = stage.start(Config { order: Order::ByKey { concurrency: 1 }, ..ordered() }, inside(&handler));
    acknowledged(&stage, 5).await;
    assert_eq!(stage.ledger(), ["k:1", "k:2", "other:5", "k:3", "k:4"]);
    assert_eq!(handler.times("3", stage.began), [0, 10]);
    assert_eq!((process.stats.failed(), process.stats.batches()), (1, 0), "each had a transaction of its own");
}

#[tokio::test(start_paused = true)]
async fn then_it_waits_in_the_retry_table_and_is_acknowledged_meanwhile() {
    for handlers in [inside, call] {
        let stage = Stage::new();
        let handler = fails(5);
        stage.send("0", "k", "1");
        let process = stage.start(Config { retries: exact(10), ..ordered() }, handlers(&handler));
        acknowledged(&stage, 1).await;
        assert_eq!(stage.ledger().len(), 0);
        until("it is handled", async || stage.ledger() == ["k:1"]).await;
        let times = handler.times("1", stage.began);
        assert_eq!(times[..4], [0, 10, 30, 80]);
        // 15 s and 45 s later, plus up to one polling interval of the retry table.
        assert!((230..=234).contains(&times[4]) && (680..=688).contains(&times[5]), "{times:?}");
        assert_eq!((process.stats.retried_later(), process.stats.done(), times.len()), (2, 1, 6));
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_survive_a_restart_and_end_in_a_dead_letter() {
    let stage = Stage::new();
    let handler = fails(100);
    let config = Config { retries: exact(6), ..ordered() };
    stage.send("0", "k", "1");
    let process = stage.start(config.clone(), inside(&handler));
    acknowledged(&stage, 1).await;
    process.kill().await;
    let _process = stage.start_with(stage.wire.hand(2), config, inside(&handler));
    until("it is given up", async || !stage.dead().await.is_empty()).await;
    let dead = &stage.dead().await[0];
    assert_eq!((dead.attempts, dead.class.as_str(), dead.error.as_str()), (6, "transient", "it was told to fail"));
    assert_eq!(handler.tried().len(), 6);
    assert_eq!(stage.ledger().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn poison_goes_to_the_dead_letters_at_once() {
    let stage = Stage::new();
    let handler = told(|_| Do::Poison);
    stage.send("0", "k", "1");
    let process = stage.start(ordered(), inside(&handler));
    acknowledged(&stage, 1).await;
    let dead = &stage.dead().await[0];
    assert_eq!((dead.attempts, dead.class.as_str(), handler.tried().len()), (1, "poison", 1));
    assert_eq!(process.stats.dead(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failed_try_and_the_dead_letter_says_where() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    stage.send("0", "other", "2");
    let handler = told(|incoming| if text(incoming) == "1" { Do::Panic } else { Do::Done });
    let process = stage.start(Config { retries: exact(2), ..ordered() }, inside(&handler));
    acknowledged(&stage, 2).await;
    let dead = &stage.dead().await[0];
    assert_eq!((dead.attempts, dead.class.as_str()), (2, "panic"));
    assert!(dead.error.contains("stage.rs") && dead.error.ends_with("it was told to panic"), "{}", dead.error);
    assert!(dead.backtrace.as_ref().is_some_and(|backtrace| backtrace.contains("stage.rs")), "{:?}", dead.backtrace);
    assert_eq!((process.stats.panics(), stage.ledger()), (2, vec!["other:2".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_never_returns_is_ended_and_its_lane_goes_on() {
    for handlers in [inside, call] {
        let stage = Stage::new();
        stage.send("0", "k", "1");
        stage.send("0", "other", "2");
        let handler = told(|incoming| if text(incoming) == "1" { Do::Hang } else { Do::Done });
        let config = Config { deadline: Duration::from_secs(4), retries: exact(3), ..ordered() };
        let process = stage.start(config, handlers(&handler));
        until("the other one is handled", async || stage.ledger() == ["other:2"]).await;
        assert!(stage.began.elapsed() < Duration::from_secs(1));
        acknowledged(&stage, 2).await;
        assert_eq!(handler.times("1", stage.began), [0, 50, 110], "four seconds each, and the pauses between");
        let dead = &stage.dead().await[0];
        assert_eq!((dead.class.as_str(), dead.attempts, process.stats.deadlines()), ("deadline", 3, 3));
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_has_retries_and_a_deadline_of_its_own() {
    let stage = Stage::new();
    stage.wire.put("0", stage.raw("Quick", "k", "1", Headers::new()));
    let (quick, slow) = (fails(2), fails(0));
    let retries = Retries { memory: vec![Duration::from_millis(500); 5], ..exact(10) };
    let options = Options { retries: Some(retries), ..Options::default() };
    let _process =
        stage.start(ordered(), Handlers::new().inside_with("Quick", options, quick.clone()).inside("*", slow));
    acknowledged(&stage, 1).await;
    assert_eq!(quick.times("1", stage.began), [0, 5, 10]);
}

#[tokio::test(start_paused = true)]
async fn without_order_the_broker_can_keep_what_waits_and_counts_the_tries() {
    let stage = Stage::new();
    let handler = fails(100);
    let place = stage.send("0", "k", "1");
    let config = Config { durable: Durable::Broker, retries: exact(6), ..unordered() };
    let process = stage.start(config, inside(&handler));
    acknowledged(&stage, 1).await;
    let delays: Vec<Option<Duration>> = stage.wire.settled().into_iter().map(|(_, delay)| delay).collect();
    assert_eq!(delays, [Some(Duration::from_secs(15)), Some(Duration::from_secs(45)), None]);
    let dead = &stage.dead().await[0];
    assert_eq!((dead.attempts, dead.class.as_str(), dead.arrival.place), (6, "transient", Some(place)));
    assert_eq!((handler.tried().len(), process.stats.crashed()), (6, 0), "tries that end are no crashes");
}

#[tokio::test(start_paused = true)]
async fn what_the_broker_took_back_untried_has_all_its_tries() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    // Prefetched, as behind a breaker, by processes that ended before handling it.
    for time in 1..=5 {
        let held = stage.wire.hand(1).receive(10).await.expect("a message");
        assert_eq!((held.len(), held[0].redelivered), (1, time > 1));
        stage.wire.redeliver();
    }
    let handler = fails(100);
    let config = Config { durable: Durable::Broker, retries: exact(6), ..unordered() };
    let _process = stage.start(config, inside(&handler));
    acknowledged(&stage, 1).await;
    assert_eq!((handler.tried().len(), stage.dead().await[0].attempts), (6, 6));
}

#[tokio::test(start_paused = true)]
async fn tries_at_the_broker_are_counted_by_the_handlers_own_policy() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    let handler = fails(100);
    let options = Options { retries: Some(exact(4).durable_only()), ..Options::default() };
    let config = Config { durable: Durable::Broker, ..unordered() };
    let _process = stage.start(config, Handlers::new().inside_with("*", options, handler.clone()));
    acknowledged(&stage, 1).await;
    assert_eq!((handler.tried().len(), stage.dead().await[0].attempts), (4, 4));
    assert_eq!(handler.times("1", stage.began), [0, 150, 600, 1_950]);
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_breaks_a_promise_is_refused() {
    let refusal = async |change: fn(&Stage), config: Config| {
        let stage = Stage::new();
        change(&stage);
        let mut process = stage.start(config, inside(&fails(0)));
        match process.ended().await {
            Err(RuntimeError::Config(why)) => why,
            other => panic!("it was not refused: {other:?}"),
        }
    };
    let by_broker = |order| Config { durable: Durable::Broker, ..order };
    let why = refusal(|_| {}, by_broker(ordered())).await;
    assert!(why.contains("`durable`"), "{why}");
    let why = refusal(|stage| stage.wire.without_retries(), by_broker(unordered())).await;
    assert!(why.contains("`durable`") && why.contains("delayed retries"), "{why}");
    let why = refusal(|stage| stage.wire.without_order(), ordered()).await;
    assert!(why.contains("`order`") && why.contains("`ordered"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn without_order_any_queue_will_do() {
    let stage = Stage::new();
    stage.wire.without_order();
    stage.send("0", "k", "1");
    let _process = stage.start(unordered(), inside(&fails(0)));
    acknowledged(&stage, 1).await;
}

#[tokio::test(start_paused = true)]
async fn what_the_database_refuses_at_the_end_is_a_failed_try() {
    let stage = Stage::new();
    stage.line.refuses.store(true, Ordering::Relaxed);
    stage.send("0", "k", "1");
    let handler = fails(0);
    let process = stage.start(ordered(), inside(&handler));
    until("it was tried twice", async || handler.tried().len() == 2).await;
    stage.line.refuses.store(false, Ordering::Relaxed);
    acknowledged(&stage, 1).await;
    assert_eq!((process.stats.failed(), stage.ledger()), (2, vec!["k:1".to_owned()]));
}
