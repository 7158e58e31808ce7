//! Shutdown of a process.

use std::sync::atomic::Ordering;
use std::time::Duration;

use relevo_core::inbox::DedupId;
use relevo_core::{BrokerConsumer as _, RetryPolicy};
use relevo_inbox::{Config, ConsumerError};

use crate::harness::{
    Action, Env, call_handlers, failing, ordered_config, payload_text, scripted, transaction_handlers,
    unordered_config, wait_for_acks, wait_until,
};

#[tokio::test(start_paused = true)]
async fn running_handlers_finish_and_other_deliveries_are_returned_at_once() {
    for config in [ordered_config(), unordered_config()] {
        let stage = Env::new();
        let handler = scripted(|_| Action::DoneAfter(Duration::from_secs(5)));
        for number in 0..20 {
            stage.send("0", "k", &number.to_string());
        }
        let by_key = matches!(config.order, relevo_inbox::MessageOrder::ByKey { .. });
        let running = if by_key { 1 } else { 8 };
        let process = stage.start(config, transaction_handlers(&handler));
        wait_until("they run", async || handler.attempted().len() == running).await;
        process.stop().await.unwrap();
        assert_eq!((stage.broker.acknowledged().len(), stage.effects().len()), (running, running));
        assert_eq!(stage.broker.waiting(), 20 - running);
        assert_eq!(stage.consumer().await.members.iter().filter(|member| member.alive).count(), 0);
        // Another process acquires the lane without waiting for a heartbeat to expire.
        stage.broker.move_lane("0", 2);
        let stopped = tokio::time::Instant::now();
        let _next = stage.start_with(stage.broker.consumer(2), ordered_config(), transaction_handlers(&failing(0)));
        wait_for_acks(&stage, 20).await;
        assert!(stopped.elapsed() < Duration::from_secs(1), "{:?}", stopped.elapsed());
    }
}

