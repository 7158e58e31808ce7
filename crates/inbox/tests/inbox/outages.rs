//! Outages of the database and the broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::faulty::Line;
use crate::stage::{Do, Stage, acknowledged, call, fails, inside, ordered, told, unordered, until};

#[tokio::test(start_paused = true)]
async fn while_the_database_is_away_nothing_is_taken_nor_acknowledged() {
    for config in [ordered(), unordered()] {
        let stage = Stage::new();
        stage.send("0", "k", "1");
        let handler = fails(0);
        let process = stage.start(config, inside(&handler));
        acknowledged(&stage, 1).await;
        stage.line.cut.store(true, Ordering::Relaxed);
        stage.send("0", "k", "2");
        // The outage must be seen by a call about a message: failed heartbeats are counted too.
        until("it is found away", async || process.stats.database_away() > process.stats.beats_failed()).await;
        // One `receive` call was waiting when the outage began.
        stage.send("0", "k3", "3");
        until("that one has ended", async || stage.wire.received() == 3).await;
        for number in 4..50 {
            stage.send("0", &format!("k{number}"), &number.to_string());
        }
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!((stage.wire.acknowledged().len(), stage.wire.received()), (1, 3));
        assert!(process.stats.database_away() - process.stats.beats_failed() < 100, "pauses grow");
        stage.line.cut.store(false, Ordering::Relaxed);
        acknowledged(&stage, 49).await;
        assert_eq!((process.stats.failed(), stage.ledger().len()), (0, 49), "an outage costs no attempt");
    }
}

