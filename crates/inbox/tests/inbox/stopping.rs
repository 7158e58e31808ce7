//! Shutdown of a process.

use std::sync::atomic::Ordering;
use std::time::Duration;

use relevo_core::inbox::Entry;
use relevo_core::{BrokerConsumer as _, Policy};
use relevo_inbox::{Config, RuntimeError};

use crate::stage::{Do, Stage, acknowledged, call, fails, inside, ordered, text, told, unordered, until};

#[tokio::test(start_paused = true)]
async fn what_runs_is_finished_and_the_rest_goes_back_at_once() {
    for config in [ordered(), unordered()] {
        let stage = Stage::new();
        let handler = told(|_| Do::DoneAfter(Duration::from_secs(5)));
        for number in 0..20 {
            stage.send("0", "k", &number.to_string());
        }
        let by_key = matches!(config.order, relevo_inbox::Order::ByKey { .. });
        let running = if by_key { 1 } else { 8 };
        let process = stage.start(config, inside(&handler));
        until("they run", async || handler.tried().len() == running).await;
        process.stop().await.unwrap();
        assert_eq!((stage.wire.acknowledged().len(), stage.ledger().len()), (running, running));
        assert_eq!(stage.wire.waiting(), 20 - running);
        assert_eq!(stage.shown().await.members.iter().filter(|member| member.alive).count(), 0);
        // Another process acquires the lane without waiting for a heartbeat to expire.
        stage.wire.move_lane("0", 2);
        let stopped = tokio::time::Instant::now();
        let _next = stage.start_with(stage.wire.hand(2), ordered(), inside(&fails(0)));
        acknowledged(&stage, 20).await;
        assert!(stopped.elapsed() < Duration::from_secs(1), "{:?}", stopped.elapsed());
    }
}

/// The database is unreachable until the claim of a retry queue has expired, and comes back just before the stop.
#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_the_backoff_of_the_retry_table() {
    for half_seconds in 0..40 {
        let stage = Stage::new();
        let mut config = Config { deadline: Duration::from_secs(1), ..ordered() };
        config.retries.memory.clear();
        let handler =
            told(|incoming| if incoming.attempt() == 1 { Do::Fail } else { Do::DoneAfter(Duration::from_millis(500)) });
        stage.send("0", "k", "1");
        let process = stage.start(config, inside(&handler));
        until("it is tried from the retry table", async || handler.tried().len() == 2).await;
        stage.line.cut.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(500) * half_seconds).await;
        stage.line.cut.store(false, Ordering::Relaxed);
        let stopped = tokio::time::Instant::now();
        process.stop().await.unwrap();
        let took = stopped.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?} after an outage of {half_seconds} half seconds");
    }
}