/// The database is unreachable until the claim of a retry queue has expired, and comes back just before the stop.
#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_the_backoff_of_the_retry_table() {
    for half_seconds in 0..40 {
        let stage = Env::new();
        let mut config = Config { handler_timeout: Duration::from_secs(1), ..ordered_config() };
        config.retry.in_memory.clear();
        let handler = scripted(|incoming| {
            if incoming.attempt() == 1 { Action::Fail } else { Action::DoneAfter(Duration::from_millis(500)) }
        });
        stage.send("0", "k", "1");
        let process = stage.start(config, transaction_handlers(&handler));
        wait_until("it is tried from the retry table", async || handler.attempted().len() == 2).await;
        stage.faults.unavailable.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(500) * half_seconds).await;
        stage.faults.unavailable.store(false, Ordering::Relaxed);
        let stopped = tokio::time::Instant::now();
        process.stop().await.unwrap();
        let took = stopped.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?} after an outage of {half_seconds} half seconds");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_beyond_the_grace_period_is_dropped_and_counts_no_attempt() {
    for handlers in [transaction_handlers, call_handlers] {
        let stage = Env::new();
        let handler = scripted(|_| Action::Hang);
        stage.send("0", "k", "1");
        let config = Config { handler_timeout: Duration::from_mins(10), ..ordered_config() };
        let process = stage.start(config, handlers(&handler));
        wait_until("it runs", async || handler.attempted().len() == 1).await;
        let stopped = tokio::time::Instant::now();
        process.stop().await.unwrap();
        let took = stopped.elapsed();
        assert!(took >= Duration::from_secs(10) && took < Duration::from_secs(12), "{took:?}");
        assert_eq!((stage.effects().len(), stage.broker.waiting()), (0, 1));
        // The next process need not wait until the claim of the call expires.
        stage.broker.move_lane("0", 2);
        let stopped = tokio::time::Instant::now();
        let _next = stage.start_with(stage.broker.consumer(2), ordered_config(), handlers(&failing(0)));
        wait_for_acks(&stage, 1).await;
        assert!(stopped.elapsed() < Duration::from_secs(1), "{:?}", stopped.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn starts_interrupted_by_a_shutdown_never_dead_letter_a_message() {
    for handlers in [transaction_handlers, call_handlers] {
        let stage = Env::new();
        stage.send("0", "k", "1");
        for round in 1..=10 {
            let handler = scripted(|_| Action::Hang);
            let config = Config { handler_timeout: Duration::from_mins(10), ..ordered_config() };
            stage.broker.move_lane("0", round);
            let process = stage.start_with(stage.broker.consumer(round), config, handlers(&handler));
            wait_until("it runs", async || handler.attempted().len() == 1).await;
            process.stop().await.unwrap();
        }
        assert_eq!((stage.dead_letters().await.len(), stage.broker.waiting()), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_queue_of_a_dropped_handler_is_released() {
    for handlers in [transaction_handlers, call_handlers] {
        let stage = Env::new();
        let mut config = Config { handler_timeout: Duration::from_mins(10), ..ordered_config() };
        config.retry.in_memory.clear();
        stage.send("0", "k", "1");
        let handler = scripted(|incoming| if incoming.attempt() == 1 { Action::Fail } else { Action::Hang });
        // More often than `starts_max`, the limit for starts that crash the process.
        for round in 1..=8 {
            stage.broker.move_lane("0", round);
            let process = stage.start_with(stage.broker.consumer(round), config.clone(), handlers(&handler));
            let tries = handler.attempted().len() + if round == 1 { 2 } else { 1 };
            let started = tokio::time::Instant::now();
            wait_until("it is tried from the retry table", async || handler.attempted().len() == tries).await;
            assert!(round == 1 || started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
            process.stop().await.unwrap();
        }
        let _last = stage.start_with(stage.broker.consumer(9), config, handlers(&failing(0)));
        wait_until("it is handled", async || stage.effects() == ["k:1"]).await;
        assert_eq!(stage.dead_letters().await.len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_running_lane_call_does_not_delay_the_shutdown() {
    let stage = Env::new();
    stage.faults.slow_acquire.store(true, Ordering::Relaxed);
    stage.send("0", "k", "1");
    let process = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    wait_until("its lane is requested", async || stage.faults.lane_connection.try_lock().is_err()).await;
    let stopped = tokio::time::Instant::now();
    process.stop().await.unwrap();
    assert!(stopped.elapsed() < Duration::from_secs(1), "{:?}", stopped.elapsed());
    assert_eq!(stage.consumer().await.members.iter().filter(|member| member.alive).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn attempts_of_in_memory_retries_are_recorded() {
    let stage = Env::new();
    let handler = failing(2);
    stage.send("0", "k", "1");
    stage.send("0", "k", "2");
    let first = stage.start(ordered_config(), transaction_handlers(&handler));
    wait_until("it failed twice", async || first.status.handler_failures() == 2).await;
    first.stop().await.unwrap();
    assert_eq!(stage.broker.acknowledged().len(), 1);
    assert_eq!(stage.consumer().await.queues[0].attempts, 2);
    stage.broker.move_lane("0", 2);
    let _second = stage.start_with(stage.broker.consumer(2), ordered_config(), transaction_handlers(&handler));
    wait_until("both are handled", async || stage.effects().len() == 2).await;
    assert_eq!(stage.effects(), ["k:1", "k:2"]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_queue_ends_with_its_current_message() {
    let stage = Env::new();
    let mut config = ordered_config();
    config.retry.in_memory.clear();
    let fail_first = std::sync::atomic::AtomicBool::new(true);
    let handler = scripted(move |_| {
        if fail_first.swap(false, std::sync::atomic::Ordering::SeqCst) {
            Action::Fail
        } else {
            Action::DoneAfter(Duration::from_secs(3))
        }
    });
    for number in 1..=3 {
        stage.send("0", "k", &number.to_string());
    }
    let first = stage.start(config.clone(), transaction_handlers(&handler));
    wait_for_acks(&stage, 3).await;
    wait_until("its first is tried again", async || handler.attempted().len() == 2).await;
    first.stop().await.unwrap();
    assert_eq!(stage.effects(), ["k:1"]);
    let stopped = tokio::time::Instant::now();
    let _second = stage.start_with(stage.broker.consumer(2), config, transaction_handlers(&handler));
    wait_until("the rest is handled", async || stage.effects().len() == 3).await;
    assert_eq!(stage.effects(), ["k:1", "k:2", "k:3"]);
    assert!(stopped.elapsed() < Duration::from_secs(8), "the claim expired: {:?}", stopped.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_closed_broker_consumer_ends_the_runtime() {
    let stage = Env::new();
    let mut process = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    wait_until("it lives", async || process.status.heartbeats() > 0).await;
    stage.broker.consumer(1).close().await.unwrap();
    assert!(matches!(process.wait().await, Err(ConsumerError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn a_delivery_without_a_permit_at_shutdown_keeps_its_attempts() {
    let stage = Env::new();
    let mut config = Config { order: relevo_inbox::MessageOrder::ByKey { concurrency: 1 }, ..ordered_config() };
    config.retry.in_memory = vec![Duration::from_secs(1)];
    config.retry.durable = RetryPolicy::with_delays(vec![Duration::from_millis(1_500); 5]);
    let handler = scripted(|incoming| match (payload_text(incoming).as_str(), incoming.attempt()) {
        ("slow", 3) => Action::DoneAfter(Duration::from_secs(5)),
        ("quick", 2) => Action::Done,
        _ => Action::Fail,
    });
    let tries = |of: &str| handler.attempted().iter().filter(|payload| *payload == of).count();
    stage.send("0", "a", "slow");
    let process = stage.start(config, transaction_handlers(&handler));
    wait_until("it waits in the retry table", async || process.status.handler_failures() == 2).await;
    // The other message fails before the first runs again, and its retry is due while the first runs.
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.send("0", "b", "quick");
    wait_until("the first runs again", async || tries("slow") == 3).await;
    assert_eq!(tries("quick"), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    process.stop().await.unwrap();
    assert_eq!(stage.effects(), ["a:slow"]);
    assert_eq!(tries("quick"), 1, "it had no seat");
    assert_eq!(stage.consumer().await.queues[0].attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_released_does_not_delay_others() {
    let stage = Env::new();
    let handler = scripted(|_| Action::Hang);
    let config = Config { handler_timeout: Duration::from_mins(10), ..ordered_config() };
    let stuck = stage.raw("OrderPlaced", "a", "1", relevo_core::message::Headers::new());
    stage.broker.publish("0", stuck);
    stage.send("0", "b", "2");
    let process = stage.start(config, call_handlers(&handler));
    wait_until("both are called for", async || handler.attempted().len() == 2).await;
    *stage.faults.blocked.lock().unwrap() = Some(DedupId { id: relevo_core::MessageId::v7(1, [7; 10]), replay: 0 });
    process.stop().await.unwrap();
    stage.broker.move_lane("0", 2);
    let stopped = tokio::time::Instant::now();
    let _next = stage.start_with(stage.broker.consumer(2), ordered_config(), call_handlers(&failing(0)));
    wait_for_acks(&stage, 1).await;
    assert!(stopped.elapsed() < Duration::from_secs(1), "{:?}", stopped.elapsed());
    assert_eq!(stage.effects(), ["b:2"]);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_acknowledgement_does_not_delay_closing_the_consumer() {
    let env = Env::new();
    env.broker.slow_acks(Duration::from_hours(1));
    env.send("0", "k", "1");
    let config = ordered_config();
    let limit = config.broker_timeout + Duration::from_secs(1);
    let process = env.start(config, transaction_handlers(&failing(0)));
    wait_until("it is being acknowledged", async || env.broker.is_acknowledging()).await;
    // The call times out after 10 seconds, so the next one is in progress when shutdown stops waiting.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let stopped = tokio::time::Instant::now();
    process.stop().await.unwrap();
    assert!(stopped.elapsed() < limit, "{:?}", stopped.elapsed());
    assert_eq!(env.broker.waiting(), 1, "the consumer was closed, so its delivery was returned");
}

#[tokio::test(start_paused = true)]
async fn acknowledgements_continue_while_a_shutdown_ends_attempts() {
    let env = Env::new();
    env.broker.slow_acks(Duration::from_secs(2));
    let handler = scripted(|incoming| if incoming.key() == "a" { Action::Done } else { Action::Hang });
    let config =
        Config { handler_timeout: Duration::from_mins(10), shutdown_grace: Duration::ZERO, ..ordered_config() };
    env.send("0", "a", "1");
    env.send("0", "b", "2");
    let mut process = env.start(config, call_handlers(&handler));
    wait_until("one is being acknowledged", async || env.broker.is_acknowledging()).await;
    wait_until("the other is called", async || handler.attempted().len() == 2).await;
    // Ending the attempt of the other message fails until the store timeout of 10 seconds.
    *env.faults.blocked.lock().unwrap() = Some(DedupId { id: relevo_core::MessageId::v7(2, [7; 10]), replay: 0 });
    process.stop.cancel();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(env.broker.acknowledged().len(), 1);
    process.wait().await.unwrap();
}
