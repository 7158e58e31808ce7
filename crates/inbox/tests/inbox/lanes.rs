//! Order: one message of a key at a time, one process per lane.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_core::message::Headers;
use relevo_inbox::{Config, MessageOrder};

use crate::harness::{
    Action, Env, failing, ordered_config, payload_text, scripted, transaction_handlers, unordered_config,
    wait_for_acks, wait_until,
};

fn numbers_of_key(ledger: &[String], key: &str) -> Vec<u32> {
    let of = ledger.iter().filter_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    of.map(|number| number.parse().expect("a number")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_keys_messages_are_handled_in_order_and_keys_in_parallel() {
    let stage = Env::new();
    for number in 0..40 {
        stage.send(&(number % 2).to_string(), &format!("k{}", number % 4), &number.to_string());
    }
    let slow = scripted(|incoming| {
        Action::DoneAfter(Duration::from_millis(100 * u64::from(payload_text(incoming).as_bytes()[0] % 3)))
    });
    let _process = stage.start(ordered_config(), transaction_handlers(&slow));
    wait_for_acks(&stage, 40).await;
    let ledger = stage.effects();
    for key in ["k0", "k1", "k2", "k3"] {
        let numbers = numbers_of_key(&ledger, key);
        assert!(numbers.is_sorted() && numbers.len() == 10, "{key}: {numbers:?}");
    }
    assert_eq!(slow.max_running.load(Ordering::SeqCst), 4, "one of each key");
}

#[tokio::test(start_paused = true)]
async fn running_handlers_stay_within_the_concurrency() {
    let stage = Env::new();
    for number in 0..20 {
        stage.send("0", &number.to_string(), "x");
    }
    let slow = scripted(|_| Action::DoneAfter(Duration::from_secs(1)));
    let config = Config { order: MessageOrder::None { concurrency: 3 }, ..unordered_config() };
    let _process = stage.start(config, transaction_handlers(&slow));
    wait_for_acks(&stage, 20).await;
    assert_eq!(slow.max_running.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn handlers_of_retry_queues_count_towards_the_concurrency() {
    for concurrency in [1, 3] {
        let stage = Env::new();
        // Half of them fail once and wait in the retry table while more live messages arrive.
        let slow = scripted(|incoming| match payload_text(incoming).as_str() {
            "fails" if incoming.attempt() == 1 => Action::Fail,
            _ => Action::DoneAfter(Duration::from_secs(1)),
        });
        let retry = HandlerRetryPolicy::default().without_in_memory();
        let config = Config { order: MessageOrder::None { concurrency }, retry, ..unordered_config() };
        let _process = stage.start(config, transaction_handlers(&slow));
        for round in 0..40 {
            stage.send("0", &round.to_string(), if round % 2 == 0 { "fails" } else { "flows" });
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        wait_until("all are handled", async || stage.effects().len() == 40).await;
        assert_eq!(slow.max_running.load(Ordering::SeqCst), concurrency);
    }
}

#[tokio::test(start_paused = true)]
async fn retry_queues_progress_under_continuous_live_messages() {
    let stage = Env::new();
    let first = AtomicBool::new(true);
    let handler = scripted(move |incoming| match payload_text(incoming).as_str() {
        "waits" if first.swap(false, Ordering::SeqCst) => Action::Fail,
        _ => Action::DoneAfter(Duration::from_secs(1)),
    });
    let retry = HandlerRetryPolicy::default().without_in_memory();
    let config = Config { order: MessageOrder::None { concurrency: 1 }, retry, ..unordered_config() };
    stage.send("0", "k", "waits");
    for number in 0..200 {
        stage.send("0", &number.to_string(), "x");
    }
    let _process = stage.start(config, transaction_handlers(&handler));
    wait_until("it is handled", async || stage.effects().contains(&"k:waits".to_owned())).await;
    // It failed at once and was due after 15 seconds. With any jitter, live messages were still waiting then.
    assert!(stage.effects().len() < 60, "{}", stage.effects().len());
}

#[tokio::test(start_paused = true)]
async fn a_failing_message_blocks_only_its_key() {
    let stage = Env::new();
    for number in 0..3 {
        stage.send("0", "bad", &number.to_string());
        stage.send("0", "good", &(10 + number).to_string());
    }
    let times = std::sync::atomic::AtomicU32::new(0);
    let handler = scripted(move |incoming| {
        if payload_text(incoming) == "0" && times.fetch_add(1, Ordering::SeqCst) < 6 {
            Action::Fail
        } else {
            Action::Done
        }
    });
    let process = stage.start(ordered_config(), transaction_handlers(&handler));
    wait_until("the other key went on", async || numbers_of_key(&stage.effects(), "good") == [10, 11, 12]).await;
    assert!(stage.started_at.elapsed() < Duration::from_secs(1));
    wait_until("the bad one passed", async || numbers_of_key(&stage.effects(), "bad").len() == 3).await;
    assert_eq!(numbers_of_key(&stage.effects(), "bad"), [0, 1, 2], "those behind it waited in the retry table");
    assert_eq!(process.status.queued_behind(), 2);
    // Once the retry queue is empty, the key takes the live path again.
    stage.send("0", "bad", "3");
    wait_until("the next one passed", async || numbers_of_key(&stage.effects(), "bad") == [0, 1, 2, 3]).await;
    assert_eq!(process.status.queued_behind(), 2);
}

#[tokio::test(start_paused = true)]
async fn deliveries_wait_for_a_lane_of_another_member() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    let first = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 1).await;
    first.kill().await;
    // After a kill it owns its lane until its last heartbeat expires.
    stage.broker.move_lane("0", 2);
    stage.send("0", "k", "2");
    let killed = tokio::time::Instant::now();
    let second = stage.start_with(stage.broker.consumer(2), ordered_config(), transaction_handlers(&failing(0)));
    wait_until("it was received", async || second.status.received() == 1).await;
    assert_eq!(second.status.buffered_messages(), 1);
    wait_for_acks(&stage, 2).await;
    let waited = killed.elapsed();
    assert!(waited > Duration::from_secs(7) && waited < Duration::from_secs(11), "{waited:?}");
    assert_eq!(second.status.received(), 1, "it was kept, and not received again");
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_moves_during_handling_repeats_and_reorders_no_effect() {
    let stage = Env::new();
    let slow = scripted(|_| Action::DoneAfter(Duration::from_millis(700)));
    for number in 0..4 {
        stage.send("0", "k", &number.to_string());
    }
    let first = stage.start(ordered_config(), transaction_handlers(&slow));
    wait_until("one is handled", async || stage.effects().len() == 1).await;
    stage.broker.move_lane("0", 2);
    let second = stage.start_with(stage.broker.consumer(2), ordered_config(), transaction_handlers(&slow));
    wait_for_acks(&stage, 4).await;
    assert_eq!(numbers_of_key(&stage.effects(), "k"), [0, 1, 2, 3]);
    assert!(first.status.stale_acks() > 0, "the broker had moved the lane");
    assert_eq!(first.status.done() + second.status.done(), 4);
    stage.send("0", "k", "4");
    wait_for_acks(&stage, 5).await;
    assert_eq!(
        numbers_of_key(&stage.effects(), "k"),
        [0, 1, 2, 3, 4],
        "the lane was given back to whom the broker gave it"
    );
}

#[tokio::test(start_paused = true)]
async fn an_idle_lane_is_released_to_another_member() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    let _first = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 1).await;
    stage.broker.move_lane("0", 2);
    let moved = tokio::time::Instant::now();
    stage.send("0", "k", "2");
    let _second = stage.start_with(stage.broker.consumer(2), ordered_config(), transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 2).await;
    assert!(moved.elapsed() < Duration::from_secs(4), "{:?}", moved.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_expired_member_releases_its_idle_lane() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    let first = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 1).await;
    // No member takes its lane while its connection is cut for longer than a heartbeat lasts.
    stage.faults.unavailable.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(15)).await;
    let beats = first.status.heartbeats();
    stage.faults.unavailable.store(false, Ordering::Relaxed);
    wait_until("it is alive again", async || first.status.heartbeats() > beats).await;
    stage.broker.move_lane("0", 2);
    stage.send("0", "k", "2");
    let _second = stage.start_with(stage.broker.consumer(2), ordered_config(), transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 2).await;
}

#[tokio::test(start_paused = true)]
async fn an_expired_member_keeps_its_deliveries_and_acquires_its_lane_again() {
    let stage = Env::new();
    let slow = scripted(|_| Action::DoneAfter(Duration::from_secs(2)));
    for number in 0..3 {
        stage.send("0", "k", &number.to_string());
    }
    let first = stage
        .start(Config { heartbeat_interval: Duration::from_secs(2), ..ordered_config() }, transaction_handlers(&slow));
    wait_until("one is handled", async || stage.effects().len() == 1).await;
    // Its connection is cut for longer than a heartbeat lasts, and another member takes the lane meanwhile.
    stage.faults.unavailable.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(15)).await;
    let inbox = stage.outbox.inbox("billing", relevo_core::inbox::InboxRetention::default());
    let other = uuid::Uuid::from_u128(9);
    let beat = relevo_core::inbox::members::Heartbeat {
        owner: other,
        name: "other".to_owned(),
        ttl: Duration::from_secs(5),
        settled_offsets: Vec::new(),
        last_message_at: None,
        breakers: Vec::new(),
    };
    relevo_core::inbox::Inbox::heartbeat(&inbox, &beat).await.unwrap();
    let taken = relevo_core::inbox::Inbox::acquire_lanes(&inbox, other, &[relevo_core::Lane::new("0")]).await.unwrap();
    assert_eq!(taken.len(), 1, "its owner is dead");
    stage.faults.unavailable.store(false, Ordering::Relaxed);
    wait_for_acks(&stage, 3).await;
    assert_eq!(numbers_of_key(&stage.effects(), "k"), [0, 1, 2]);
    assert_eq!(first.status.received(), 3);
    let epochs: Vec<i64> = stage.consumer().await.lanes.iter().map(|lane| lane.epoch).collect();
    assert_eq!(epochs, [3], "the first had it, the other, and the first again");
}

