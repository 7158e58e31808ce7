//! Outages of the database and the broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::faulty_inbox::FaultPlan;
use crate::harness::{
    Action, Env, call_handlers, failing, ordered_config, scripted, transaction_handlers, unordered_config,
    wait_for_acks, wait_until,
};

#[tokio::test(start_paused = true)]
async fn a_database_outage_stops_receiving_and_acknowledging() {
    for config in [ordered_config(), unordered_config()] {
        let stage = Env::new();
        stage.send("0", "k", "1");
        let handler = failing(0);
        let process = stage.start(config, transaction_handlers(&handler));
        wait_for_acks(&stage, 1).await;
        stage.faults.unavailable.store(true, Ordering::Relaxed);
        stage.send("0", "k", "2");
        // The outage must be seen by a call about a message: failed heartbeats are counted too.
        wait_until("the outage is detected", async || {
            process.status.database_outages() > process.status.heartbeats_failed()
        })
        .await;
        // One `receive` call was waiting when the outage began.
        stage.send("0", "k3", "3");
        wait_until("that one has ended", async || stage.broker.received() == 3).await;
        for number in 4..50 {
            stage.send("0", &format!("k{number}"), &number.to_string());
        }
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!((stage.broker.acknowledged().len(), stage.broker.received()), (1, 3));
        assert!(process.status.database_outages() - process.status.heartbeats_failed() < 100, "pauses grow");
        stage.faults.unavailable.store(false, Ordering::Relaxed);
        wait_for_acks(&stage, 49).await;
        assert_eq!((process.status.handler_failures(), stage.effects().len()), (0, 49), "an outage costs no attempt");
    }
}

