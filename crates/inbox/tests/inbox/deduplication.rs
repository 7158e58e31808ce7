//! An effect happens once, whatever the broker delivers again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use relevo_core::inbox::InboxState;
use relevo_core::inbox::admin::ConsumerAdmin as _;
use relevo_core::message::Headers;
use relevo_core::wire;
use relevo_inbox::{ConsumerStatus, HandlerResult, Handlers, Incoming, Tx};
use relevo_store_memory::{Draft, Transaction};

use crate::harness::{
    Action, Env, RETENTION, call_handlers, ordered_config, payload_text, scripted, transaction_handlers,
    unordered_config, wait_for_acks, wait_until,
};

#[tokio::test(start_paused = true)]
async fn a_message_is_acknowledged_after_its_effect_is_committed() {
    let stage = Env::new();
    for config in [ordered_config(), unordered_config()] {
        let place = stage.send("0", "k", "1");
        let process = stage.start(config, transaction_handlers(&scripted(|_| Action::Done)));
        wait_until("it is acknowledged", async || stage.broker.acknowledged().contains(&place)).await;
        assert_eq!(process.status.done(), 1);
        // Killed, not stopped: a stop would close consumer 1, which the next process uses again.
        process.kill().await;
    }
    assert_eq!(stage.effects(), ["k:1", "k:1"], "two messages, each once");
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_is_acknowledged_counted_and_not_handled() {
    let stage = Env::new();
    let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
    for _ in 0..3 {
        stage.broker.publish("0", raw.clone());
    }
    let process = stage.start(ordered_config(), transaction_handlers(&scripted(|_| Action::Done)));
    wait_for_acks(&stage, 3).await;
    assert_eq!(
        (stage.effects(), process.status.duplicates(), process.status.sequence_repeats()),
        (vec!["k:1".to_owned()], 2, 2)
    );
}

/// Rule E5: the epoch of the relay's lease identifies the sender, not the message.
#[tokio::test(start_paused = true)]
async fn a_message_republished_under_another_lease_is_a_duplicate() {
    for handlers in [transaction_handlers, call_handlers] {
        let stage = Env::new();
        let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
        for epoch in ["1", "2", "41"] {
            let mut again = raw.clone();
            let header =
                again.headers.iter_mut().find(|(name, _)| name == wire::EPOCH).expect("a relay says its epoch");
            header.1 = epoch.into();
            stage.broker.publish("0", again);
        }
        let process = stage.start(ordered_config(), handlers(&scripted(|_| Action::Done)));
        wait_for_acks(&stage, 3).await;
        assert_eq!((stage.effects(), process.status.duplicates()), (vec!["k:1".to_owned()], 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_killed_between_commit_and_acknowledgement_repeats_no_effect() {
    for handlers in [transaction_handlers, call_handlers] {
        let stage = Env::new();
        let deaf = stage.broker.clone();
        let handler = scripted(move |_| {
            // From now on every call to the broker fails.
            deaf.fail(true);
            Action::Done
        });
        stage.send("0", "k", "1");
        let first = stage.start(unordered_config(), handlers(&handler));
        wait_until("it is handled and was not acknowledged", async || first.status.broker_outages() > 2).await;
        assert_eq!(stage.effects(), ["k:1"]);
        first.kill().await;
        stage.broker.fail(false);
        stage.broker.redeliver();
        let second = stage.start(unordered_config(), handlers(&handler));
        wait_for_acks(&stage, 1).await;
        assert_eq!((stage.effects().len(), handler.attempted().len(), second.status.duplicates()), (1, 1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn failed_acknowledgements_are_retried() {
    let stage = Env::new();
    let failing = stage.broker.clone();
    let handler = scripted(move |_| {
        failing.fail(true);
        Action::Done
    });
    stage.send("0", "k", "1");
    let process = stage.start(ordered_config(), transaction_handlers(&handler));
    wait_until("the outage of the broker is detected", async || process.status.broker_outages() > 3).await;
    assert_eq!(stage.broker.acknowledged(), [0; 0]);
    stage.broker.fail(false);
    wait_for_acks(&stage, 1).await;
    assert_eq!(handler.attempted(), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn a_commit_with_a_lost_reply_is_found_as_a_duplicate() {
    let stage = Env::new();
    stage.faults.loses_commit_reply.store(true, Ordering::Relaxed);
    stage.send("0", "k", "1");
    let process = stage.start(ordered_config(), transaction_handlers(&scripted(|_| Action::Done)));
    wait_for_acks(&stage, 1).await;
    assert_eq!((stage.effects(), process.status.duplicates()), (vec!["k:1".to_owned()], 1));
}

#[tokio::test(start_paused = true)]
async fn a_skipped_message_is_recorded_as_skipped() {
    let stage = Env::with_retention(RETENTION);
    stage.send("0", "k", "1");
    stage.broker.publish("0", stage.raw("Unknown", "k", "2", Headers::new()));
    let handlers = Handlers::new().handler("OrderPlaced", scripted(|_| Action::Skip));
    let process = stage.start(ordered_config(), handlers);
    wait_for_acks(&stage, 2).await;
    assert_eq!((process.status.skipped(), process.status.done()), (2, 0));
    for number in 1..=2 {
        let id = relevo_core::MessageId::v7(number, [7; 10]);
        let known = stage.outbox.operator().find_message(id).await.unwrap();
        assert_eq!(known.iter().map(|known| known.state).collect::<Vec<_>>(), [InboxState::Skipped]);
    }
}

#[tokio::test(start_paused = true)]
async fn out_of_order_and_repeated_sequences_are_counted() {
    let stage = Env::new();
    let raws: Vec<_> =
        (0..3).map(|number| stage.raw("OrderPlaced", "k", &number.to_string(), Headers::new())).collect();
    for index in [0, 2, 1, 2] {
        stage.broker.publish("0", raws[index].clone());
    }
    let process = stage.start(ordered_config(), transaction_handlers(&scripted(|_| Action::Done)));
    wait_for_acks(&stage, 4).await;
    assert_eq!((process.status.out_of_order(), process.status.sequence_repeats()), (1, 1));
    assert_eq!(stage.effects().len(), 3, "an inversion is counted, never dropped");
}

#[tokio::test(start_paused = true)]
async fn a_republished_message_is_a_repeat_and_not_out_of_order() {
    for (config, handlers) in [
        (ordered_config(), transaction_handlers as fn(&_) -> _),
        (ordered_config(), call_handlers),
        (unordered_config(), transaction_handlers),
    ] {
        let stage = Env::new();
        let raws: Vec<_> =
            (0..3).map(|number| stage.raw("OrderPlaced", "k", &number.to_string(), Headers::new())).collect();
        // A relay crashed before it could record that it published all three, so another relay publishes them again.
        for index in [0, 1, 2, 0, 1, 2] {
            stage.broker.publish("0", raws[index].clone());
        }
        let process = stage.start(config, handlers(&scripted(|_| Action::Done)));
        wait_for_acks(&stage, 6).await;
        assert_eq!(
            (process.status.out_of_order(), process.status.sequence_repeats(), process.status.duplicates()),
            (0, 3, 3)
        );
    }
}

/// Emits one message per received message, the first time in a transaction that fails.
async fn emit_bill(mut tx: Tx<Transaction>, incoming: Incoming) -> HandlerResult<()> {
    let bill = Draft::json("bills", "b", "BillMade", payload_text(&incoming));
    tx.emit(incoming.with_causation(bill))?;
    if incoming.attempt() == 1 { Err("later".into()) } else { Ok(()) }
}

#[tokio::test(start_paused = true)]
async fn an_emitted_message_is_in_the_transaction_and_keeps_the_correlation() {
    let stage = Env::new();
    let headers = Headers::from([(Incoming::CORRELATION.to_owned(), "c-7".to_owned())]);
    stage.broker.publish("0", stage.raw("OrderPlaced", "k", "1", headers));
    let _process = stage.start(ordered_config(), Handlers::new().on_raw("*", emit_bill));
    wait_for_acks(&stage, 1).await;
    let emitted = stage.outbox.committed();
    assert_eq!(emitted.len(), 1, "what was rolled back is not there");
    let headers = &emitted[0].message.headers;
    assert_eq!(headers[Incoming::CORRELATION], "c-7");
    assert_eq!(headers[Incoming::CAUSATION], relevo_core::MessageId::v7(1, [7; 10]).to_string());
}

#[tokio::test(start_paused = true)]
async fn a_message_at_two_members_at_once_waits_and_counts_no_attempt() {
    let stage = Env::new();
    let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
    stage.broker.publish("a", raw.clone());
    stage.broker.publish("b", raw);
    stage.broker.move_lane("b", 2);
    let slow = scripted(|_| Action::DoneAfter(Duration::from_secs(3)));
    let one = stage.start(unordered_config(), transaction_handlers(&slow));
    let other = stage.start_with(stage.broker.consumer(2), unordered_config(), transaction_handlers(&slow));
    wait_for_acks(&stage, 2).await;
    assert_eq!(stage.effects(), ["k:1"]);
    let sum = |count: fn(&ConsumerStatus) -> u64| count(&one.status) + count(&other.status);
    assert_eq!(
        (sum(ConsumerStatus::done), sum(ConsumerStatus::duplicates), sum(ConsumerStatus::handler_failures)),
        (1, 1, 0)
    );
    assert!(sum(ConsumerStatus::busy) > 0, "one of them had to wait");
}
