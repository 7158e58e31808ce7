//! An effect happens once, whatever the broker delivers again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::inbox::State;
use relevo_core::inbox::operate::Operate as _;
use relevo_core::message::Headers;
use relevo_core::wire;
use relevo_inbox::{Config, Handled, Handlers, Incoming, Inside, Stats, Verdict};
use relevo_store_memory::{Draft, Transaction};

use crate::stage::{Do, KEEPING, Stage, acknowledged, call, inside, ordered, text, told, unordered, until};

#[tokio::test(start_paused = true)]
async fn an_effect_is_committed_and_then_the_message_acknowledged() {
    let stage = Stage::new();
    for config in [ordered(), unordered()] {
        let place = stage.send("0", "k", "1");
        let process = stage.start(config, inside(&told(|_| Do::Done)));
        until("it is acknowledged", async || stage.wire.acknowledged().contains(&place)).await;
        assert_eq!(process.stats.done(), 1);
        // Killed, not stopped: a stop would close consumer 1, which the next process uses again.
        process.kill().await;
    }
    assert_eq!(stage.ledger(), ["k:1", "k:1"], "two messages, each once");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_comes_again_is_acknowledged_counted_and_not_handled() {
    let stage = Stage::new();
    let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
    for _ in 0..3 {
        stage.wire.put("0", raw.clone());
    }
    let process = stage.start(ordered(), inside(&told(|_| Do::Done)));
    acknowledged(&stage, 3).await;
    assert_eq!((stage.ledger(), process.stats.duplicates(), process.stats.repeats()), (vec!["k:1".to_owned()], 2, 2));
}

/// Rule E5: the epoch of the relay's lease identifies the sender, not the message.
#[tokio::test(start_paused = true)]
async fn a_message_that_a_relay_sends_again_under_another_lease_is_a_repeat() {
    for handlers in [inside, call] {
        let stage = Stage::new();
        let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
        for epoch in ["1", "2", "41"] {
            let mut again = raw.clone();
            let header =
                again.headers.iter_mut().find(|(name, _)| name == wire::EPOCH).expect("a relay says its epoch");
            header.1 = epoch.into();
            stage.wire.put("0", again);
        }
        let process = stage.start(ordered(), handlers(&told(|_| Do::Done)));
        acknowledged(&stage, 3).await;
        assert_eq!((stage.ledger(), process.stats.duplicates()), (vec!["k:1".to_owned()], 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_killed_between_commit_and_acknowledgement_repeats_nothing() {
    for handlers in [inside, call] {
        let stage = Stage::new();
        let deaf = stage.wire.clone();
        let handler = told(move |_| {
            // From now on every call to the broker fails.
            deaf.fail(true);
            Do::Done
        });
        stage.send("0", "k", "1");
        let first = stage.start(unordered(), handlers(&handler));
        until("it is handled and was not acknowledged", async || first.stats.broker_away() > 2).await;
        assert_eq!(stage.ledger(), ["k:1"]);
        first.kill().await;
        stage.wire.fail(false);
        stage.wire.redeliver();
        let second = stage.start(unordered(), handlers(&handler));
        acknowledged(&stage, 1).await;
        assert_eq!((stage.ledger().len(), handler.tried().len(), second.stats.duplicates()), (1, 1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_the_broker_did_not_take_are_given_again() {
    let stage = Stage::new();
    let failing = stage.wire.clone();
    let handler = told(move |_| {
        failing.fail(true);
        Do::Done
    });
    stage.send("0", "k", "1");
    let process = stage.start(ordered(), inside(&handler));
    until("the broker is found away", async || process.stats.broker_away() > 3).await;
    assert_eq!(stage.wire.acknowledged(), [0; 0]);
    stage.wire.fail(false);
    acknowledged(&stage, 1).await;
    assert_eq!(handler.tried(), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_answer_was_lost_is_found_to_have_happened() {
    let stage = Stage::new();
    stage.line.deaf.store(true, Ordering::Relaxed);
    stage.send("0", "k", "1");
    let process = stage.start(ordered(), inside(&told(|_| Do::Done)));
    acknowledged(&stage, 1).await;
    assert_eq!((stage.ledger(), process.stats.duplicates()), (vec!["k:1".to_owned()], 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_skipped_is_recorded_as_skipped() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    stage.wire.put("0", stage.raw("Unknown", "k", "2", Headers::new()));
    let handlers = Handlers::new().inside("OrderPlaced", told(|_| Do::Skip));
    let process = stage.start(Config { keeping: KEEPING, ..ordered() }, handlers);
    acknowledged(&stage, 2).await;
    assert_eq!((process.stats.skipped(), process.stats.done()), (2, 0));
    for number in 1..=2 {
        let id = relevo_core::MessageId::v7(number, [7; 10]);
        let trace = stage.outbox.operator().trace(id).await.unwrap();
        assert_eq!(trace.iter().map(|trace| trace.state).collect::<Vec<_>>(), [State::Skipped]);
    }
}

#[tokio::test(start_paused = true)]
async fn messages_out_of_order_and_repeats_are_counted_by_their_sequence() {
    let stage = Stage::new();
    let raws: Vec<_> =
        (0..3).map(|number| stage.raw("OrderPlaced", "k", &number.to_string(), Headers::new())).collect();
    for index in [0, 2, 1, 2] {
        stage.wire.put("0", raws[index].clone());
    }
    let process = stage.start(ordered(), inside(&told(|_| Do::Done)));
    acknowledged(&stage, 4).await;
    assert_eq!((process.stats.inversions(), process.stats.repeats()), (1, 1));
    assert_eq!(stage.ledger().len(), 3, "an inversion is counted, never dropped");
}

#[tokio::test(start_paused = true)]
async fn what_a_relay_sends_again_is_a_repeat_and_no_inversion() {
    for (config, handlers) in [(ordered(), inside as fn(&_) -> _), (ordered(), call), (unordered(), inside)] {
        let stage = Stage::new();
        let raws: Vec<_> =
            (0..3).map(|number| stage.raw("OrderPlaced", "k", &number.to_string(), Headers::new())).collect();
        // A relay crashed before it could record that it published all three, so another relay publishes them again.
        for index in [0, 1, 2, 0, 1, 2] {
            stage.wire.put("0", raws[index].clone());
        }
        let process = stage.start(config, handlers(&told(|_| Do::Done)));
        acknowledged(&stage, 6).await;
        assert_eq!((process.stats.inversions(), process.stats.repeats(), process.stats.duplicates()), (0, 3, 3));
    }
}

/// Emits one message per received message, the first time in a transaction that fails.
struct Emits;

#[async_trait]
impl Inside<Transaction> for Emits {
    async fn handle(&self, transaction: &mut Transaction, incoming: &Incoming) -> Handled {
        let caused = incoming.caused(relevo_core::Draft::json("bills", "b", "BillMade", "{}"));
        transaction.emit(Draft { headers: caused.headers, ..Draft::new("bills", "b", "BillMade", text(incoming)) })?;
        if incoming.attempt() == 1 { Err(relevo_inbox::Trouble::retry("later")) } else { Ok(Verdict::Done) }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_emits_is_in_its_transaction_and_carries_on_what_joins_messages() {
    let stage = Stage::new();
    let headers = Headers::from([(Incoming::CORRELATION.to_owned(), "c-7".to_owned())]);
    stage.wire.put("0", stage.raw("OrderPlaced", "k", "1", headers));
    let _process = stage.start(ordered(), Handlers::new().inside("*", Emits));
    acknowledged(&stage, 1).await;
    let emitted = stage.outbox.committed();
    assert_eq!(emitted.len(), 1, "what was rolled back is not there");
    let headers = &emitted[0].message.headers;
    assert_eq!(headers[Incoming::CORRELATION], "c-7");
    assert_eq!(headers[Incoming::CAUSATION], relevo_core::MessageId::v7(1, [7; 10]).to_string());
}

#[tokio::test(start_paused = true)]
async fn the_same_message_at_two_processes_at_once_waits_and_costs_no_attempt() {
    let stage = Stage::new();
    let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
    stage.wire.put("a", raw.clone());
    stage.wire.put("b", raw);
    stage.wire.move_lane("b", 2);
    let slow = told(|_| Do::DoneAfter(Duration::from_secs(3)));
    let one = stage.start(unordered(), inside(&slow));
    let other = stage.start_with(stage.wire.hand(2), unordered(), inside(&slow));
    acknowledged(&stage, 2).await;
    assert_eq!(stage.ledger(), ["k:1"]);
    let sum = |count: fn(&Stats) -> u64| count(&one.stats) + count(&other.stats);
    assert_eq!((sum(Stats::done), sum(Stats::duplicates), sum(Stats::failed)), (1, 1, 0));
    assert!(sum(Stats::busy) > 0, "one of them had to wait");
}
