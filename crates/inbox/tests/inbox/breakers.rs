//! Outages that handlers report: the lane pauses, no attempt is counted, one message probes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relevo_core::RetryPolicy;
use relevo_core::inbox::admin::ConsumerControl;
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_inbox::Config;

use crate::harness::{
    Action, Env, ScriptedHandler, call_handlers, ordered_config, payload_text, scripted, transaction_handlers,
    unordered_config, wait_for_acks, wait_until,
};

fn config(order: Config) -> Config {
    Config { breaker: RetryPolicy { jitter_percent: 0, ..order.breaker.clone() }, ..order }
}

/// Messages of keys that begin with `mail` need a service that is down while this flag is set.
fn unavailable_while(down: &Arc<AtomicBool>) -> ScriptedHandler {
    let down = Arc::clone(down);
    scripted(move |incoming| {
        if incoming.key().starts_with("mail") && down.load(Ordering::SeqCst) {
            Action::Unavailable
        } else {
            Action::Done
        }
    })
}

#[tokio::test(start_paused = true)]
async fn an_outage_pauses_only_its_lane_and_counts_no_attempt() {
    for (handlers, order) in [
        (transaction_handlers as fn(&ScriptedHandler) -> _, ordered_config()),
        (call_handlers, ordered_config()),
        (transaction_handlers, unordered_config()),
    ] {
        let stage = Env::new();
        let down = Arc::new(AtomicBool::new(true));
        let handler = unavailable_while(&down);
        for number in 0..10 {
            stage.send("mail", "mail", &number.to_string());
            stage.send("other", "other", &(100 + number).to_string());
        }
        let process = stage.start(config(order), handlers(&handler));
        wait_until("the other lane is done", async || stage.effects().len() == 10).await;
        assert!(stage.started_at.elapsed() < Duration::from_secs(1));
        wait_until("the lane is paused", async || stage.broker.is_paused("mail")).await;
        tokio::time::sleep(Duration::from_mins(10)).await;
        let probes = handler.attempted().iter().filter(|payload| payload.len() < 3).count();
        assert!((10..40).contains(&probes), "{probes} probes in ten minutes");
        down.store(false, Ordering::SeqCst);
        wait_for_acks(&stage, 20).await;
        assert_eq!(
            (process.status.handler_failures(), process.status.dead_lettered(), stage.effects().len()),
            (0, 0, 20)
        );
        wait_until("the lane is resumed", async || !stage.broker.is_paused("mail")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_probes_after_growing_pauses() {
    let stage = Env::new();
    let down = Arc::new(AtomicBool::new(true));
    let handler = unavailable_while(&down);
    stage.send("mail", "mail", "1");
    stage.send("mail", "mail", "2");
    let _process = stage.start(config(ordered_config()), transaction_handlers(&handler));
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(handler.attempt_times("1", stage.started_at), [0, 10, 30, 70, 150, 310]);
    assert_eq!(handler.attempt_times("2", stage.started_at).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_is_shown_and_can_be_overridden() {
    let stage = Env::new();
    let down = Arc::new(AtomicBool::new(true));
    let handler = unavailable_while(&down);
    stage.send("mail", "mail", "1");
    let _process = stage.start(config(ordered_config()), transaction_handlers(&handler));
    let breaker = async || stage.consumer().await.lanes.first().and_then(|lane| lane.breaker.clone());
    wait_until("it is seen", async || breaker().await == Some("simulated outage".to_owned())).await;
    stage.set_control(Some("mail"), ConsumerControl::OpenBreaker).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    down.store(false, Ordering::SeqCst);
    let tried = handler.attempted().len();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(handler.attempted().len(), tried, "nothing probes while a person holds it open");
    stage.set_control(Some("mail"), ConsumerControl::AutoBreaker).await;
    wait_for_acks(&stage, 1).await;
    wait_until("it is seen to be closed", async || breaker().await.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_breaker_closed_by_an_operator_lets_messages_through() {
    let stage = Env::new();
    let down = Arc::new(AtomicBool::new(true));
    let handler = unavailable_while(&down);
    stage.send("mail", "mail", "1");
    let process = stage.start(config(ordered_config()), transaction_handlers(&handler));
    wait_until("it opened for long", async || handler.attempted().len() == 6).await;
    stage.set_control(Some("mail"), ConsumerControl::CloseBreaker).await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    let tried = handler.attempted().len();
    assert!(tried > 10, "{tried} tries");
    down.store(false, Ordering::SeqCst);
    wait_for_acks(&stage, 1).await;
    assert_eq!(process.status.handler_failures(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_retry_queue_waits_for_the_breaker_of_its_lane() {
    for handlers in [transaction_handlers, call_handlers] {
        let stage = Env::new();
        let down = Arc::new(AtomicBool::new(false));
        let is_down = Arc::clone(&down);
        let first = AtomicBool::new(true);
        let handler = scripted(move |_| match (is_down.load(Ordering::SeqCst), first.swap(false, Ordering::SeqCst)) {
            (true, _) => Action::Unavailable,
            (false, true) => Action::Fail,
            (false, false) => Action::Done,
        });
        stage.send("mail", "mail", "1");
        let retry = HandlerRetryPolicy::default().without_in_memory();
        let process = stage.start(Config { retry, ..config(ordered_config()) }, handlers(&handler));
        wait_for_acks(&stage, 1).await;
        down.store(true, Ordering::SeqCst);
        wait_until("the outage is detected", async || process.status.handler_outages() > 3).await;
        assert_eq!(stage.consumer().await.queues[0].attempts, 1);
        down.store(false, Ordering::SeqCst);
        wait_until("it is handled", async || stage.effects() == ["mail:1"]).await;
        // The breaker is closed again for live messages of the lane.
        stage.send("mail", "mail", "2");
        wait_for_acks(&stage, 2).await;
        assert_eq!(process.status.handler_failures(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_breaker_opened_by_a_retry_queue_is_probed_by_live_messages() {
    let stage = Env::new();
    let first = AtomicBool::new(true);
    let handler = scripted(move |incoming| match payload_text(incoming).as_str() {
        "1" if first.swap(false, Ordering::SeqCst) => Action::Fail,
        "1" => Action::Unavailable,
        _ => Action::Done,
    });
    stage.send("mail", "mail", "1");
    let retry = HandlerRetryPolicy::default().without_in_memory();
    let process = stage.start(Config { retry, ..config(unordered_config()) }, transaction_handlers(&handler));
    wait_until("the lane is paused", async || process.status.handler_outages() > 0 && stage.broker.is_paused("mail"))
        .await;
    stage.send("mail", "other", "2");
    wait_until("a live one passed", async || stage.effects() == ["other:2"]).await;
}
