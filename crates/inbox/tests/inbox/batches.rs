//! Several first deliveries in one transaction.

use std::sync::atomic::{AtomicBool, Ordering};

use relevo_core::message::Headers;
use relevo_inbox::{Config, Order};

use crate::stage::{Do, Stage, acknowledged, inside, ordered, text, told, unordered};

#[tokio::test(start_paused = true)]
async fn first_deliveries_share_transactions_and_keep_their_order() {
    for config in [ordered(), unordered()] {
        let stage = Stage::new();
        for number in 0..100 {
            stage.send("0", &format!("k{}", number % 10), &format!("{number:03}"));
        }
        let by_key = matches!(config.order, Order::ByKey { .. });
        let process = stage.start(Config { batch_max: 50, ..config }, inside(&told(|_| Do::Done)));
        acknowledged(&stage, 100).await;
        let begun = stage.line.begun.load(Ordering::Relaxed);
        assert!(begun < 20 && process.stats.batches() == begun, "{begun} transactions");
        let mut ledger = stage.ledger();
        if by_key {
            for key in 0..10 {
                let of: Vec<_> = ledger.iter().filter(|line| line.starts_with(&format!("k{key}:"))).collect();
                assert!(of.is_sorted(), "{of:?}");
            }
        }
        ledger.sort();
        ledger.dedup();
        assert_eq!((ledger.len(), process.stats.done()), (100, 100));
    }
}

#[tokio::test(start_paused = true)]
async fn poison_in_the_middle_undoes_the_batch_and_only_it_is_given_up() {
    for bad in [Do::Poison, Do::Panic] {
        let stage = Stage::new();
        for number in 0..20 {
            stage.send("0", &format!("k{number}"), &number.to_string());
        }
        let handler = told(move |incoming| if text(incoming) == "10" { bad } else { Do::Done });
        let mut config = Config { batch_max: 20, ..ordered() };
        config.retries.memory.clear();
        config.retries.durable.attempts_max = 1;
        let process = stage.start(config, inside(&handler));
        acknowledged(&stage, 20).await;
        let mut ledger = stage.ledger();
        ledger.sort();
        ledger.dedup();
        assert_eq!((ledger.len(), stage.ledger().len()), (19, 19), "each other one once");
        assert_eq!((stage.dead().await.len(), process.stats.batches_undone()), (1, 1));
        assert_eq!(process.stats.failed(), 1, "the batch cost no attempt");
    }
}

#[tokio::test(start_paused = true)]
async fn repeats_and_skipped_ones_in_a_batch_are_told_apart() {
    let stage = Stage::new();
    let raw = stage.raw("OrderPlaced", "k", "twice", Headers::new());
    stage.wire.put("0", raw.clone());
    stage.wire.put("0", raw);
    stage.send("0", "k", "skipped");
    stage.wire.put("0", stage.raw("Unknown", "k", "3", Headers::new()));
    let handler = told(|incoming| if text(incoming) == "skipped" { Do::Skip } else { Do::Done });
    let handlers = relevo_inbox::Handlers::new().inside("OrderPlaced", handler);
    let process = stage.start(Config { batch_max: 10, ..ordered() }, handlers);
    acknowledged(&stage, 4).await;
    let stats = &process.stats;
    assert_eq!((stats.done(), stats.duplicates(), stats.skipped(), stats.batches()), (1, 1, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_undone_keeps_the_order_of_its_keys() {
    let stage = Stage::new();
    for number in 0..12 {
        stage.send("0", ["a", "b"][number % 2], &format!("{number:02}"));
    }
    let first = AtomicBool::new(true);
    let handler = told(
        move |incoming| {
            if text(incoming) == "06" && first.swap(false, Ordering::SeqCst) { Do::Fail } else { Do::Done }
        },
    );
    let process = stage.start(Config { batch_max: 20, ..ordered() }, inside(&handler));
    acknowledged(&stage, 12).await;
    assert_eq!((process.stats.batches_undone(), stage.ledger().len()), (1, 12));
    for key in ["a", "b"] {
        let ledger = stage.ledger();
        let of: Vec<_> = ledger.iter().filter(|line| line.starts_with(key)).collect();
        assert!(of.is_sorted(), "{of:?}");
    }
}