#[tokio::test(start_paused = true)]
async fn a_database_outage_during_a_handler_only_repeats_the_handler() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    let handler = scripted(|_| Action::DoneAfter(Duration::from_secs(1)));
    let process = stage.start(ordered_config(), transaction_handlers(&handler));
    wait_until("it runs", async || handler.attempted().len() == 1).await;
    stage.faults.unavailable.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(3)).await;
    stage.faults.unavailable.store(false, Ordering::Relaxed);
    wait_for_acks(&stage, 1).await;
    assert_eq!((stage.effects(), process.status.handler_failures()), (vec!["k:1".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_is_not_repeated_after_a_database_error() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    let handler = scripted(|_| Action::DoneAfter(Duration::from_secs(1)));
    let _process = stage.start(ordered_config(), call_handlers(&handler));
    wait_until("it is called", async || handler.attempted().len() == 1).await;
    stage.faults.unavailable.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(6)).await;
    stage.faults.unavailable.store(false, Ordering::Relaxed);
    wait_for_acks(&stage, 1).await;
    assert_eq!((handler.attempted().len(), stage.effects()), (1, vec!["k:1".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_broker_is_called_again() {
    let stage = Env::new();
    stage.broker.fail(true);
    let process = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    wait_until("the outage is detected", async || process.status.broker_outages() > 5).await;
    stage.send("0", "k", "1");
    stage.broker.fail(false);
    wait_for_acks(&stage, 1).await;
}

#[tokio::test(start_paused = true)]
async fn an_uncommitted_message_is_always_handled_again_soon() {
    for handlers in [transaction_handlers, call_handlers] {
        let stage = Env::new();
        // It was delivered before, so its starts are counted.
        stage.send("0", "k", "1");
        let stopped = stage.start(ordered_config(), handlers(&scripted(|_| Action::Hang)));
        wait_until("it was received", async || stopped.status.received() == 1).await;
        stopped.stop().await.unwrap();
        stage.broker.move_lane("0", 2);
        let handler = scripted(|_| Action::DoneAfter(Duration::from_secs(1)));
        let process = stage.start_with(stage.broker.consumer(2), ordered_config(), handlers(&handler));
        wait_until("it runs", async || handler.attempted().len() == 1).await;
        // More often than `starts_max`, the limit for starts that crash the process.
        stage.faults.loses_commits.store(true, Ordering::Relaxed);
        wait_until("it was tried often", async || handler.attempted().len() == 8).await;
        stage.faults.loses_commits.store(false, Ordering::Relaxed);
        let back = tokio::time::Instant::now();
        wait_for_acks(&stage, 1).await;
        assert!(back.elapsed() < Duration::from_secs(30), "{:?}", back.elapsed());
        assert_eq!((stage.effects(), stage.dead_letters().await.len()), (vec!["k:1".to_owned()], 0));
        assert_eq!(process.status.handler_failures(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_queue_is_resumed_after_a_database_outage() {
    let stage = Env::new();
    let mut config = ordered_config();
    config.retry.in_memory.clear();
    let handler =
        scripted(
            |incoming| if incoming.attempt() == 1 { Action::Fail } else { Action::DoneAfter(Duration::from_secs(1)) },
        );
    stage.send("0", "k", "1");
    let process = stage.start(config, transaction_handlers(&handler));
    // More often than `starts_max`, the limit for starts that crash the process.
    for tries in 2..=8 {
        let back = tokio::time::Instant::now();
        wait_until("it is tried from the retry table", async || handler.attempted().len() == tries).await;
        assert!(tries == 2 || back.elapsed() < Duration::from_secs(10), "{:?}", back.elapsed());
        stage.faults.unavailable.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(3)).await;
        stage.faults.unavailable.store(false, Ordering::Relaxed);
    }
    wait_until("it is handled", async || stage.effects() == ["k:1"]).await;
    assert_eq!((stage.dead_letters().await.len(), process.status.handler_failures()), (0, 1));
}

/// The database fails during the external call and comes back while the claim lasts.
#[tokio::test(start_paused = true)]
async fn a_call_from_a_retry_queue_is_not_repeated_after_a_database_error() {
    let stage = Env::new();
    let mut config = ordered_config();
    config.retry.in_memory.clear();
    let handler =
        scripted(
            |incoming| if incoming.attempt() == 1 { Action::Fail } else { Action::DoneAfter(Duration::from_secs(1)) },
        );
    stage.send("0", "k", "1");
    let process = stage.start(config, call_handlers(&handler));
    wait_until("it is called from the retry queue", async || handler.attempted().len() == 2).await;
    stage.faults.unavailable.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(6)).await;
    stage.faults.unavailable.store(false, Ordering::Relaxed);
    wait_until("it is recorded", async || stage.effects() == ["k:1"]).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!((handler.attempted().len(), stage.effects().len()), (2, 1), "one failed call, one good one");
    assert_eq!((stage.dead_letters().await.len(), process.status.handler_failures()), (0, 1));
}

/// Live, and from the retry table, where a message is after five failed calls.
#[tokio::test(start_paused = true)]
async fn a_call_is_not_repeated_because_its_result_was_not_recorded() {
    type Fault = fn(&FaultPlan) -> &AtomicBool;
    let faults: [(Fault, bool); 3] = [
        (|line| &line.loses_commits, true),
        (|line| &line.rejects_commits, true),
        (|line| &line.loses_commit_reply, false),
    ];
    for (calls_failed, (fault, lasts)) in [0, 5].into_iter().flat_map(|failed| faults.map(|fault| (failed, fault))) {
        let stage = Env::new();
        stage.send("0", "k", "1");
        let (line, calls) = (Arc::clone(&stage.faults), AtomicUsize::new(0));
        let handler = scripted(move |_| {
            if calls.fetch_add(1, Ordering::Relaxed) < calls_failed {
                return Action::Fail;
            }
            fault(&line).store(true, Ordering::Relaxed);
            Action::Done
        });
        let process = stage.start(ordered_config(), call_handlers(&handler));
        wait_until("the external service accepted it", async || handler.attempted().len() == calls_failed + 1).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(stage.effects().is_empty(), lasts);
        fault(&stage.faults).store(false, Ordering::Relaxed);
        wait_until("it is written down", async || stage.effects() == ["k:1"]).await;
        wait_for_acks(&stage, 1).await;
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(handler.attempted().len(), calls_failed + 1, "after {calls_failed} failed calls");
        assert_eq!(process.status.handler_failures(), calls_failed as u64, "the external service did not fail");
    }
}

/// A handler that can never commit its result fails in the end, like any other failing handler.
#[tokio::test(start_paused = true)]
async fn a_call_result_that_can_never_be_recorded_is_a_failure() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    stage.faults.rejects_commits.store(true, Ordering::Relaxed);
    let handler = failing(0);
    let process = stage.start(ordered_config(), call_handlers(&handler));
    wait_until("it failed", async || process.status.handler_failures() > 0).await;
    assert_eq!(handler.attempted().len(), 1);
    wait_until("it is called again after a pause", async || handler.attempted().len() == 2).await;
}
