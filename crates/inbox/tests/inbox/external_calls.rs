//! Handlers that call an external service, then commit.

use std::time::Duration;

use relevo_core::message::Headers;

use crate::harness::{
    Action, Env, call_handlers, failing, ordered_config, scripted, transaction_handlers, unordered_config,
    wait_for_acks, wait_until,
};

#[tokio::test(start_paused = true)]
async fn every_attempt_calls_with_the_same_idempotency_id() {
    let stage = Env::new();
    let handler = failing(5);
    stage.send("0", "k", "1");
    let _process = stage.start(ordered_config(), call_handlers(&handler));
    wait_until("it is done", async || stage.effects() == ["k:1"]).await;
    let mut ids = handler.calls.lock().unwrap().clone();
    assert_eq!(ids.len(), 6);
    ids.dedup();
    assert_eq!(ids.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_is_not_called_again() {
    let stage = Env::new();
    let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
    stage.broker.publish("0", raw.clone());
    stage.broker.publish("0", raw);
    let handler = scripted(|_| Action::Done);
    let process = stage.start(ordered_config(), call_handlers(&handler));
    wait_for_acks(&stage, 2).await;
    assert_eq!((handler.attempted().len(), process.status.duplicates()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn two_members_do_not_call_at_the_same_time() {
    let stage = Env::new();
    let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
    stage.broker.publish("a", raw.clone());
    stage.broker.publish("b", raw);
    stage.broker.move_lane("b", 2);
    let slow = scripted(|_| Action::DoneAfter(Duration::from_secs(20)));
    let _one = stage.start(unordered_config(), call_handlers(&slow));
    let _other = stage.start_with(stage.broker.consumer(2), unordered_config(), call_handlers(&slow));
    wait_for_acks(&stage, 2).await;
    assert_eq!((slow.attempted().len(), stage.effects().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_killed_member_is_repeated_after_its_claim_expires() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    let handler = scripted(|_| Action::DoneAfter(Duration::from_secs(20)));
    let first = stage.start(unordered_config(), call_handlers(&handler));
    wait_until("it is called", async || handler.attempted().len() == 1).await;
    first.kill().await;
    stage.broker.redeliver();
    let died = tokio::time::Instant::now();
    let _second = stage.start(unordered_config(), call_handlers(&handler));
    wait_for_acks(&stage, 1).await;
    assert_eq!((handler.attempted().len(), stage.effects().len()), (2, 1));
    assert!(died.elapsed() > Duration::from_mins(1), "twice its deadline, and the margin: {:?}", died.elapsed());
    let calls = handler.calls.lock().unwrap();
    assert_eq!(calls[0], calls[1]);
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_call_does_not_count_as_done_for_a_transaction_handler() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    let calling = scripted(|_| Action::DoneAfter(Duration::from_secs(20)));
    let first = stage.start(unordered_config(), call_handlers(&calling));
    wait_until("it is called", async || calling.attempted().len() == 1).await;
    first.kill().await;
    stage.broker.redeliver();
    // The next version of the program handles the same type in its transaction.
    let _second = stage.start(unordered_config(), transaction_handlers(&scripted(|_| Action::Done)));
    wait_for_acks(&stage, 1).await;
    assert_eq!(stage.effects(), ["k:1"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_can_skip_and_its_failures_are_recorded() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    stage.send("0", "l", "2");
    let handler = scripted(|incoming| if incoming.key() == "k" { Action::Skip } else { Action::Poison });
    let process = stage.start(ordered_config(), call_handlers(&handler));
    wait_for_acks(&stage, 2).await;
    assert_eq!((process.status.skipped(), stage.dead_letters().await.len()), (1, 1));
}
