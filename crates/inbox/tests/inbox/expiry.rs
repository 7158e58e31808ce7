//! Messages older than the inbox retention.

use std::time::Duration;

use relevo_core::message::Headers;
use relevo_inbox::{Clock, Config};

use crate::harness::{
    Action, Env, STARTED_AT, call_handlers, failing, ordered_config, scripted, transaction_handlers, wait_for_acks,
    wait_until,
};

const DAY: Duration = Duration::from_hours(24);

fn config_at_age(age: Duration) -> Config {
    Config { clock: Clock::new(move || STARTED_AT + age), ..ordered_config() }
}

#[tokio::test(start_paused = true)]
async fn a_message_older_than_the_retention_is_dead_lettered_unless_it_is_redriven() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    let process = stage.start(Config { batch_max: 10, ..config_at_age(31 * DAY) }, transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 1).await;
    let dead = stage.dead_letters().await;
    assert_eq!((dead[0].class.as_str(), dead[0].attempts, process.status.expired()), ("expired", 0, 1));
    assert_eq!(stage.effects().len(), 0);
    assert_eq!(stage.redrive_all().await, 1);
    wait_until("it is handled", async || stage.effects() == ["k:1"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_within_the_retention_is_handled() {
    let stage = Env::new();
    stage.send("0", "k", "1");
    let _process = stage.start(config_at_age(29 * DAY), transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 1).await;
    assert_eq!(stage.effects(), ["k:1"]);
}

#[tokio::test(start_paused = true)]
async fn an_expired_message_with_an_inbox_row_is_a_duplicate() {
    let stage = Env::new();
    let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
    stage.broker.publish("0", raw.clone());
    let first = stage.start(config_at_age(DAY), transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 1).await;
    first.kill().await;
    stage.broker.publish("0", raw);
    let second = stage.start_with(stage.broker.consumer(1), config_at_age(31 * DAY), transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 2).await;
    assert_eq!((second.status.duplicates(), stage.dead_letters().await.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_expired_message_of_an_interrupted_call_is_dead_lettered() {
    let stage = Env::new();
    let (hangs, quick) = (scripted(|_| Action::Hang), scripted(|_| Action::Done));
    stage.send("0", "k", "1");
    let first = stage.start(config_at_age(DAY), call_handlers(&hangs));
    wait_until("it is called for", async || !hangs.attempted().is_empty()).await;
    first.kill().await;
    stage.broker.redeliver();
    let second = stage.start_with(stage.broker.consumer(1), config_at_age(31 * DAY), call_handlers(&quick));
    wait_for_acks(&stage, 1).await;
    assert_eq!((stage.dead_letters().await[0].class.as_str(), second.status.expired()), ("expired", 1));
    assert_eq!(quick.attempted().len(), 0);
}
