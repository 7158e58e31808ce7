//! Failed messages are retried in memory, then durably, and are dead-lettered in the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relevo_core::inbox::retries::classes;
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_core::message::Headers;
use relevo_core::{AfterDead, BrokerConsumer as _, RetryPolicy};
use relevo_inbox::{Config, ConsumerError, HandlerOptions, Handlers, MessageOrder, RetryStorage};

use crate::harness::{
    Action, Env, call_handlers, failing, ordered_config, payload_text, scripted, transaction_handlers,
    unordered_config, wait_for_acks, wait_until,
};

/// Without jitter, so that tests can assert exact times.
fn exact_retry(attempts_max: u32) -> HandlerRetryPolicy {
    let durable = RetryPolicy { jitter_percent: 0, attempts_max, ..HandlerRetryPolicy::default().durable };
    HandlerRetryPolicy { durable, ..HandlerRetryPolicy::default() }
}

#[tokio::test(start_paused = true)]
async fn in_memory_retries_come_after_one_two_and_five_seconds() {
    for handlers in [transaction_handlers, call_handlers] {
        let stage = Env::new();
        let handler = failing(3);
        stage.send("0", "k", "1");
        let process = stage.start(ordered_config(), handlers(&handler));
        wait_for_acks(&stage, 1).await;
        assert_eq!(handler.attempt_times("1", stage.started_at), [0, 10, 30, 80]);
        assert_eq!(
            (process.status.handler_failures(), process.status.retried_in_memory(), process.status.retried_later()),
            (3, 3, 0)
        );
        assert_eq!(stage.effects(), ["k:1"], "what failed left no trace");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_in_the_middle_of_a_turn_blocks_only_its_key() {
    let stage = Env::new();
    let failed = AtomicBool::new(false);
    let handler = scripted(move |incoming| match payload_text(incoming).as_str() {
        "3" if !failed.swap(true, Ordering::Relaxed) => Action::Fail,
        _ => Action::Done,
    });
    for payload in ["1", "2", "3", "4"] {
        stage.send("0", "k", payload);
    }
    stage.send("0", "other", "5");
    let process = stage.start(
        Config { order: MessageOrder::ByKey { concurrency: 1 }, ..ordered_config() },
        transaction_handlers(&handler),
    );
    wait_for_acks(&stage, 5).await;
    assert_eq!(stage.effects(), ["k:1", "k:2", "other:5", "k:3", "k:4"]);
    assert_eq!(handler.attempt_times("3", stage.started_at), [0, 10]);
    assert_eq!(
        (process.status.handler_failures(), process.status.batches()),
        (1, 0),
        "each had a transaction of its own"
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_in_a_retry_queue_is_acknowledged() {
    for handlers in [transaction_handlers, call_handlers] {
        let stage = Env::new();
        let handler = failing(5);
        stage.send("0", "k", "1");
        let process = stage.start(Config { retry: exact_retry(10), ..ordered_config() }, handlers(&handler));
        wait_for_acks(&stage, 1).await;
        assert_eq!(stage.effects().len(), 0);
        wait_until("it is handled", async || stage.effects() == ["k:1"]).await;
        let times = handler.attempt_times("1", stage.started_at);
        assert_eq!(times[..4], [0, 10, 30, 80]);
        // 15 s and 45 s later, plus up to one polling interval of the retry table.
        assert!((230..=234).contains(&times[4]) && (680..=688).contains(&times[5]), "{times:?}");
        assert_eq!((process.status.retried_later(), process.status.done(), times.len()), (2, 1, 6));
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_in_memory_count_when_the_key_waits_for_a_redriven_message() {
    for handlers in [transaction_handlers, call_handlers] {
        let stage = Env::new();
        let first = AtomicBool::new(true);
        let handler = scripted(move |incoming| match payload_text(incoming).as_str() {
            "1" if first.swap(false, Ordering::SeqCst) => Action::Poison,
            _ => Action::Fail,
        });
        let config = Config { retry: exact_retry(5), after_dead: AfterDead::Continue, ..ordered_config() };
        stage.send("0", "k", "1");
        stage.send("0", "k", "2");
        let _process = stage.start(config, handlers(&handler));
        wait_until("2 fails in memory", async || handler.attempt_times("2", stage.started_at).len() == 2).await;
        assert_eq!(stage.redrive_all().await, 1);
        wait_until("both are dead", async || stage.dead_letters().await.len() == 2).await;
        assert_eq!(handler.attempt_times("2", stage.started_at).len(), 5, "as many as the policy allows");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_key_that_fills_the_prefetch_moves_to_the_retry_table() {
    for handlers in [transaction_handlers, call_handlers] {
        let stage = Env::new();
        let handler = scripted(|incoming| match payload_text(incoming).as_str() {
            "poor" => Action::Fail,
            _ => Action::Done,
        });
        stage.send("0", "k", "poor");
        for number in 0..150 {
            stage.send("0", "k", &number.to_string());
        }
        stage.send("0", "other", "rich");
        let process = stage.start(ordered_config(), handlers(&handler));
        wait_until("another key is handled", async || stage.effects() == ["other:rich"]).await;
        assert!(stage.started_at.elapsed() < Duration::from_millis(900), "{:?}", stage.started_at.elapsed());
        wait_for_acks(&stage, 152).await;
        assert_eq!((process.status.retried_in_memory(), process.status.retried_later()), (0, 1));
        assert_eq!(handler.attempt_times("poor", stage.started_at), [0]);
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_survive_a_restart_and_end_in_a_dead_letter() {
    let stage = Env::new();
    let handler = failing(100);
    let config = Config { retry: exact_retry(6), ..ordered_config() };
    stage.send("0", "k", "1");
    let process = stage.start(config.clone(), transaction_handlers(&handler));
    wait_for_acks(&stage, 1).await;
    process.kill().await;
    let _process = stage.start_with(stage.broker.consumer(2), config, transaction_handlers(&handler));
    wait_until("it is dead-lettered", async || !stage.dead_letters().await.is_empty()).await;
    let dead = &stage.dead_letters().await[0];
    assert_eq!((dead.attempts, dead.class.as_str(), dead.error.as_str()), (6, "transient", "simulated failure"));
    assert_eq!(handler.attempted().len(), 6);
    assert_eq!(stage.effects().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_poison_message_is_dead_lettered_at_once() {
    let stage = Env::new();
    let handler = scripted(|_| Action::Poison);
    stage.send("0", "k", "1");
    let process = stage.start(ordered_config(), transaction_handlers(&handler));
    wait_for_acks(&stage, 1).await;
    let dead = &stage.dead_letters().await[0];
    assert_eq!((dead.attempts, dead.class.as_str(), handler.attempted().len()), (1, "poison", 1));
    assert_eq!(process.status.dead_lettered(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failed_attempt_and_its_dead_letter_has_the_location() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    stage.send("0", "other", "2");
    let handler = scripted(|incoming| if payload_text(incoming) == "1" { Action::Panic } else { Action::Done });
    let process = stage.start(Config { retry: exact_retry(2), ..ordered_config() }, transaction_handlers(&handler));
    wait_for_acks(&stage, 2).await;
    let dead = &stage.dead_letters().await[0];
    assert_eq!((dead.attempts, dead.class.as_str()), (2, "panic"));
    assert!(dead.error.contains("harness.rs") && dead.error.ends_with("simulated panic"), "{}", dead.error);
    let (_, backtrace) = stage.first_dead_letter().await;
    assert!(backtrace.as_ref().is_some_and(|backtrace| backtrace.contains("harness.rs")), "{backtrace:?}");
    assert_eq!((process.status.handler_panics(), stage.effects()), (2, vec!["other:2".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_hanging_handler_times_out_and_its_lane_continues() {
    for handlers in [transaction_handlers, call_handlers] {
        let stage = Env::new();
        stage.send("0", "k", "1");
        stage.send("0", "other", "2");
        let handler = scripted(|incoming| if payload_text(incoming) == "1" { Action::Hang } else { Action::Done });
        let config = Config { handler_timeout: Duration::from_secs(4), retry: exact_retry(3), ..ordered_config() };
        let process = stage.start(config, handlers(&handler));
        wait_until("the other one is handled", async || stage.effects() == ["other:2"]).await;
        assert!(stage.started_at.elapsed() < Duration::from_secs(1));
        wait_for_acks(&stage, 2).await;
        assert_eq!(
            handler.attempt_times("1", stage.started_at),
            [0, 50, 110],
            "four seconds each, and the pauses between"
        );
        let dead = &stage.dead_letters().await[0];
        assert_eq!((dead.class.as_str(), dead.attempts, process.status.handler_timeouts()), (classes::TIMEOUT, 3, 3));
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_has_its_own_retry_policy_and_timeout() {
    let stage = Env::new();
    stage.broker.publish("0", stage.raw("Quick", "k", "1", Headers::new()));
    let (quick, slow) = (failing(2), failing(0));
    let retries = HandlerRetryPolicy { in_memory: vec![Duration::from_millis(500); 5], ..exact_retry(10) };
    let options = HandlerOptions { retry: Some(retries), ..HandlerOptions::default() };
    let _process =
        stage.start(ordered_config(), Handlers::new().handler_with("Quick", options, quick.clone()).handler("*", slow));
    wait_for_acks(&stage, 1).await;
    assert_eq!(quick.attempt_times("1", stage.started_at), [0, 5, 10]);
}

#[tokio::test(start_paused = true)]
async fn without_order_the_broker_can_store_and_count_retries() {
    let stage = Env::new();
    let handler = failing(100);
    let place = stage.send("0", "k", "1");
    let config = Config { retry_storage: RetryStorage::Broker, retry: exact_retry(6), ..unordered_config() };
    let process = stage.start(config, transaction_handlers(&handler));
    wait_for_acks(&stage, 1).await;
    let delays: Vec<Option<Duration>> = stage.broker.settled().into_iter().map(|(_, delay)| delay).collect();
    assert_eq!(delays, [Some(Duration::from_secs(15)), Some(Duration::from_secs(45)), None]);
    let dead = &stage.dead_letters().await[0];
    assert_eq!(
        (dead.attempts, dead.class.as_str(), stage.first_dead_letter().await.0.offset),
        (6, "transient", Some(place))
    );
    assert_eq!((handler.attempted().len(), process.status.crashed()), (6, 0), "tries that end are no crashes");
}

#[tokio::test(start_paused = true)]
async fn a_redelivery_without_an_attempt_keeps_all_attempts() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    // Prefetched, as behind a breaker, by processes that ended before handling it.
    for time in 1..=5 {
        let held = stage.broker.consumer(1).receive(10).await.expect("a message");
        assert_eq!((held.len(), held[0].redelivered), (1, time > 1));
        stage.broker.redeliver();
    }
    let handler = failing(100);
    let config = Config { retry_storage: RetryStorage::Broker, retry: exact_retry(6), ..unordered_config() };
    let _process = stage.start(config, transaction_handlers(&handler));
    wait_for_acks(&stage, 1).await;
    assert_eq!((handler.attempted().len(), stage.dead_letters().await[0].attempts), (6, 6));
}

#[tokio::test(start_paused = true)]
async fn broker_retries_are_counted_by_the_policy_of_the_handler() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    let handler = failing(100);
    let options = HandlerOptions { retry: Some(exact_retry(4).without_in_memory()), ..HandlerOptions::default() };
    let config = Config { retry_storage: RetryStorage::Broker, ..unordered_config() };
    let _process = stage.start(config, Handlers::new().handler_with("*", options, handler.clone()));
    wait_for_acks(&stage, 1).await;
    assert_eq!((handler.attempted().len(), stage.dead_letters().await[0].attempts), (4, 4));
    assert_eq!(handler.attempt_times("1", stage.started_at), [0, 150, 600, 1_950]);
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_breaks_a_guarantee_is_rejected() {
    let refusal = async |change: fn(&Env), config: Config| {
        let stage = Env::new();
        change(&stage);
        let mut process = stage.start(config, transaction_handlers(&failing(0)));
        match process.wait().await {
            Err(ConsumerError::Config(why)) => why,
            other => panic!("it was not refused: {other:?}"),
        }
    };
    let by_broker = |order| Config { retry_storage: RetryStorage::Broker, ..order };
    let why = refusal(|_| {}, by_broker(ordered_config())).await;
    assert!(why.contains("`retry_storage`"), "{why}");
    let why = refusal(|stage| stage.broker.without_retries(), by_broker(unordered_config())).await;
    assert!(why.contains("`retry_storage`") && why.contains("delayed retries"), "{why}");
    let why = refusal(|stage| stage.broker.without_order(), ordered_config()).await;
    assert!(why.contains("`order`") && why.contains("`ordered"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn without_order_any_queue_will_do() {
    let stage = Env::new();
    stage.broker.without_order();
    stage.send("0", "k", "1");
    let _process = stage.start(unordered_config(), transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_rejected_commit_is_a_failed_attempt() {
    let stage = Env::new();
    stage.faults.rejects_commits.store(true, Ordering::Relaxed);
    stage.send("0", "k", "1");
    let handler = failing(0);
    let process = stage.start(ordered_config(), transaction_handlers(&handler));
    wait_until("it was tried twice", async || handler.attempted().len() == 2).await;
    stage.faults.rejects_commits.store(false, Ordering::Relaxed);
    wait_for_acks(&stage, 1).await;
    assert_eq!((process.status.handler_failures(), stage.effects()), (2, vec!["k:1".to_owned()]));
}
