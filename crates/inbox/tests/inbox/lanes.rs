//! Order: one message of a key at a time, one process per lane.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relevo_core::inbox::retries::Retries;
use relevo_core::message::Headers;
use relevo_inbox::{Config, Order};

use crate::stage::{Do, Stage, acknowledged, fails, inside, ordered, text, told, unordered, until};

fn of_key(ledger: &[String], key: &str) -> Vec<u32> {
    let of = ledger.iter().filter_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    of.map(|number| number.parse().expect("a number")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_keys_messages_are_handled_in_order_and_keys_in_parallel() {
    let stage = Stage::new();
    for number in 0..40 {
        stage.send(&(number % 2).to_string(), &format!("k{}", number % 4), &number.to_string());
    }
    let slow = told(|incoming| Do::DoneAfter(Duration::from_millis(100 * u64::from(text(incoming).as_bytes()[0] % 3))));
    let _process = stage.start(ordered(), inside(&slow));
    acknowledged(&stage, 40).await;
    let ledger = stage.ledger();
    for key in ["k0", "k1", "k2", "k3"] {
        let numbers = of_key(&ledger, key);
        assert!(numbers.is_sorted() && numbers.len() == 10, "{key}: {numbers:?}");
    }
    assert_eq!(slow.most.load(Ordering::SeqCst), 4, "one of each key");
}

#[tokio::test(start_paused = true)]
async fn no_more_handlers_run_than_allowed() {
    let stage = Stage::new();
    for number in 0..20 {
        stage.send("0", &number.to_string(), "x");
    }
    let slow = told(|_| Do::DoneAfter(Duration::from_secs(1)));
    let config = Config { order: Order::None { concurrency: 3 }, ..unordered() };
    let _process = stage.start(config, inside(&slow));
    acknowledged(&stage, 20).await;
    assert_eq!(slow.most.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn no_more_handlers_run_than_allowed_with_those_of_the_retry_table() {
    for concurrency in [1, 3] {
        let stage = Stage::new();
        // Half of them fail once and wait in the retry table while more live messages arrive.
        let slow = told(|incoming| match text(incoming).as_str() {
            "fails" if incoming.attempt() == 1 => Do::Fail,
            _ => Do::DoneAfter(Duration::from_secs(1)),
        });
        let retries = Retries::default().durable_only();
        let config = Config { order: Order::None { concurrency }, retries, ..unordered() };
        let _process = stage.start(config, inside(&slow));
        for round in 0..40 {
            stage.send("0", &round.to_string(), if round % 2 == 0 { "fails" } else { "flows" });
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        until("all are handled", async || stage.ledger().len() == 40).await;
        assert_eq!(slow.most.load(Ordering::SeqCst), concurrency);
    }
}

#[tokio::test(start_paused = true)]
async fn the_retry_table_has_its_turn_while_live_messages_never_end() {
    let stage = Stage::new();
    let first = AtomicBool::new(true);
    let handler = told(move |incoming| match text(incoming).as_str() {
        "waits" if first.swap(false, Ordering::SeqCst) => Do::Fail,
        _ => Do::DoneAfter(Duration::from_secs(1)),
    });
    let retries = Retries::default().durable_only();
    let config = Config { order: Order::None { concurrency: 1 }, retries, ..unordered() };
    stage.send("0", "k", "waits");
    for number in 0..200 {
        stage.send("0", &number.to_string(), "x");
    }
    let _process = stage.start(config, inside(&handler));
    until("it is handled", async || stage.ledger().contains(&"k:waits".to_owned())).await;
    // It failed at once and was due after 15 seconds. With any jitter, live messages were still waiting then.
    assert!(stage.ledger().len() < 60, "{}", stage.ledger().len());
}

#[tokio::test(start_paused = true)]
async fn a_failing_message_holds_back_its_own_key_only() {
    let stage = Stage::new();
    for number in 0..3 {
        stage.send("0", "bad", &number.to_string());
        stage.send("0", "good", &(10 + number).to_string());
    }
    let times = std::sync::atomic::AtomicU32::new(0);
    let handler =
        told(
            move |incoming| {
                if text(incoming) == "0" && times.fetch_add(1, Ordering::SeqCst) < 6 { Do::Fail } else { Do::Done }
            },
        );
    let process = stage.start(ordered(), inside(&handler));
    until("the other key went on", async || of_key(&stage.ledger(), "good") == [10, 11, 12]).await;
    assert!(stage.began.elapsed() < Duration::from_secs(1));
    until("the bad one passed", async || of_key(&stage.ledger(), "bad").len() == 3).await;
    assert_eq!(of_key(&stage.ledger(), "bad"), [0, 1, 2], "those behind it waited in the retry table");
    assert_eq!(process.stats.behind(), 2);
    // Once the retry queue is empty, the key takes the live path again.
    stage.send("0", "bad", "3");
    until("the next one passed", async || of_key(&stage.ledger(), "bad") == [0, 1, 2, 3]).await;
    assert_eq!(process.stats.behind(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_is_anothers_is_waited_for_and_its_deliveries_stay() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    let first = stage.start(ordered(), inside(&fails(0)));
    acknowledged(&stage, 1).await;
    first.kill().await;
    // After a kill it owns its lane until its last heartbeat expires.
    stage.wire.move_lane("0", 2);
    stage.send("0", "k", "2");
    let killed = tokio::time::Instant::now();
    let second = stage.start_with(stage.wire.hand(2), ordered(), inside(&fails(0)));
    until("it was received", async || second.stats.received() == 1).await;
    assert_eq!(second.stats.in_memory(), 1);
    acknowledged(&stage, 2).await;
    let waited = killed.elapsed();
    assert!(waited > Duration::from_secs(7) && waited < Duration::from_secs(11), "{waited:?}");
    assert_eq!(second.stats.received(), 1, "it was kept, not asked for again");
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_moves_during_handling_is_left_and_nothing_happens_twice_or_out_of_order() {
    let stage = Stage::new();
    let slow = told(|_| Do::DoneAfter(Duration::from_millis(700)));
    for number in 0..4 {
        stage.send("0", "k", &number.to_string());
    }
    let first = stage.start(ordered(), inside(&slow));
    until("one is handled", async || stage.ledger().len() == 1).await;
    stage.wire.move_lane("0", 2);
    let second = stage.start_with(stage.wire.hand(2), ordered(), inside(&slow));
    acknowledged(&stage, 4).await;
    assert_eq!(of_key(&stage.ledger(), "k"), [0, 1, 2, 3]);
    assert!(first.stats.answers_lost() > 0, "the broker had moved the lane");
    assert_eq!(first.stats.done() + second.stats.done(), 4);
    stage.send("0", "k", "4");
    acknowledged(&stage, 5).await;
    assert_eq!(of_key(&stage.ledger(), "k"), [0, 1, 2, 3, 4], "the lane was given back to whom the broker gave it");
}

#[tokio::test(start_paused = true)]
async fn an_idle_lane_is_given_back_to_whoever_gets_its_next_message() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    let _first = stage.start(ordered(), inside(&fails(0)));
    acknowledged(&stage, 1).await;
    stage.wire.move_lane("0", 2);
    let moved = tokio::time::Instant::now();
    stage.send("0", "k", "2");
    let _second = stage.start_with(stage.wire.hand(2), ordered(), inside(&fails(0)));
    acknowledged(&stage, 2).await;
    assert!(moved.elapsed() < Duration::from_secs(4), "{:?}", moved.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_idle_lane_is_given_back_by_a_member_that_was_counted_as_dead() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    let first = stage.start(ordered(), inside(&fails(0)));
    acknowledged(&stage, 1).await;
    // No member takes its lane while its connection is cut for longer than a heartbeat lasts.
    stage.line.cut.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(15)).await;
    let beats = first.stats.beats();
    stage.line.cut.store(false, Ordering::Relaxed);
    until("it is alive again", async || first.stats.beats() > beats).await;
    stage.wire.move_lane("0", 2);
    stage.send("0", "k", "2");
    let _second = stage.start_with(stage.wire.hand(2), ordered(), inside(&fails(0)));
    acknowledged(&stage, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_member_that_was_stopped_past_its_last_beat_keeps_its_deliveries_and_takes_the_lane_anew() {
    let stage = Stage::new();
    let slow = told(|_| Do::DoneAfter(Duration::from_secs(2)));
    for number in 0..3 {
        stage.send("0", "k", &number.to_string());
    }
    let first = stage.start(Config { beat_every: Duration::from_secs(2), ..ordered() }, inside(&slow));
    until("one is handled", async || stage.ledger().len() == 1).await;
    // Its connection is cut for longer than a heartbeat lasts, and another member takes the lane meanwhile.
    stage.line.cut.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(15)).await;
    let inbox = stage.outbox.inbox("billing", relevo_core::inbox::Keeping::default());
    let other = uuid::Uuid::from_u128(9);
    let beat = relevo_core::inbox::Beat {
        owner: other,
        name: "other".to_owned(),
        lasts: Duration::from_secs(5),
        marks: Vec::new(),
        last_message_at: None,
        breakers: Vec::new(),
    };
    relevo_core::inbox::Inbox::beat(&inbox, &beat).await.unwrap();
    let taken = relevo_core::inbox::Inbox::take(&inbox, other, &[relevo_core::Lane::new("0")]).await.unwrap();
    assert_eq!(taken.len(), 1, "its owner is dead");
    stage.line.cut.store(false, Ordering::Relaxed);
    acknowledged(&stage, 3).await;
    assert_eq!(of_key(&stage.ledger(), "k"), [0, 1, 2]);
    assert_eq!(first.stats.received(), 3);
    let epochs: Vec<i64> = stage.shown().await.lanes.iter().map(|lane| lane.epoch).collect();
    assert_eq!(epochs, [3], "the first had it, the other, and the first again");
}

#[tokio::test(start_paused = true)]
async fn prefetch_bounds_what_waits_for_a_lane_and_other_lanes_flow() {
    let stage = Stage::new();
    let stuck = told(|incoming| if incoming.key() == "stuck" { Do::Hang } else { Do::Done });
    for number in 0..10 {
        stage.send("a", "stuck", &number.to_string());
        stage.send("b", "free", &number.to_string());
    }
    let hand = stage.wire.hand(1).with_prefetch(3);
    let config = Config { deadline: Duration::from_mins(10), ..ordered() };
    let process = stage.start_with(hand, config, inside(&stuck));
    until("the other lane is done", async || of_key(&stage.ledger(), "free").len() == 10).await;
    assert_eq!(process.stats.in_memory(), 3);
}

#[tokio::test(start_paused = true)]
async fn marks_say_how_far_each_lane_has_come() {
    let stage = Stage::new();
    let places: Vec<u64> = (0..4).map(|number| stage.send("0", &format!("k{number}"), &number.to_string())).collect();
    let handler =
        told(|incoming| if text(incoming) == "2" { Do::DoneAfter(Duration::from_secs(20)) } else { Do::Done });
    let _process = stage.start(ordered(), inside(&handler));
    acknowledged(&stage, 3).await;
    until("a mark is written", async || stage.shown().await.lanes[0].mark.is_some()).await;
    assert_eq!(stage.shown().await.lanes[0].mark, Some(places[2] - 1));
    acknowledged(&stage, 4).await;
    until("the mark moved", async || {
        stage.shown().await.lanes.first().is_some_and(|lane| lane.mark == Some(places[3]))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_order_nothing_waits_behind_what_failed() {
    let stage = Stage::new();
    let retries = Retries::default().durable_only();
    let handler = told(|incoming| if text(incoming) == "1" { Do::Fail } else { Do::Done });
    stage.wire.put("0", stage.raw("OrderPlaced", "k", "1", Headers::new()));
    stage.send("0", "k", "2");
    let process = stage.start(Config { retries, ..unordered() }, inside(&handler));
    acknowledged(&stage, 2).await;
    assert_eq!((stage.ledger(), process.stats.behind()), (vec!["k:2".to_owned()], 0));
}
