//! Messages that crash the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relevo_core::inbox::retries::Retries;
use relevo_core::inbox::{Arrival, Entry, Inbox as _, Keeping, Setback, Stop};
use relevo_core::message::Headers;
use relevo_core::{BrokerConsumer as _, Lane, Raw};
use relevo_inbox::{Config, Handlers, Options, Order};
use relevo_store_memory::Inbox;
use tokio::time::Instant;

use crate::stage::{
    CONSUMER, Do, Stage, Told, acknowledged, call, fails, inside, ordered, text, told, unordered, until,
};

/// Kills the process each time it handles `bad`, until `bad` is dead-lettered.
async fn crash_until_quiet(stage: &Stage, handler: &Told, config: &Config, calls: bool) -> u64 {
    for crashes in 0..20 {
        let handlers = if calls { call(handler) } else { inside(handler) };
        let hand = stage.wire.hand(crashes + 1);
        stage.wire.move_lane("0", crashes + 1);
        let tried = handler.tried().len();
        let process = stage.start_with(hand, config.clone(), handlers);
        until("it works on the bad one, or buried it", async || {
            handler.tried()[tried..].contains(&"bad".to_owned()) || !stage.dead().await.is_empty()
        })
        .await;
        if !stage.dead().await.is_empty() {
            acknowledged(stage, 3).await;
            return crashes;
        }
        process.kill().await;
        stage.wire.redeliver();
        // After this time its heartbeat and the claim of its call have expired.
        tokio::time::sleep(Duration::from_mins(3)).await;
    }
    panic!("it was never buried");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_takes_the_process_down_is_buried_after_so_many_starts() {
    for (config, calls) in [(ordered(), false), (unordered(), false), (ordered(), true)] {
        let stage = Stage::new();
        let handler = told(|incoming| if text(incoming) == "bad" { Do::Hang } else { Do::Done });
        for (key, payload) in [("a", "1"), ("bad", "bad"), ("c", "2")] {
            stage.send("0", key, payload);
        }
        let crashes = crash_until_quiet(&stage, &handler, &config, calls).await;
        // The first delivery to an inside handler leaves no record of its start, because nothing is written before it.
        assert_eq!(crashes, if calls { 5 } else { 6 });
        let dead = stage.dead().await;
        assert_eq!((dead.len(), dead[0].class.as_str()), (1, "crash"));
        let mut ledger = stage.ledger();
        ledger.sort();
        assert_eq!(ledger, ["a:1", "c:2"]);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_was_begun_before_is_handled_while_nothing_else_runs() {
    let stage = Stage::new();
    let handler = told(|incoming| match text(incoming).as_str() {
        "bad" => Do::Hang,
        _ => Do::DoneAfter(Duration::from_millis(300)),
    });
    stage.send("0", "bad", "bad");
    let config = Config { deadline: Duration::from_mins(1), ..ordered() };
    // The second delivery is the first whose start is recorded. From the second recorded start on it must run alone.
    for delivery in 1..=3 {
        for number in 0..5 {
            stage.send("0", &format!("k{number}"), "x");
        }
        stage.wire.move_lane("0", delivery);
        let tried = handler.tried().len();
        let process = stage.start_with(stage.wire.hand(delivery), config.clone(), inside(&handler));
        until("it is begun", async || handler.tried()[tried..].contains(&"bad".to_owned())).await;
        let suspected = delivery == 3;
        let begun = handler.tried().len();
        stage.send("0", "k0", "x");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(handler.tried().len() == begun, suspected, "whether something began beside it");
        assert_eq!(process.stats.running(), 1);
        process.kill().await;
        stage.wire.redeliver();
        tokio::time::sleep(Duration::from_mins(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn redeliveries_that_end_without_a_crash_never_bury_a_message() {
    let stage = Stage::new();
    let handler = told(|_| Do::Away);
    stage.send("0", "k", "1");
    for round in 1..=10 {
        stage.wire.move_lane("0", round);
        let process = stage.start_with(stage.wire.hand(round), unordered(), inside(&handler));
        let tried = handler.tried().len();
        until("it is tried", async || handler.tried().len() > tried + 1).await;
        process.kill().await;
        stage.wire.redeliver();
    }
    assert_eq!(stage.dead().await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_of_the_retry_table_that_takes_the_process_down_is_buried_too() {
    let stage = Stage::new();
    let first = AtomicBool::new(true);
    let handler = told(move |_| if first.swap(false, Ordering::SeqCst) { Do::Fail } else { Do::Hang });
    stage.send("0", "k", "1");
    let mut config = Config { retries: Retries::default().durable_only(), ..ordered() };
    config.deadline = Duration::from_mins(10);
    let mut crashes = 0;
    while stage.dead().await.is_empty() {
        crashes += 1;
        stage.wire.move_lane("0", crashes);
        let tried = handler.tried().len();
        let process = stage.start_with(stage.wire.hand(crashes), config.clone(), inside(&handler));
        let last = if crashes == 1 { 2 } else { 1 };
        until("it is begun or buried", async || {
            handler.tried().len() >= tried + last || !stage.dead().await.is_empty()
        })
        .await;
        process.kill().await;
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert!(crashes < 20);
    }
    let dead = &stage.dead().await[0];
    assert_eq!((dead.class.as_str(), dead.attempts, crashes), ("crash", 1, 6));
}

/// An inbox message of key `k`.
fn arrival(raw: &Raw, place: u64) -> Arrival {
    Arrival {
        entry: Entry { id: raw.decode().expect("it is ours").message.id, replay: 0 },
        queue: "k".into(),
        raw: raw.clone(),
        address: "orders".into(),
        lane: Lane::new("0"),
        place: Some(place),
        correlation: None,
    }
}

/// Records one failed attempt; the message waits in the retry table.
async fn waits(inbox: &Inbox, arrival: &Arrival, after: Duration) {
    let setback = Setback {
        stop: Stop::Retry { after },
        attempts: 1,
        class: "transient",
        error: "not now".to_owned(),
        backtrace: None,
    };
    inbox.set_back(arrival, None, None, &setback).await.expect("the store answers");
}

#[tokio::test(start_paused = true)]
async fn a_suspect_that_finds_a_process_busy_is_left_to_another_one() {
    let stage = Stage::new();
    let inbox = stage.outbox.inbox(CONSUMER, Keeping::default());
    let suspect = stage.raw("OrderPlaced", "k", "suspect", Headers::new());
    waits(&inbox, &arrival(&suspect, 1), Duration::ZERO).await;
    // A process claimed it and crashed.
    inbox.due(1, 1, Duration::from_secs(30)).await.expect("the store answers");
    // One transaction of eight slow handlers outlasts the claim of a queue.
    let slow = told(|_| Do::DoneAfter(Duration::from_secs(50)));
    for number in 0..8 {
        stage.send("0", &format!("slow {number}"), "slow");
    }
    let config = Config { deadline: Duration::from_mins(1), batch_max: 8, ..ordered() };
    // It polls the retry table less often than the other process.
    let one = Config { order: Order::ByKey { concurrency: 1 }, due_every: Duration::from_secs(5), ..config.clone() };
    let busy = stage.start(one, inside(&slow));
    // The claim of the crashed process has expired, and the busy process has the queue.
    tokio::time::sleep(Duration::from_secs(40)).await;
    let began = Instant::now();
    let quick = told(|_| Do::Done);
    let idle = stage.start_with(stage.wire.hand(2), config, inside(&quick));
    until("the other process handled it", async || quick.tried() == ["suspect"]).await;
    // The claim would have lasted more than four minutes.
    assert!(began.elapsed() < Duration::from_secs(140), "{:?}", began.elapsed());
    assert_eq!((busy.stats.busy(), busy.stats.lost(), idle.stats.lost()), (1, 0, 0));
    assert!(!slow.tried().contains(&"suspect".to_owned()));
}

/// If other handlers always run beside it, it must not start again as if it had never crashed.
#[tokio::test(start_paused = true)]
async fn a_suspect_that_cannot_be_alone_before_its_call_stays_a_suspect() {
    let stage = Stage::new();
    let inbox = stage.outbox.inbox(CONSUMER, Keeping::default());
    let suspect = stage.raw("OrderPlaced", "k", "suspect", Headers::new());
    // A process claimed it and crashed.
    inbox.claim(&arrival(&suspect, 2), None, Duration::from_secs(1)).await.expect("the store answers");
    let (slow, quick) = (told(|_| Do::DoneAfter(Duration::from_mins(30))), told(|_| Do::Done));
    let within = |deadline| Options { deadline: Some(deadline), ..Options::default() };
    let handlers = Handlers::new().inside_with("Slow", within(Duration::from_hours(1)), slow.clone()).call_with(
        "OrderPlaced",
        within(Duration::from_secs(10)),
        quick.clone(),
    );
    stage.wire.put("0", stage.raw("Slow", "slow", "slow", Headers::new()));
    let process = stage.start(unordered(), handlers);
    until("the slow one runs", async || slow.tried().len() == 1).await;
    stage.wire.put("0", suspect);
    until("it waits in the retry table", async || stage.shown().await.consumer.waiting == 1).await;
    assert_eq!(quick.tried().len(), 0);
    process.kill().await;
    tokio::time::sleep(Duration::from_hours(6)).await;
    let due = inbox.due(1, 1, Duration::from_secs(1)).await.expect("the store answers");
    assert!(due[0].messages[0].started >= 2, "{due:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_is_given_up_does_not_pass_those_of_its_key_that_wait() {
    let stage = Stage::new();
    let inbox = stage.outbox.inbox(CONSUMER, Keeping::default());
    let [first, second] = ["1", "2"].map(|payload| stage.raw("OrderPlaced", "k", payload, Headers::new()));
    waits(&inbox, &arrival(&first, 1), Duration::from_mins(1)).await;
    for _ in 0..6 {
        inbox.start(&arrival(&second, 2)).await.expect("the store answers");
    }
    stage.wire.put("0", second);
    // Another process received it before.
    stage.wire.hand(1).receive(1).await.expect("the broker answers");
    stage.wire.redeliver();
    let _process = stage.start(ordered(), inside(&fails(0)));
    acknowledged(&stage, 1).await;
    assert_eq!((stage.dead().await.len(), stage.shown().await.consumer.waiting), (0, 2));
    until("both were handled", async || stage.ledger() == ["k:1", "k:2"]).await;
}
