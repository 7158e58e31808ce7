//! A failed acknowledgement is retried with its own backoff and delays no other delivery.

use std::time::Duration;

use relevo_inbox::{Config, RetryStorage};

use crate::harness::{
    Action, Env, ordered_config, payload_text, scripted, transaction_handlers, unordered_config, wait_for_acks,
    wait_until,
};

#[tokio::test(start_paused = true)]
async fn an_acknowledgement_that_always_fails_stops_no_other() {
    for order in [ordered_config(), unordered_config()] {
        // One call has room for only some of them, so failed ones must leave room for the others.
        let stage = Env::new();
        let failing: Vec<u64> = (0..5).map(|number| stage.send("0", &format!("k-{number}"), "failing")).collect();
        for place in &failing {
            stage.broker.refuse(*place);
        }
        let config = Config { ack_batch_max: 4, ..order };
        let process = stage.start(config, transaction_handlers(&scripted(|_| Action::Done)));
        wait_until("they failed", async || stage.broker.refusals() >= 5).await;
        for number in 0..50 {
            stage.send(["0", "1"][number % 2], &format!("k-{}", number % 7), &number.to_string());
        }
        wait_for_acks(&stage, 50).await;
        assert!(stage.started_at.elapsed() < Duration::from_secs(5), "{:?}", stage.started_at.elapsed());
        assert_eq!(stage.effects().len(), 55);

        // The backoff grows: they are not retried with every call.
        let before = stage.broker.refusals();
        tokio::time::sleep(Duration::from_mins(5)).await;
        let repeats = stage.broker.refusals() - before;
        assert!((5..5 * 300).contains(&repeats), "{repeats} repeats in five minutes");
        for place in &failing {
            stage.broker.accept(*place);
        }
        wait_for_acks(&stage, 55).await;
        assert_eq!(process.status.stale_acks(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_delayed_retry_that_always_fails_stops_neither_retries_nor_acknowledgements() {
    let stage = Env::new();
    let failing = stage.send("0", "k", "fails");
    stage.broker.refuse(failing);
    let handler = scripted(|incoming| if payload_text(incoming) == "done" { Action::Done } else { Action::Fail });
    let config = Config { retry_storage: RetryStorage::Broker, ..unordered_config() };
    let _process = stage.start(config, transaction_handlers(&handler));
    wait_until("it failed", async || stage.broker.refusals() >= 1).await;
    let retried = stage.send("0", "k", "fails too");
    let done = stage.send("0", "k", "done");
    wait_until("the others are settled", async || {
        let settled = stage.broker.settled();
        settled.contains(&(done, None)) && settled.iter().any(|(place, delay)| *place == retried && delay.is_some())
    })
    .await;
    assert!(stage.broker.settled().iter().all(|(place, _)| *place != failing));
}