#[tokio::test(start_paused = true)]
async fn prefetch_bounds_a_waiting_lane_and_not_the_others() {
    let stage = Env::new();
    let stuck = scripted(|incoming| if incoming.key() == "stuck" { Action::Hang } else { Action::Done });
    for number in 0..10 {
        stage.send("a", "stuck", &number.to_string());
        stage.send("b", "free", &number.to_string());
    }
    let hand = stage.broker.consumer(1).with_prefetch(3);
    let config = Config { handler_timeout: Duration::from_mins(10), ..ordered_config() };
    let process = stage.start_with(hand, config, transaction_handlers(&stuck));
    wait_until("the other lane is done", async || numbers_of_key(&stage.effects(), "free").len() == 10).await;
    assert_eq!(process.status.buffered_messages(), 3);
}

#[tokio::test(start_paused = true)]
async fn settled_offsets_are_reported_by_lane() {
    let stage = Env::new();
    let places: Vec<u64> = (0..4).map(|number| stage.send("0", &format!("k{number}"), &number.to_string())).collect();
    let handler =
        scripted(
            |incoming| {
                if payload_text(incoming) == "2" { Action::DoneAfter(Duration::from_secs(20)) } else { Action::Done }
            },
        );
    let _process = stage.start(ordered_config(), transaction_handlers(&handler));
    wait_for_acks(&stage, 3).await;
    wait_until("a mark is written", async || stage.consumer().await.lanes[0].settled_offset.is_some()).await;
    assert_eq!(stage.consumer().await.lanes[0].settled_offset, Some(places[2] - 1));
    wait_for_acks(&stage, 4).await;
    wait_until("the mark moved", async || {
        stage.consumer().await.lanes.first().is_some_and(|lane| lane.settled_offset == Some(places[3]))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_order_a_failed_message_blocks_no_other() {
    let stage = Env::new();
    let retry = HandlerRetryPolicy::default().without_in_memory();
    let handler = scripted(|incoming| if payload_text(incoming) == "1" { Action::Fail } else { Action::Done });
    stage.broker.publish("0", stage.raw("OrderPlaced", "k", "1", Headers::new()));
    stage.send("0", "k", "2");
    let process = stage.start(Config { retry, ..unordered_config() }, transaction_handlers(&handler));
    wait_for_acks(&stage, 2).await;
    assert_eq!((stage.effects(), process.status.queued_behind()), (vec!["k:2".to_owned()], 0));
}
