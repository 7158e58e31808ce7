//! A failed acknowledgement is retried with its own backoff and delays no other delivery.

use std::time::Duration;

use relevo_inbox::{Config, Durable};

use crate::stage::{Do, Stage, acknowledged, inside, ordered, text, told, unordered, until};

#[tokio::test(start_paused = true)]
async fn an_acknowledgement_that_always_fails_stops_no_other() {
    for order in [ordered(), unordered()] {
        // One call has room for only some of them, so failed ones must leave room for the others.
        let stage = Stage::new();
        let failing: Vec<u64> = (0..5).map(|number| stage.send("0", &format!("k-{number}"), "failing")).collect();
        for place in &failing {
            stage.wire.refuse(*place);
        }
        let config = Config { settle_max: 4, ..order };
        let process = stage.start(config, inside(&told(|_| Do::Done)));
        until("they failed", async || stage.wire.refusals() >= 5).await;
        for number in 0..50 {
            stage.send(["0", "1"][number % 2], &format!("k-{}", number % 7), &number.to_string());
        }
        acknowledged(&stage, 50).await;
        assert!(stage.began.elapsed() < Duration::from_secs(5), "{:?}", stage.began.elapsed());
        assert_eq!(stage.ledger().len(), 55);

        // The backoff grows: they are not retried with every call.
        let before = stage.wire.refusals();
        tokio::time::sleep(Duration::from_mins(5)).await;
        let repeats = stage.wire.refusals() - before;
        assert!((5..5 * 300).contains(&repeats), "{repeats} repeats in five minutes");
        for place in &failing {
            stage.wire.accept(*place);
        }
        acknowledged(&stage, 55).await;
        assert_eq!(process.stats.answers_lost(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_delayed_retry_that_always_fails_stops_neither_retries_nor_acknowledgements() {
    let stage = Stage::new();
    let failing = stage.send("0", "k", "fails");
    stage.wire.refuse(failing);
    let handler = told(|incoming| if text(incoming) == "done" { Do::Done } else { Do::Fail });
    let config = Config { durable: Durable::Broker, ..unordered() };
    let _process = stage.start(config, inside(&handler));
    until("it failed", async || stage.wire.refusals() >= 1).await;
    let retried = stage.send("0", "k", "fails too");
    let done = stage.send("0", "k", "done");
    until("the others are settled", async || {
        let settled = stage.wire.settled();
        settled.contains(&(done, None)) && settled.iter().any(|(place, delay)| *place == retried && delay.is_some())
    })
    .await;
    assert!(stage.wire.settled().iter().all(|(place, _)| *place != failing));
}
