//! Messages that crash the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relevo_core::inbox::attempts::InboxAttempts as _;
use relevo_core::inbox::retries::InboxRetries as _;
use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction};
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_core::inbox::{DedupId, Fence, InboxMessage, InboxRetention};
use relevo_core::message::Headers;
use relevo_core::{BrokerConsumer as _, Lane, RawMessage};
use relevo_inbox::{Config, HandlerOptions, Handlers, MessageOrder};
use relevo_store_memory::Inbox;
use tokio::time::Instant;

use crate::harness::{
    Action, CONSUMER, Env, ScriptedHandler, call_handlers, failing, ordered_config, payload_text, scripted,
    transaction_handlers, unordered_config, wait_for_acks, wait_until,
};

/// Kills the process each time it handles `bad`, until `bad` is dead-lettered.
async fn crash_until_dead_lettered(stage: &Env, handler: &ScriptedHandler, config: &Config, calls: bool) -> u64 {
    for crashes in 0..20 {
        let handlers = if calls { call_handlers(handler) } else { transaction_handlers(handler) };
        let hand = stage.broker.consumer(crashes + 1);
        stage.broker.move_lane("0", crashes + 1);
        let tried = handler.attempted().len();
        let process = stage.start_with(hand, config.clone(), handlers);
        wait_until("it handles the bad one, or has dead-lettered it", async || {
            handler.attempted()[tried..].contains(&"bad".to_owned()) || !stage.dead_letters().await.is_empty()
        })
        .await;
        if !stage.dead_letters().await.is_empty() {
            wait_for_acks(stage, 3).await;
            return crashes;
        }
        process.kill().await;
        stage.broker.redeliver();
        // After this time its heartbeat and the claim of its call have expired.
        tokio::time::sleep(Duration::from_mins(3)).await;
    }
    panic!("it was never dead-lettered");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_crashes_its_process_is_dead_lettered_after_the_maximum_of_starts() {
    for (config, calls) in [(ordered_config(), false), (unordered_config(), false), (ordered_config(), true)] {
        let stage = Env::new();
        let handler = scripted(|incoming| if payload_text(incoming) == "bad" { Action::Hang } else { Action::Done });
        for (key, payload) in [("a", "1"), ("bad", "bad"), ("c", "2")] {
            stage.send("0", key, payload);
        }
        let crashes = crash_until_dead_lettered(&stage, &handler, &config, calls).await;
        // The first delivery to an inside handler leaves no record of its start, because nothing is written before it.
        assert_eq!(crashes, if calls { 5 } else { 6 });
        let dead = stage.dead_letters().await;
        assert_eq!((dead.len(), dead[0].class.as_str()), (1, "crash"));
        let mut ledger = stage.effects();
        ledger.sort();
        assert_eq!(ledger, ["a:1", "c:2"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_with_an_unfinished_start_is_handled_exclusively() {
    let stage = Env::new();
    let handler = scripted(|incoming| match payload_text(incoming).as_str() {
        "bad" => Action::Hang,
        _ => Action::DoneAfter(Duration::from_millis(300)),
    });
    stage.send("0", "bad", "bad");
    let config = Config { handler_timeout: Duration::from_mins(1), ..ordered_config() };
    // The second delivery is the first whose start is recorded. From the second recorded start on it must run alone.
    for delivery in 1..=3 {
        for number in 0..5 {
            stage.send("0", &format!("k{number}"), "x");
        }
        stage.broker.move_lane("0", delivery);
        let tried = handler.attempted().len();
        let process = stage.start_with(stage.broker.consumer(delivery), config.clone(), transaction_handlers(&handler));
        wait_until("it is begun", async || handler.attempted()[tried..].contains(&"bad".to_owned())).await;
        let suspected = delivery == 3;
        let begun = handler.attempted().len();
        stage.send("0", "k0", "x");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(handler.attempted().len() == begun, suspected, "whether something began beside it");
        assert_eq!(process.status.handlers_running(), 1);
        process.kill().await;
        stage.broker.redeliver();
        tokio::time::sleep(Duration::from_mins(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn redeliveries_without_a_crash_never_dead_letter_a_message() {
    let stage = Env::new();
    let handler = scripted(|_| Action::Unavailable);
    stage.send("0", "k", "1");
    for round in 1..=10 {
        stage.broker.move_lane("0", round);
        let process =
            stage.start_with(stage.broker.consumer(round), unordered_config(), transaction_handlers(&handler));
        let tried = handler.attempted().len();
        wait_until("it is tried", async || handler.attempted().len() > tried + 1).await;
        process.kill().await;
        stage.broker.redeliver();
    }
    assert_eq!(stage.dead_letters().await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_queued_message_that_crashes_its_process_is_dead_lettered() {
    let stage = Env::new();
    let first = AtomicBool::new(true);
    let handler = scripted(move |_| if first.swap(false, Ordering::SeqCst) { Action::Fail } else { Action::Hang });
    stage.send("0", "k", "1");
    let mut config = Config { retry: HandlerRetryPolicy::default().without_in_memory(), ..ordered_config() };
    config.handler_timeout = Duration::from_mins(10);
    let mut crashes = 0;
    while stage.dead_letters().await.is_empty() {
        crashes += 1;
        stage.broker.move_lane("0", crashes);
        let tried = handler.attempted().len();
        let process = stage.start_with(stage.broker.consumer(crashes), config.clone(), transaction_handlers(&handler));
        let last = if crashes == 1 { 2 } else { 1 };
        wait_until("it is started or dead-lettered", async || {
            handler.attempted().len() >= tried + last || !stage.dead_letters().await.is_empty()
        })
        .await;
        process.kill().await;
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert!(crashes < 20);
    }
    let dead = &stage.dead_letters().await[0];
    assert_eq!((dead.class.as_str(), dead.attempts, crashes), ("crash", 1, 6));
}

/// An inbox message of key `k`.
fn inbox_message(raw: &RawMessage, place: u64) -> InboxMessage {
    InboxMessage {
        dedup_id: DedupId { id: raw.decode().expect("it is ours").message.id, replay: 0 },
        queue: "k".into(),
        raw: raw.clone(),
        address: "orders".into(),
        lane: Lane::new("0"),
        offset: Some(place),
        attempts: 0,
    }
}

/// Records one failed attempt; the message waits in the retry table.
async fn put_in_retry_queue(inbox: &Inbox, arrival: &InboxMessage, after: Duration) {
    let setback = InboxFailure {
        action: InboxFailureAction::Retry { after },
        attempts: 1,
        class: "transient",
        error: "not now".to_owned(),
        backtrace: None,
    };
    inbox.record_failure(arrival, Fence::Live { lane: None }, &setback).await.expect("the store answers");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_run_exclusively_is_left_to_another_member() {
    let stage = Env::new();
    let inbox = stage.outbox.inbox(CONSUMER, InboxRetention::default());
    let suspect = stage.raw("OrderPlaced", "k", "suspect", Headers::new());
    put_in_retry_queue(&inbox, &inbox_message(&suspect, 1), Duration::ZERO).await;
    // A process claimed it and crashed.
    inbox.claim_due(1, 1, Duration::from_secs(30)).await.expect("the store answers");
    // One transaction of eight slow handlers outlasts the claim of a queue.
    let slow = scripted(|_| Action::DoneAfter(Duration::from_secs(50)));
    for number in 0..8 {
        stage.send("0", &format!("slow {number}"), "slow");
    }
    let config = Config { handler_timeout: Duration::from_mins(1), batch_max: 8, ..ordered_config() };
    // It polls the retry table less often than the other process.
    let one = Config {
        order: MessageOrder::ByKey { concurrency: 1 },
        retry_poll_interval: Duration::from_secs(5),
        ..config.clone()
    };
    let busy = stage.start(one, transaction_handlers(&slow));
    // The claim of the crashed process has expired, and the busy process has the queue.
    tokio::time::sleep(Duration::from_secs(40)).await;
    let began = Instant::now();
    let quick = scripted(|_| Action::Done);
    let idle = stage.start_with(stage.broker.consumer(2), config, transaction_handlers(&quick));
    wait_until("the other process handled it", async || quick.attempted() == ["suspect"]).await;
    // The claim would have lasted more than four minutes.
    assert!(began.elapsed() < Duration::from_secs(140), "{:?}", began.elapsed());
    assert_eq!((busy.status.busy(), busy.status.fenced(), idle.status.fenced()), (1, 0, 0));
    assert!(!slow.attempted().contains(&"suspect".to_owned()));
}

/// If other handlers always run beside it, it must not start again as if it had never crashed.
#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_run_exclusively_keeps_its_unfinished_starts() {
    let stage = Env::new();
    let inbox = stage.outbox.inbox(CONSUMER, InboxRetention::default());
    let suspect = stage.raw("OrderPlaced", "k", "suspect", Headers::new());
    // A process claimed it and crashed.
    inbox.claim_call(&inbox_message(&suspect, 2), None, Duration::from_secs(1)).await.expect("the store answers");
    let (slow, quick) = (scripted(|_| Action::DoneAfter(Duration::from_mins(30))), scripted(|_| Action::Done));
    let within = |deadline| HandlerOptions { timeout: Some(deadline), ..HandlerOptions::default() };
    let handlers = Handlers::new()
        .handler_with("Slow", within(Duration::from_hours(1)), slow.clone())
        .call_handler_with("OrderPlaced", within(Duration::from_secs(10)), quick.clone());
    stage.broker.publish("0", stage.raw("Slow", "slow", "slow", Headers::new()));
    let process = stage.start(unordered_config(), handlers);
    wait_until("the slow one runs", async || slow.attempted().len() == 1).await;
    stage.broker.publish("0", suspect);
    wait_until("it waits in the retry table", async || stage.consumer().await.summary.waiting == 1).await;
    assert_eq!(quick.attempted().len(), 0);
    process.kill().await;
    tokio::time::sleep(Duration::from_hours(6)).await;
    let due = inbox.claim_due(1, 1, Duration::from_secs(1)).await.expect("the store answers");
    assert!(due[0].messages[0].unfinished_starts >= 2, "{due:?}");
}

#[tokio::test(start_paused = true)]
async fn a_crashing_message_does_not_overtake_its_retry_queue() {
    let stage = Env::new();
    let inbox = stage.outbox.inbox(CONSUMER, InboxRetention::default());
    let [first, second] = ["1", "2"].map(|payload| stage.raw("OrderPlaced", "k", payload, Headers::new()));
    put_in_retry_queue(&inbox, &inbox_message(&first, 1), Duration::from_mins(1)).await;
    for _ in 0..6 {
        inbox.record_start(&inbox_message(&second, 2)).await.expect("the store answers");
    }
    stage.broker.publish("0", second);
    // Another process received it before.
    stage.broker.consumer(1).receive(1).await.expect("the broker answers");
    stage.broker.redeliver();
    let _process = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 1).await;
    assert_eq!((stage.dead_letters().await.len(), stage.consumer().await.summary.waiting), (0, 2));
    wait_until("both were handled", async || stage.effects() == ["k:1", "k:2"]).await;
}