#[tokio::test(start_paused = true)]
async fn what_does_not_end_in_time_is_dropped_and_costs_nothing() {
    for handlers in [inside, call] {
        let stage = Stage::new();
        let handler = told(|_| Do::Hang);
        stage.send("0", "k", "1");
        let config = Config { deadline: Duration::from_mins(10), ..ordered() };
        let process = stage.start(config, handlers(&handler));
        until("it runs", async || handler.tried().len() == 1).await;
        let stopped = tokio::time::Instant::now();
        process.stop().await.unwrap();
        let took = stopped.elapsed();
        assert!(took >= Duration::from_secs(10) && took < Duration::from_secs(12), "{took:?}");
        assert_eq!((stage.ledger().len(), stage.wire.waiting()), (0, 1));
        // The next process need not wait until the claim of the call expires.
        stage.wire.move_lane("0", 2);
        let stopped = tokio::time::Instant::now();
        let _next = stage.start_with(stage.wire.hand(2), ordered(), handlers(&fails(0)));
        acknowledged(&stage, 1).await;
        assert!(stopped.elapsed() < Duration::from_secs(1), "{:?}", stopped.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn starts_that_were_cut_off_by_a_stop_never_bury_a_message() {
    for handlers in [inside, call] {
        let stage = Stage::new();
        stage.send("0", "k", "1");
        for round in 1..=10 {
            let handler = told(|_| Do::Hang);
            let config = Config { deadline: Duration::from_mins(10), ..ordered() };
            stage.wire.move_lane("0", round);
            let process = stage.start_with(stage.wire.hand(round), config, handlers(&handler));
            until("it runs", async || handler.tried().len() == 1).await;
            process.stop().await.unwrap();
        }
        assert_eq!((stage.dead().await.len(), stage.wire.waiting()), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_of_the_retry_table_whose_handler_does_not_end_in_time_is_given_back() {
    for handlers in [inside, call] {
        let stage = Stage::new();
        let mut config = Config { deadline: Duration::from_mins(10), ..ordered() };
        config.retries.memory.clear();
        stage.send("0", "k", "1");
        let handler = told(|incoming| if incoming.attempt() == 1 { Do::Fail } else { Do::Hang });
        // More often than `starts_max`, the limit for starts that crash the process.
        for round in 1..=8 {
            stage.wire.move_lane("0", round);
            let process = stage.start_with(stage.wire.hand(round), config.clone(), handlers(&handler));
            let tries = handler.tried().len() + if round == 1 { 2 } else { 1 };
            let started = tokio::time::Instant::now();
            until("it is tried from the retry table", async || handler.tried().len() == tries).await;
            assert!(round == 1 || started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
            process.stop().await.unwrap();
        }
        let _last = stage.start_with(stage.wire.hand(9), config, handlers(&fails(0)));
        until("it is handled", async || stage.ledger() == ["k:1"]).await;
        assert_eq!(stage.dead().await.len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_is_being_asked_for_keeps_nobody() {
    let stage = Stage::new();
    stage.line.slow.store(true, Ordering::Relaxed);
    stage.send("0", "k", "1");
    let process = stage.start(ordered(), inside(&fails(0)));
    until("its lane is asked for", async || stage.line.lanes.try_lock().is_err()).await;
    let stopped = tokio::time::Instant::now();
    process.stop().await.unwrap();
    assert!(stopped.elapsed() < Duration::from_secs(1), "{:?}", stopped.elapsed());
    assert_eq!(stage.shown().await.members.iter().filter(|member| member.alive).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn attempts_of_what_waits_in_memory_are_kept() {
    let stage = Stage::new();
    let handler = fails(2);
    stage.send("0", "k", "1");
    stage.send("0", "k", "2");
    let first = stage.start(ordered(), inside(&handler));
    until("it failed twice", async || first.stats.failed() == 2).await;
    first.stop().await.unwrap();
    assert_eq!(stage.wire.acknowledged().len(), 1);
    assert_eq!(stage.shown().await.queues[0].attempts, 2);
    stage.wire.move_lane("0", 2);
    let _second = stage.start_with(stage.wire.hand(2), ordered(), inside(&handler));
    until("both are handled", async || stage.ledger().len() == 2).await;
    assert_eq!(stage.ledger(), ["k:1", "k:2"]);
}

#[tokio::test(start_paused = true)]
async fn a_queue_of_the_retry_table_ends_with_the_message_in_hand() {
    let stage = Stage::new();
    let mut config = ordered();
    config.retries.memory.clear();
    let fail_first = std::sync::atomic::AtomicBool::new(true);
    let handler = told(move |_| {
        if fail_first.swap(false, std::sync::atomic::Ordering::SeqCst) {
            Do::Fail
        } else {
            Do::DoneAfter(Duration::from_secs(3))
        }
    });
    for number in 1..=3 {
        stage.send("0", "k", &number.to_string());
    }
    let first = stage.start(config.clone(), inside(&handler));
    acknowledged(&stage, 3).await;
    until("its first is tried again", async || handler.tried().len() == 2).await;
    first.stop().await.unwrap();
    assert_eq!(stage.ledger(), ["k:1"]);
    let stopped = tokio::time::Instant::now();
    let _second = stage.start_with(stage.wire.hand(2), config, inside(&handler));
    until("the rest is handled", async || stage.ledger().len() == 3).await;
    assert_eq!(stage.ledger(), ["k:1", "k:2", "k:3"]);
    assert!(stopped.elapsed() < Duration::from_secs(8), "the claim was given up: {:?}", stopped.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_somebody_else_closed_ends_the_process() {
    let stage = Stage::new();
    let mut process = stage.start(ordered(), inside(&fails(0)));
    until("it lives", async || process.stats.beats() > 0).await;
    stage.wire.hand(1).close().await.unwrap();
    assert!(matches!(process.ended().await, Err(RuntimeError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_seat_begins_nothing_and_keeps_its_attempts() {
    let stage = Stage::new();
    let mut config = Config { order: relevo_inbox::Order::ByKey { concurrency: 1 }, ..ordered() };
    config.retries.memory = vec![Duration::from_secs(1)];
    config.retries.durable = Policy::listed(vec![Duration::from_millis(1_500); 5]);
    let handler = told(|incoming| match (text(incoming).as_str(), incoming.attempt()) {
        ("slow", 3) => Do::DoneAfter(Duration::from_secs(5)),
        ("quick", 2) => Do::Done,
        _ => Do::Fail,
    });
    let tries = |of: &str| handler.tried().iter().filter(|payload| *payload == of).count();
    stage.send("0", "a", "slow");
    let process = stage.start(config, inside(&handler));
    until("it waits in the retry table", async || process.stats.failed() == 2).await;
    // The other message fails before the first runs again, and its retry is due while the first runs.
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.send("0", "b", "quick");
    until("the first runs again", async || tries("slow") == 3).await;
    assert_eq!(tries("quick"), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    process.stop().await.unwrap();
    assert_eq!(stage.ledger(), ["a:slow"]);
    assert_eq!(tries("quick"), 1, "it had no seat");
    assert_eq!(stage.shown().await.queues[0].attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn one_claim_that_cannot_be_given_back_keeps_no_other() {
    let stage = Stage::new();
    let handler = told(|_| Do::Hang);
    let config = Config { deadline: Duration::from_mins(10), ..ordered() };
    let stuck = stage.raw("OrderPlaced", "a", "1", relevo_core::message::Headers::new());
    stage.wire.put("0", stuck);
    stage.send("0", "b", "2");
    let process = stage.start(config, call(&handler));
    until("both are called for", async || handler.tried().len() == 2).await;
    *stage.line.stuck.lock().unwrap() = Some(Entry { id: relevo_core::MessageId::v7(1, [7; 10]), replay: 0 });
    process.stop().await.unwrap();
    stage.wire.move_lane("0", 2);
    let stopped = tokio::time::Instant::now();
    let _next = stage.start_with(stage.wire.hand(2), ordered(), call(&fails(0)));
    acknowledged(&stage, 1).await;
    assert!(stopped.elapsed() < Duration::from_secs(1), "{:?}", stopped.elapsed());
    assert_eq!(stage.ledger(), ["b:2"]);
}
