//! Several first deliveries in one transaction.

use std::sync::atomic::{AtomicBool, Ordering};

use relevo_core::message::Headers;
use relevo_inbox::{Config, MessageOrder};

use crate::harness::{
    Action, Env, ordered_config, payload_text, scripted, transaction_handlers, unordered_config, wait_for_acks,
};

#[tokio::test(start_paused = true)]
async fn first_deliveries_share_a_transaction_and_keep_their_order() {
    for config in [ordered_config(), unordered_config()] {
        let stage = Env::new();
        for number in 0..100 {
            stage.send("0", &format!("k{}", number % 10), &format!("{number:03}"));
        }
        let by_key = matches!(config.order, MessageOrder::ByKey { .. });
        let process =
            stage.start(Config { batch_max: 50, ..config }, transaction_handlers(&scripted(|_| Action::Done)));
        wait_for_acks(&stage, 100).await;
        let begun = stage.faults.begin_calls.load(Ordering::Relaxed);
        assert!(begun < 20 && process.status.batches() == begun, "{begun} transactions");
        let mut ledger = stage.effects();
        if by_key {
            for key in 0..10 {
                let of: Vec<_> = ledger.iter().filter(|line| line.starts_with(&format!("k{key}:"))).collect();
                assert!(of.is_sorted(), "{of:?}");
            }
        }
        ledger.sort();
        ledger.dedup();
        assert_eq!((ledger.len(), process.status.done()), (100, 100));
    }
}

#[tokio::test(start_paused = true)]
async fn a_poison_message_rolls_back_its_batch_and_is_dead_lettered_alone() {
    for bad in [Action::Poison, Action::Panic] {
        let stage = Env::new();
        for number in 0..20 {
            stage.send("0", &format!("k{number}"), &number.to_string());
        }
        let handler = scripted(move |incoming| if payload_text(incoming) == "10" { bad } else { Action::Done });
        let mut config = Config { batch_max: 20, ..ordered_config() };
        config.retry.in_memory.clear();
        config.retry.durable.attempts_max = 1;
        let process = stage.start(config, transaction_handlers(&handler));
        wait_for_acks(&stage, 20).await;
        let mut ledger = stage.effects();
        ledger.sort();
        ledger.dedup();
        assert_eq!((ledger.len(), stage.effects().len()), (19, 19), "each other one once");
        assert_eq!((stage.dead_letters().await.len(), process.status.batches_rolled_back()), (1, 1));
        assert_eq!(process.status.handler_failures(), 1, "the batch cost no attempt");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_distinguishes_duplicates_and_skipped_messages() {
    let stage = Env::new();
    let raw = stage.raw("OrderPlaced", "k", "twice", Headers::new());
    stage.broker.publish("0", raw.clone());
    stage.broker.publish("0", raw);
    stage.send("0", "k", "skipped");
    stage.broker.publish("0", stage.raw("Unknown", "k", "3", Headers::new()));
    let handler = scripted(|incoming| if payload_text(incoming) == "skipped" { Action::Skip } else { Action::Done });
    let handlers = relevo_inbox::Handlers::new().handler("OrderPlaced", handler);
    let process = stage.start(Config { batch_max: 10, ..ordered_config() }, handlers);
    wait_for_acks(&stage, 4).await;
    let stats = &process.status;
    assert_eq!((stats.done(), stats.duplicates(), stats.skipped(), stats.batches()), (1, 1, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_rolled_back_batch_keeps_key_order() {
    let stage = Env::new();
    for number in 0..12 {
        stage.send("0", ["a", "b"][number % 2], &format!("{number:02}"));
    }
    let first = AtomicBool::new(true);
    let handler = scripted(move |incoming| {
        if payload_text(incoming) == "06" && first.swap(false, Ordering::SeqCst) { Action::Fail } else { Action::Done }
    });
    let process = stage.start(Config { batch_max: 20, ..ordered_config() }, transaction_handlers(&handler));
    wait_for_acks(&stage, 12).await;
    assert_eq!((process.status.batches_rolled_back(), stage.effects().len()), (1, 12));
    for key in ["a", "b"] {
        let ledger = stage.effects();
        let of: Vec<_> = ledger.iter().filter(|line| line.starts_with(key)).collect();
        assert!(of.is_sorted(), "{of:?}");
    }
}
