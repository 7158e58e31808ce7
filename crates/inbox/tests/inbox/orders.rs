//! Operator controls, and the consumer status that operators see.

use std::time::Duration;

use relevo_core::inbox::operate::Order;
use relevo_core::inbox::retries::Retries;
use relevo_core::message::Headers;
use relevo_inbox::Config;

use crate::stage::{BEGUN, Do, KEEPING, Stage, acknowledged, fails, inside, ordered, told, unordered, until};

#[tokio::test(start_paused = true)]
async fn a_consumer_is_paused_and_resumed() {
    let stage = Stage::new();
    let config = Config { retries: Retries::default().durable_only(), ..ordered() };
    let handler = fails(1);
    stage.send("0", "k", "1");
    let process = stage.start(config, inside(&handler));
    acknowledged(&stage, 1).await;
    stage.order(None, Order::Pause).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    stage.send("0", "k", "2");
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(handler.tried(), ["1"], "neither live ones nor those of the retry table");
    assert!(process.stats.beats() > 1000, "it lives");
    stage.order(None, Order::Resume).await;
    until("both are handled", async || stage.ledger() == ["k:1", "k:2"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_was_paused_before_it_began_takes_nothing() {
    let stage = Stage::new();
    let first = stage.start(ordered(), inside(&fails(0)));
    until("it is known", async || first.stats.beats() > 0).await;
    first.stop().await.unwrap();
    stage.order(None, Order::Pause).await;
    stage.send("0", "k", "1");
    stage.wire.move_lane("0", 2);
    let second = stage.start_with(stage.wire.hand(2), ordered(), inside(&fails(0)));
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!((second.stats.received(), stage.ledger().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lane_whose_pause_was_not_answered_is_resumed_all_the_same() {
    let stage = Stage::new();
    stage.send("a", "k", "1");
    let _process = stage.start(unordered(), inside(&fails(0)));
    acknowledged(&stage, 1).await;
    until("the lane is seen", async || stage.shown().await.lanes.len() == 1).await;
    stage.wire.lose_pause();
    stage.order(Some("a"), Order::Pause).await;
    until("it is paused", async || stage.wire.is_paused("a")).await;
    // Before the pause is sent again.
    stage.order(Some("a"), Order::Resume).await;
    stage.send("a", "k", "2");
    acknowledged(&stage, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_lane_is_paused_alone() {
    for config in [ordered(), unordered()] {
        let stage = Stage::new();
        for lane in ["a", "b"] {
            stage.send(lane, lane, "1");
        }
        let _process = stage.start(config, inside(&fails(0)));
        acknowledged(&stage, 2).await;
        until("lanes are seen", async || stage.shown().await.lanes.len() == 2).await;
        stage.order(Some("a"), Order::Pause).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        for lane in ["a", "b"] {
            stage.send(lane, lane, "2");
        }
        acknowledged(&stage, 3).await;
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(stage.ledger()[2..], ["b:2"]);
        stage.order(Some("a"), Order::Resume).await;
        acknowledged(&stage, 4).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_heart_beats_while_a_handler_hangs() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    let config = Config { deadline: Duration::from_hours(1), name: "here".to_owned(), ..ordered() };
    let _process = stage.start(config, inside(&told(|_| Do::Hang)));
    tokio::time::sleep(Duration::from_mins(30)).await;
    let shown = stage.shown().await;
    assert!(shown.members[0].alive && shown.members[0].name == "here");
    let taken = shown.consumer.last_message_at.expect("it took one");
    assert!(taken.duration_since(BEGUN).as_secs() < 5, "{taken}");
}

#[tokio::test(start_paused = true)]
async fn how_long_it_remembers_is_known_at_once() {
    let stage = Stage::new();
    let process = stage.start(Config { keeping: KEEPING, ..ordered() }, inside(&fails(0)));
    until("it lives", async || process.stats.beats() > 0).await;
    assert_eq!(stage.shown().await.consumer.remembers, Some(KEEPING.done));
}

#[tokio::test(start_paused = true)]
async fn what_is_done_is_pruned_when_its_time_has_come() {
    let stage = Stage::new();
    let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
    stage.wire.put("0", raw.clone());
    let process = stage.start(Config { keeping: KEEPING, ..ordered() }, inside(&fails(0)));
    acknowledged(&stage, 1).await;
    stage.outbox.age(KEEPING.done + Duration::from_secs(1));
    tokio::time::sleep(Duration::from_mins(2)).await;
    // The inbox row was pruned. Only the age of the message could reveal the duplicate, and this message is not old
    // enough.
    stage.wire.put("0", raw);
    acknowledged(&stage, 2).await;
    assert_eq!((process.stats.done(), process.stats.duplicates()), (2, 0));
}
