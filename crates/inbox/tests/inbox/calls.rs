//! Handlers that call an external service, then commit.

use std::time::Duration;

use relevo_core::message::Headers;

use crate::stage::{Do, Stage, acknowledged, call, fails, inside, ordered, told, unordered, until};

#[tokio::test(start_paused = true)]
async fn every_try_calls_under_the_same_id_those_of_the_retry_table_included() {
    let stage = Stage::new();
    let handler = fails(5);
    stage.send("0", "k", "1");
    let _process = stage.start(ordered(), call(&handler));
    until("it is done", async || stage.ledger() == ["k:1"]).await;
    let mut ids = handler.calls.lock().unwrap().clone();
    assert_eq!(ids.len(), 6);
    ids.dedup();
    assert_eq!(ids.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_comes_again_is_not_called_for() {
    let stage = Stage::new();
    let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
    stage.wire.put("0", raw.clone());
    stage.wire.put("0", raw);
    let handler = told(|_| Do::Done);
    let process = stage.start(ordered(), call(&handler));
    acknowledged(&stage, 2).await;
    assert_eq!((handler.tried().len(), process.stats.duplicates()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn two_processes_do_not_call_at_the_same_time() {
    let stage = Stage::new();
    let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
    stage.wire.put("a", raw.clone());
    stage.wire.put("b", raw);
    stage.wire.move_lane("b", 2);
    let slow = told(|_| Do::DoneAfter(Duration::from_secs(20)));
    let _one = stage.start(unordered(), call(&slow));
    let _other = stage.start_with(stage.wire.hand(2), unordered(), call(&slow));
    acknowledged(&stage, 2).await;
    assert_eq!((slow.tried().len(), stage.ledger().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_process_that_died_is_made_again_once_its_claim_has_ended() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    let handler = told(|_| Do::DoneAfter(Duration::from_secs(20)));
    let first = stage.start(unordered(), call(&handler));
    until("it is called", async || handler.tried().len() == 1).await;
    first.kill().await;
    stage.wire.redeliver();
    let died = tokio::time::Instant::now();
    let _second = stage.start(unordered(), call(&handler));
    acknowledged(&stage, 1).await;
    assert_eq!((handler.tried().len(), stage.ledger().len()), (2, 1));
    assert!(died.elapsed() > Duration::from_mins(1), "twice its deadline, and the margin: {:?}", died.elapsed());
    let calls = handler.calls.lock().unwrap();
    assert_eq!(calls[0], calls[1]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_died_is_not_taken_for_done_by_a_handler_that_works_inside() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    let calling = told(|_| Do::DoneAfter(Duration::from_secs(20)));
    let first = stage.start(unordered(), call(&calling));
    until("it is called", async || calling.tried().len() == 1).await;
    first.kill().await;
    stage.wire.redeliver();
    // The next version of the program handles the same type in its transaction.
    let _second = stage.start(unordered(), inside(&told(|_| Do::Done)));
    acknowledged(&stage, 1).await;
    assert_eq!(stage.ledger(), ["k:1"]);
}

#[tokio::test(start_paused = true)]
async fn a_verdict_of_a_call_can_be_skip_and_its_failures_are_kept() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    stage.send("0", "l", "2");
    let handler = told(|incoming| if incoming.key() == "k" { Do::Skip } else { Do::Poison });
    let process = stage.start(ordered(), call(&handler));
    acknowledged(&stage, 2).await;
    assert_eq!((process.stats.skipped(), stage.dead().await.len()), (1, 1));
}
