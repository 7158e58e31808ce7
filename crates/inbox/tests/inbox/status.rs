//! Statistics and status of a member.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relevo_core::Lane;
use relevo_inbox::{Config, RunState};

use crate::harness::{
    Action, Env, call_handlers, failing, ordered_config, scripted, transaction_handlers, unordered_config,
    wait_for_acks, wait_until,
};

#[tokio::test(start_paused = true)]
async fn lag_is_reported_by_lane_and_is_empty_during_an_outage() {
    let stage = Env::new();
    // Every message waits for the only one that may run.
    let handler = scripted(|_| Action::Hang);
    let config = Config {
        in_memory_messages_max: 1,
        receive_batch_max: 1,
        handler_timeout: Duration::from_hours(1),
        ..ordered_config()
    };
    for number in 0..3 {
        stage.send("a", "k", &number.to_string());
    }
    stage.send("b", "l", "3");
    let process = stage.start(config, transaction_handlers(&handler));
    let expected = vec![(Lane::new("a"), 2), (Lane::new("b"), 1)];
    wait_until("the lag is reported", async || process.status.lag() == expected).await;
    stage.broker.fail(true);
    wait_until("it is not known", async || process.status.lag().is_empty()).await;
    wait_until("it is noticed", async || process.status.lag_failures() > 2).await;
    stage.broker.fail(false);
    wait_until("it is known again", async || process.status.lag() == expected).await;
    assert_eq!(process.status.lag_failures(), 0);
}

#[tokio::test(start_paused = true)]
async fn lag_is_not_sampled_without_an_interval() {
    let stage = Env::new();
    stage.send("a", "k", "1");
    let process = stage.start(Config { lag_interval: None, ..ordered_config() }, transaction_handlers(&failing(0)));
    wait_for_acks(&stage, 1).await;
    stage.broker.fail(true);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!((process.status.lag_failures(), process.status.lag()), (0, Vec::new()));
    assert!(process.status.receive_failures() > 0);
}

#[tokio::test(start_paused = true)]
async fn each_attempt_is_measured_once_with_or_without_a_call() {
    for handlers in [transaction_handlers, call_handlers] {
        let stage = Env::new();
        stage.send("a", "k", "1");
        stage.send("a", "k", "2");
        let handler = scripted(|_| Action::DoneAfter(Duration::from_millis(70)));
        let process = stage.start(ordered_config(), handlers(&handler));
        wait_for_acks(&stage, 2).await;
        let seen = process.status.durations();
        assert_eq!(seen.count, 2);
        assert!((seen.sum - 0.14).abs() < 1e-6, "{}", seen.sum);
        let filled: Vec<(f64, u64)> = seen.buckets.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(0.1, 2)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_is_measured() {
    for handlers in [transaction_handlers, call_handlers] {
        let stage = Env::new();
        stage.send("a", "k", "1");
        let process = stage.start(ordered_config(), handlers(&failing(1)));
        wait_for_acks(&stage, 1).await;
        assert_eq!(
            (process.status.durations().count, process.status.done(), process.status.handler_failures()),
            (2, 1, 1)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_heartbeat_age_grows_during_a_database_outage() {
    let stage = Env::new();
    let process = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    wait_until("it lives", async || process.status.is_alive()).await;
    stage.faults.unavailable.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(process.status.heartbeat_age() >= Duration::from_secs(58), "{:?}", process.status.heartbeat_age());
    assert!(!process.status.is_alive());
    stage.faults.unavailable.store(false, Ordering::Relaxed);
    wait_until("it lives again", async || process.status.is_alive()).await;
    assert!(process.status.heartbeat_age() < Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn an_idle_member_notices_a_database_outage() {
    let stage = Env::new();
    let process = stage.start(unordered_config(), transaction_handlers(&failing(0)));
    wait_until("it lives", async || process.status.is_alive()).await;
    assert_eq!(process.status.database_outages(), 0);
    stage.faults.unavailable.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let (outages, failed) = (process.status.database_outages(), process.status.heartbeats_failed());
    assert!(failed >= 20 && outages >= failed, "{failed} heartbeats failed, {outages} outages were detected");
}

#[tokio::test(start_paused = true)]
async fn the_heartbeat_age_of_a_new_member_starts_at_its_creation() {
    let stage = Env::new();
    stage.faults.unavailable.store(true, Ordering::Relaxed);
    let process = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!((process.status.heartbeats(), process.status.is_alive()), (0, false));
    assert!(process.status.heartbeat_age() >= Duration::from_mins(1));
}

#[tokio::test(start_paused = true)]
async fn open_breakers_are_reported_by_lane_at_once() {
    let stage = Env::new();
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let handler = scripted(move |incoming| {
        if incoming.key() == "mail" && is_down.load(Ordering::SeqCst) { Action::Unavailable } else { Action::Done }
    });
    stage.send("mail", "mail", "1");
    stage.send("other", "other", "2");
    let process = stage.start(ordered_config(), transaction_handlers(&handler));
    wait_until("the outage is detected", async || process.status.handler_outages() > 0).await;
    let open = vec![(Lane::new("mail"), "simulated outage".to_owned())];
    assert_eq!((process.status.open_breakers(), process.status.breakers_open()), (open, 1));
    down.store(false, Ordering::SeqCst);
    wait_for_acks(&stage, 2).await;
    assert_eq!((process.status.open_breakers(), process.status.breakers_open()), (Vec::new(), 0));
}

#[tokio::test(start_paused = true)]
async fn the_run_state_distinguishes_running_stopped_and_failed() {
    let stage = Env::new();
    let process = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    wait_until("it lives", async || process.status.is_alive()).await;
    let stats = Arc::clone(&process.status);
    assert_eq!((stats.run_state(), stats.consumer()), (RunState::Running, "billing"));
    process.stop().await.expect("an orderly end");
    assert_eq!(stats.run_state(), RunState::Stopped);

    let killed = stage.start(ordered_config(), transaction_handlers(&failing(0)));
    let stats = Arc::clone(&killed.status);
    wait_until("it lives", async || stats.is_alive()).await;
    killed.kill().await;
    assert_eq!(stats.run_state(), RunState::Failed);
}
