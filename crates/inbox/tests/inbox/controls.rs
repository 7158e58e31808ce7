//! Operator controls, and the consumer status that operators see.

use std::time::Duration;

use relevo_core::inbox::admin::ConsumerControl;
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_core::message::Headers;
use relevo_inbox::Config;

use crate::harness::{
    Action, Env, RETENTION, STARTED_AT, failing, ordered_config, scripted, transaction_handlers, unordered_config,
    wait_for_acks, wait_until,
};

#[tokio::test(start_paused = true)]
async fn a_consumer_is_paused_and_resumed() {
    let stage = Env::new();
    let config = Config { retry: HandlerRetryPolicy::default().without_in_memory(), ..ordered_config() };
    let handler = failing(1);
    stage.send("0", "k", "1");
    let process = stage.start(config, transaction_handlers(&handler));
    wait_for_acks(&stage, 1).await;
    stage.set_control(None, ConsumerControl::Pause).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    stage.send("0", "k", "2");
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(handler.attempted(), ["1"], "neither live ones nor those of the retry table");
    assert!(process.status.heartbeats() > 1000, "it lives");
    stage.set_control(None, ConsumerControl::Resume).await;
    wait_until("both are handled", async || stage.effects() == ["k:1", "k:2"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_consumer_paused_before_its_start_receives_nothing() {
    let stage = Env::new();
    let first = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    wait_until("it is known", async || first.status.heartbeats() > 0).await;
    first.stop().await.unwrap();
    stage.set_control(None, ConsumerControl::Pause).await;
    stage.send("0", "k", "1");
    stage.broker.move_lane("0", 2);
    let second = stage.start_with(stage.broker.consumer(2), ordered_config(), transaction_handlers(&failing(0)));
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!((second.status.received(), stage.effects().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lane_with_an_unconfirmed_pause_is_resumed() {
    let stage = Env::new();
    stage.send("a", "k", "1");
    let _process = stage.start(unordered_config(), transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 1).await;
    wait_until("the lane is seen", async || stage.consumer().await.lanes.len() == 1).await;
    stage.broker.lose_next_pause_reply();
    stage.set_control(Some("a"), ConsumerControl::Pause).await;
    wait_until("it is paused", async || stage.broker.is_paused("a")).await;
    // Before the pause is sent again.
    stage.set_control(Some("a"), ConsumerControl::Resume).await;
    stage.send("a", "k", "2");
    wait_for_acks(&stage, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_lane_does_not_pause_others() {
    for config in [ordered_config(), unordered_config()] {
        let stage = Env::new();
        for lane in ["a", "b"] {
            stage.send(lane, lane, "1");
        }
        let _process = stage.start(config, transaction_handlers(&failing(0)));
        wait_for_acks(&stage, 2).await;
        wait_until("lanes are seen", async || stage.consumer().await.lanes.len() == 2).await;
        stage.set_control(Some("a"), ConsumerControl::Pause).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        for lane in ["a", "b"] {
            stage.send(lane, lane, "2");
        }
        wait_for_acks(&stage, 3).await;
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(stage.effects()[2..], ["b:2"]);
        stage.set_control(Some("a"), ConsumerControl::Resume).await;
        wait_for_acks(&stage, 4).await;
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_continue_while_a_handler_hangs() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    let config =
        Config { handler_timeout: Duration::from_hours(1), member_name: "here".to_owned(), ..ordered_config() };
    let _process = stage.start(config, transaction_handlers(&scripted(|_| Action::Hang)));
    tokio::time::sleep(Duration::from_mins(30)).await;
    let shown = stage.consumer().await;
    assert!(shown.members[0].alive && shown.members[0].name == "here");
    let taken = shown.summary.last_message_at.expect("it took one");
    assert!(taken.duration_since(STARTED_AT).as_secs() < 5, "{taken}");
}

#[tokio::test(start_paused = true)]
async fn the_retention_is_shown_at_once() {
    let stage = Env::with_retention(RETENTION);
    let process = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    wait_until("it lives", async || process.status.heartbeats() > 0).await;
    assert_eq!(stage.consumer().await.summary.done_retention, Some(RETENTION.done));
}

#[tokio::test(start_paused = true)]
async fn done_messages_are_pruned_after_the_retention() {
    let stage = Env::with_retention(RETENTION);
    let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
    stage.broker.publish("0", raw.clone());
    let process = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 1).await;
    stage.outbox.age(RETENTION.done + Duration::from_secs(1));
    tokio::time::sleep(Duration::from_mins(2)).await;
    // The inbox row was pruned. Only the age of the message could reveal the duplicate, and this message is not old
    // enough.
    stage.broker.publish("0", raw);
    wait_for_acks(&stage, 2).await;
    assert_eq!((process.status.done(), process.status.duplicates()), (2, 0));
}
