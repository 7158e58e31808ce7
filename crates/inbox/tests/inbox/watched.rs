//! Statistics and status of a member.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relevo_core::Lane;
use relevo_inbox::{Config, Phase};

use crate::stage::{Do, Stage, acknowledged, call, fails, inside, ordered, told, unordered, until};

#[tokio::test(start_paused = true)]
async fn what_waits_at_the_broker_is_told_by_lane_and_nothing_while_it_is_away() {
    let stage = Stage::new();
    // Every message waits for the only one that may run.
    let handler = told(|_| Do::Hang);
    let config = Config { in_memory_max: 1, receive_max: 1, deadline: Duration::from_hours(1), ..ordered() };
    for number in 0..3 {
        stage.send("a", "k", &number.to_string());
    }
    stage.send("b", "l", "3");
    let process = stage.start(config, inside(&handler));
    let expected = vec![(Lane::new("a"), 2), (Lane::new("b"), 1)];
    until("it is told", async || process.stats.lag() == expected).await;
    stage.wire.fail(true);
    until("it is not known", async || process.stats.lag().is_empty()).await;
    until("it is noticed", async || process.stats.lag_failures() > 2).await;
    stage.wire.fail(false);
    until("it is known again", async || process.stats.lag() == expected).await;
    assert_eq!(process.stats.lag_failures(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_nobody_wants_to_ask_is_not_asked() {
    let stage = Stage::new();
    stage.send("a", "k", "1");
    let process = stage.start(Config { lag_every: None, ..ordered() }, inside(&fails(0)));
    acknowledged(&stage, 1).await;
    stage.wire.fail(true);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!((process.stats.lag_failures(), process.stats.lag()), (0, Vec::new()));
    assert!(process.stats.receive_failures() > 0);
}

#[tokio::test(start_paused = true)]
async fn each_try_of_a_handler_is_measured_once_whether_or_not_it_calls() {
    for handlers in [inside, call] {
        let stage = Stage::new();
        stage.send("a", "k", "1");
        stage.send("a", "k", "2");
        let handler = told(|_| Do::DoneAfter(Duration::from_millis(70)));
        let process = stage.start(ordered(), handlers(&handler));
        acknowledged(&stage, 2).await;
        let seen = process.stats.durations();
        assert_eq!((seen.count, seen.sum), (2, Duration::from_millis(140)));
        let filled: Vec<(f64, u64)> = seen.buckets.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(0.1, 2)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_that_failed_is_measured_too() {
    for handlers in [inside, call] {
        let stage = Stage::new();
        stage.send("a", "k", "1");
        let process = stage.start(ordered(), handlers(&fails(1)));
        acknowledged(&stage, 1).await;
        assert_eq!((process.stats.durations().count, process.stats.done(), process.stats.failed()), (2, 1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn the_age_of_the_last_sign_of_life_grows_while_the_database_is_away() {
    let stage = Stage::new();
    let process = stage.start(ordered(), inside(&fails(0)));
    until("it lives", async || process.stats.is_alive()).await;
    stage.line.cut.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(process.stats.beat_age() >= Duration::from_secs(58), "{:?}", process.stats.beat_age());
    assert!(!process.stats.is_alive());
    stage.line.cut.store(false, Ordering::Relaxed);
    until("it lives again", async || process.stats.is_alive()).await;
    assert!(process.stats.beat_age() < Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_member_with_nothing_to_handle_finds_out_that_its_database_is_away() {
    let stage = Stage::new();
    let process = stage.start(unordered(), inside(&fails(0)));
    until("it lives", async || process.stats.is_alive()).await;
    assert_eq!(process.stats.database_away(), 0);
    stage.line.cut.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let (away, failed) = (process.stats.database_away(), process.stats.beats_failed());
    assert!(failed >= 20 && away >= failed, "{failed} signs of life failed, it was found away {away} times");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_never_gave_a_sign_of_life_is_as_old_as_itself() {
    let stage = Stage::new();
    stage.line.cut.store(true, Ordering::Relaxed);
    let process = stage.start(ordered(), inside(&fails(0)));
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!((process.stats.beats(), process.stats.is_alive()), (0, false));
    assert!(process.stats.beat_age() >= Duration::from_mins(1));
}

#[tokio::test(start_paused = true)]
async fn lanes_with_an_open_breaker_are_told_by_name_at_once() {
    let stage = Stage::new();
    let away = Arc::new(AtomicBool::new(true));
    let is_away = Arc::clone(&away);
    let handler = told(
        move |incoming| {
            if incoming.key() == "mail" && is_away.load(Ordering::SeqCst) { Do::Away } else { Do::Done }
        },
    );
    stage.send("mail", "mail", "1");
    stage.send("other", "other", "2");
    let process = stage.start(ordered(), inside(&handler));
    until("it is found away", async || process.stats.away() > 0).await;
    let open = vec![(Lane::new("mail"), "it was told to be away".to_owned())];
    assert_eq!((process.stats.open_breakers(), process.stats.breakers_open()), (open, 1));
    away.store(false, Ordering::SeqCst);
    acknowledged(&stage, 2).await;
    assert_eq!((process.stats.open_breakers(), process.stats.breakers_open()), (Vec::new(), 0));
}

#[tokio::test(start_paused = true)]
async fn it_is_known_whether_a_member_runs_was_stopped_or_died() {
    let stage = Stage::new();
    let process = stage.start(ordered(), inside(&fails(0)));
    until("it lives", async || process.stats.is_alive()).await;
    let stats = Arc::clone(&process.stats);
    assert_eq!((stats.phase(), stats.consumer()), (Phase::Runs, "billing"));
    process.stop().await.expect("an orderly end");
    assert_eq!(stats.phase(), Phase::Stopped);

    let killed = stage.start(ordered(), inside(&fails(0)));
    let stats = Arc::clone(&killed.stats);
    until("it lives", async || stats.is_alive()).await;
    killed.kill().await;
    assert_eq!(stats.phase(), Phase::Died);
}