#[tokio::test(start_paused = true)]
async fn a_database_that_goes_while_a_handler_runs_costs_a_repetition_of_the_handler_only() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    let handler = told(|_| Do::DoneAfter(Duration::from_secs(1)));
    let process = stage.start(ordered(), inside(&handler));
    until("it runs", async || handler.tried().len() == 1).await;
    stage.line.cut.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(3)).await;
    stage.line.cut.store(false, Ordering::Relaxed);
    acknowledged(&stage, 1).await;
    assert_eq!((stage.ledger(), process.stats.failed()), (vec!["k:1".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn a_far_side_that_was_called_is_not_called_again_because_the_database_blinked() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    let handler = told(|_| Do::DoneAfter(Duration::from_secs(1)));
    let _process = stage.start(ordered(), call(&handler));
    until("it is called", async || handler.tried().len() == 1).await;
    stage.line.cut.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(6)).await;
    stage.line.cut.store(false, Ordering::Relaxed);
    acknowledged(&stage, 1).await;
    assert_eq!((handler.tried().len(), stage.ledger()), (1, vec!["k:1".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_away_is_asked_again() {
    let stage = Stage::new();
    stage.wire.fail(true);
    let process = stage.start(ordered(), inside(&fails(0)));
    until("it is found away", async || process.stats.broker_away() > 5).await;
    stage.send("0", "k", "1");
    stage.wire.fail(false);
    acknowledged(&stage, 1).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_not_committed_is_handled_again_soon_however_often() {
    for handlers in [inside, call] {
        let stage = Stage::new();
        // It was delivered before, so its starts are counted.
        stage.send("0", "k", "1");
        let gone = stage.start(ordered(), handlers(&told(|_| Do::Hang)));
        until("it was received", async || gone.stats.received() == 1).await;
        gone.stop().await.unwrap();
        stage.wire.move_lane("0", 2);
        let handler = told(|_| Do::DoneAfter(Duration::from_secs(1)));
        let process = stage.start_with(stage.wire.hand(2), ordered(), handlers(&handler));
        until("it runs", async || handler.tried().len() == 1).await;
        // More often than `starts_max`, the limit for starts that crash the process.
        stage.line.drops.store(true, Ordering::Relaxed);
        until("it was tried often", async || handler.tried().len() == 8).await;
        stage.line.drops.store(false, Ordering::Relaxed);
        let back = tokio::time::Instant::now();
        acknowledged(&stage, 1).await;
        assert!(back.elapsed() < Duration::from_secs(30), "{:?}", back.elapsed());
        assert_eq!((stage.ledger(), stage.dead().await.len()), (vec!["k:1".to_owned()], 0));
        assert_eq!(process.stats.failed(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_of_the_retry_table_that_was_left_is_taken_up_when_the_database_is_back() {
    let stage = Stage::new();
    let mut config = ordered();
    config.retries.memory.clear();
    let handler =
        told(|incoming| if incoming.attempt() == 1 { Do::Fail } else { Do::DoneAfter(Duration::from_secs(1)) });
    stage.send("0", "k", "1");
    let process = stage.start(config, inside(&handler));
    // More often than `starts_max`, the limit for starts that crash the process.
    for tries in 2..=8 {
        let back = tokio::time::Instant::now();
        until("it is tried from the retry table", async || handler.tried().len() == tries).await;
        assert!(tries == 2 || back.elapsed() < Duration::from_secs(10), "{:?}", back.elapsed());
        stage.line.cut.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(3)).await;
        stage.line.cut.store(false, Ordering::Relaxed);
    }
    until("it is handled", async || stage.ledger() == ["k:1"]).await;
    assert_eq!((stage.dead().await.len(), process.stats.failed()), (0, 1));
}

/// The database fails during the external call and comes back while the claim lasts.
#[tokio::test(start_paused = true)]
async fn a_call_from_a_retry_queue_is_not_repeated_after_a_database_error() {
    let stage = Stage::new();
    let mut config = ordered();
    config.retries.memory.clear();
    let handler =
        told(|incoming| if incoming.attempt() == 1 { Do::Fail } else { Do::DoneAfter(Duration::from_secs(1)) });
    stage.send("0", "k", "1");
    let process = stage.start(config, call(&handler));
    until("it is called from the retry queue", async || handler.tried().len() == 2).await;
    stage.line.cut.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(6)).await;
    stage.line.cut.store(false, Ordering::Relaxed);
    until("it is recorded", async || stage.ledger() == ["k:1"]).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!((handler.tried().len(), stage.ledger().len()), (2, 1), "one failed call, one good one");
    assert_eq!((stage.dead().await.len(), process.stats.failed()), (0, 1));
}

/// Live, and from the retry table, where a message is after five failed calls.
#[tokio::test(start_paused = true)]
async fn a_far_side_is_not_called_again_because_its_answer_could_not_be_written_down() {
    type Fault = fn(&Line) -> &AtomicBool;
    let faults: [(Fault, bool); 3] =
        [(|line| &line.drops, true), (|line| &line.refuses, true), (|line| &line.deaf, false)];
    for (calls_failed, (fault, lasts)) in [0, 5].into_iter().flat_map(|failed| faults.map(|fault| (failed, fault))) {
        let stage = Stage::new();
        stage.send("0", "k", "1");
        let (line, calls) = (Arc::clone(&stage.line), AtomicUsize::new(0));
        let handler = told(move |_| {
            if calls.fetch_add(1, Ordering::Relaxed) < calls_failed {
                return Do::Fail;
            }
            fault(&line).store(true, Ordering::Relaxed);
            Do::Done
        });
        let process = stage.start(ordered(), call(&handler));
        until("the far side took it", async || handler.tried().len() == calls_failed + 1).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(stage.ledger().is_empty(), lasts);
        fault(&stage.line).store(false, Ordering::Relaxed);
        until("it is written down", async || stage.ledger() == ["k:1"]).await;
        acknowledged(&stage, 1).await;
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(handler.tried().len(), calls_failed + 1, "after {calls_failed} failed calls");
        assert_eq!(process.stats.failed(), calls_failed as u64, "the far side did nothing wrong");
    }
}

/// A handler that can never commit its result fails in the end, like any other failing handler.
#[tokio::test(start_paused = true)]
async fn an_answer_that_can_never_be_written_down_is_a_failure() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    stage.line.refuses.store(true, Ordering::Relaxed);
    let handler = fails(0);
    let process = stage.start(ordered(), call(&handler));
    until("it failed", async || process.stats.failed() > 0).await;
    assert_eq!(handler.tried().len(), 1);
    until("it is called again after a pause", async || handler.tried().len() == 2).await;
}
