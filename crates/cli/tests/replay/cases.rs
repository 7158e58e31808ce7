//! Replays on any database: the feeder is a process, the consumer works through the port.

use std::process::{Child, Output};
use std::time::{Duration, Instant};

use relevo_core::AfterDead;
use relevo_core::inbox::replays::ConsumerReplays;
use relevo_core::inbox::replays::Replay;
use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction, QueuedMessage};
use relevo_core::inbox::transactions::BeginOutcome;
use relevo_core::inbox::{Fence, Inbox, InboxMessage};
use serde_json::{Value, json};

use super::cases::Run;
use super::fixture::heartbeat;

const SOON: Duration = Duration::from_secs(30);

/// A database whose commands can run beside the test.
pub(crate) trait Spawn: Run {
    /// Starts a command, and gives no input to it.
    fn spawn(&self, args: &[&str]) -> Child;
}

/// The one object that a command prints.
pub(crate) fn object(cli: &impl Run, args: &[&str]) -> Value {
    let (code, stdout, stderr) = cli.run(args);
    assert_eq!(code, 0, "{args:?}: {stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{stdout}: {error}"))
}

/// Messages of three keys, with the numbers below this one as their payloads.
pub(crate) fn emit(cli: &impl Run, count: usize) {
    let line = |number: usize| json!({ "topic": "orders", "key": format!("o-{}", number % 3), "type": "OrderPlaced", "payload": number });
    let lines: Vec<String> = (0..count).map(|number| line(number).to_string()).collect();
    // Each test runs on its own thread.
    let name = format!("relevo-replay-{}-{:?}.jsonl", std::process::id(), std::thread::current().id());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, lines.join("\n")).expect("the directory for temporary files can be written");
    let (code, _, stderr) = cli.run(&["emit", "--jsonl", &file.display().to_string()]);
    std::fs::remove_file(&file).ok();
    assert_eq!(code, 0, "{stderr}");
}

/// What handlers did, in order: key and payload.
#[derive(Default)]
pub(crate) struct Handled(Vec<(String, String)>);

impl Handled {
    /// Each number below this one, once, and each key's in order.
    pub(crate) fn is_everything_once(&self, count: usize) {
        let mut numbers: Vec<usize> = self.0.iter().map(|(_, payload)| payload.parse().expect("a number")).collect();
        for key in 0..3 {
            let of_key: Vec<&usize> = numbers.iter().filter(|number| **number % 3 == key).collect();
            assert!(of_key.is_sorted(), "o-{key}: {of_key:?}");
        }
        numbers.sort_unstable();
        assert_eq!(numbers, (0..count).collect::<Vec<_>>());
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Handles all messages that are due, once.
pub(crate) async fn work(inbox: &impl Inbox, handled: &mut Handled) {
    for due in inbox.claim_due(50, 50, SOON).await.expect("the store answers") {
        for QueuedMessage { ordinal, message: arrival, .. } in &due.messages {
            let fence = Fence::Queue { claim: &due.claim, ordinal: *ordinal };
            let begun = inbox.begin(std::slice::from_ref(arrival), fence).await;
            let BeginOutcome::Open(transaction, _) = begun.expect("the store answers") else {
                break;
            };
            inbox.commit(transaction, &[]).await.expect("the store answers");
            handled.0.push(key_and_payload(arrival));
        }
        inbox.release_queue(&due.claim).await.expect("the store answers");
    }
}

/// Dead-letters all messages that are due.
pub(crate) async fn dead_letter_due(inbox: &impl Inbox) {
    for due in inbox.claim_due(50, 50, SOON).await.expect("the store answers") {
        let setback = InboxFailure {
            action: InboxFailureAction::DeadLetter(AfterDead::Continue),
            attempts: 1,
            class: "poison",
            error: "the test rejects it".to_owned(),
            backtrace: None,
        };
        for waiting in &due.messages {
            let fence = Fence::Queue { claim: &due.claim, ordinal: waiting.ordinal };
            inbox.record_failure(&waiting.message, fence, &setback).await.expect("the store answers");
        }
        inbox.release_queue(&due.claim).await.expect("the store answers");
    }
}

fn key_and_payload(arrival: &InboxMessage) -> (String, String) {
    let message = arrival.raw.decode().expect("a message of ours").message;
    (message.key.to_string(), String::from_utf8(message.payload.to_vec()).expect("text"))
}

/// Handles due messages until the condition holds.
pub(crate) async fn work_until(
    inbox: &impl Inbox,
    handled: &mut Handled,
    what: &str,
    mut holds: impl AsyncFnMut(&Handled) -> bool,
) {
    let end = Instant::now() + SOON;
    while !holds(handled).await {
        assert!(Instant::now() < end, "timed out: {what}");
        work(inbox, handled).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn replay(store: &impl ConsumerReplays, number: u32) -> Replay {
    let replays = store.list_replays("billing").await.expect("the store answers");
    replays.into_iter().find(|replay| replay.number == number).expect("it began")
}

/// Exit code and stderr of a command that ended.
pub(crate) fn ended(child: Child) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = child.wait_with_output().expect("it ends");
    (status.code(), String::from_utf8(stderr).expect("it writes UTF-8"))
}

pub(crate) async fn every_message_is_replayed_and_handled_once(
    cli: &impl Spawn,
    inbox: &impl Inbox,
    store: &impl ConsumerReplays,
) {
    heartbeat(inbox).await;
    emit(cli, 7);
    let planned = object(cli, &["replay", "plan", "billing", "--sample", "2", "-o", "json"]);
    assert_eq!((planned["count"].as_u64(), planned["sample"].as_array().map(Vec::len)), (Some(7), Some(2)));
    assert!(store.list_replays("billing").await.expect("the store answers").is_empty(), "a plan changes nothing");
    let mut handled = Handled::default();
    for round in 1..=2 {
        let args = ["replay", "start", "billing", "--rate", "1000", "--reason", "wrong", "--yes", "-o", "json"];
        let ended = object(cli, &args);
        assert_eq!(
            (ended["number"].as_u64(), ended["state"].as_str(), ended["read"].as_u64()),
            (Some(round), Some("finished"), Some(7))
        );
        work(inbox, &mut handled).await;
        handled.is_everything_once(7);
        handled = Handled::default();
        let shown = object(cli, &["replay", "show", "billing", &round.to_string(), "-o", "json"]);
        assert_eq!((shown["handled"].as_u64(), shown["waiting"].as_u64()), (Some(7), Some(0)));
    }
}

pub(crate) async fn only_selected_messages_are_replayed(cli: &impl Spawn, inbox: &impl Inbox) {
    heartbeat(inbox).await;
    emit(cli, 6);
    let counts = |more: &[&str]| {
        let args = [&["replay", "plan", "billing", "-o", "json"], more].concat();
        object(cli, &args)["count"].as_u64().expect("a count")
    };
    assert_eq!(counts(&["--key", "o-1"]), 2);
    assert_eq!(counts(&["--topic", "orders", "--type", "OrderPlaced"]), 6);
    assert_eq!(counts(&["--type", "OrderShipped"]), 0);
    assert_eq!(counts(&["--address", "orders.**"]), 6);
    assert_eq!(counts(&["--address", "bills"]), 0);
    assert_eq!(counts(&["--from", "3"]), 4);
    assert_eq!(counts(&["--from", "3", "--to", "4"]), 2);
    assert_eq!((counts(&["--since", "1h"]), counts(&["--until", "1h"])), (6, 0));
    let (code, _, stderr) = cli.run(&["replay", "start", "billing", "--key", "o-9", "--reason", "why", "--yes"]);
    assert_eq!((code, stderr.as_str()), (0, "no message matches, nothing was started\n"));
}

/// The replay is killed several times at any point. Each time another process continues it.
pub(crate) async fn a_killed_feeder_loses_and_repeats_nothing(
    cli: &impl Spawn,
    inbox: &impl Inbox,
    store: &impl ConsumerReplays,
) {
    const COUNT: usize = 60;
    heartbeat(inbox).await;
    emit(cli, COUNT);
    let mut handled = Handled::default();
    let args = ["replay", "start", "billing", "--rate", "40", "--reason", "wrong", "--yes"];
    let mut feeder = cli.spawn(&args);
    for kill in 1..=4 {
        let fed = u64::try_from(kill * 10).expect("a small number");
        let has_enqueued = async |_: &Handled| {
            let replays = store.list_replays("billing").await.expect("the store answers");
            replays.first().is_some_and(|replay| replay.enqueued >= fed)
        };
        work_until(inbox, &mut handled, "enough messages are enqueued", has_enqueued).await;
        feeder.kill().expect("it runs");
        assert_eq!(ended(feeder).0, None, "a signal ended it");
        feeder = cli.spawn(&["replay", "resume", "billing", "1"]);
    }
    work_until(inbox, &mut handled, "all are handled", async |handled| handled.len() >= COUNT).await;
    let (code, stderr) = ended(feeder);
    assert_eq!(code, Some(0), "{stderr}");
    work(inbox, &mut handled).await;
    handled.is_everything_once(COUNT);
    let replay = replay(store, 1).await;
    assert_eq!((replay.enqueued, replay.done), (60, 60));
}

pub(crate) async fn a_stop_from_elsewhere_ends_the_feeder(
    cli: &impl Spawn,
    inbox: &impl Inbox,
    store: &impl ConsumerReplays,
) {
    const COUNT: usize = 30;
    heartbeat(inbox).await;
    emit(cli, COUNT);
    let feeder = cli.spawn(&["replay", "start", "billing", "--rate", "10", "--reason", "wrong", "--yes"]);
    let mut handled = Handled::default();
    let some = async |_: &Handled| {
        store
            .list_replays("billing")
            .await
            .expect("the store answers")
            .first()
            .is_some_and(|replay| replay.enqueued >= 5)
    };
    work_until(inbox, &mut handled, "some messages are enqueued", some).await;
    // No handler runs from here on, so that messages wait when the replay stops.
    let full = Instant::now() + SOON;
    while replay(store, 1).await.ready < 5 {
        assert!(Instant::now() < full, "more messages are enqueued");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let stopped = object(cli, &["replay", "stop", "billing", "1", "-o", "json"]);
    assert_eq!((stopped["state"].as_str(), stopped["waiting"].as_u64()), (Some("stopped"), Some(0)));
    let (code, stderr) = ended(feeder);
    assert_eq!(code, Some(130), "{stderr}");
    assert!(
        stderr.contains("stopped by an operator") && stderr.contains("`relevo replay resume billing 1`"),
        "{stderr}"
    );
    let (code, _, stderr) = cli.run(&["replay", "stop", "billing", "1"]);
    assert_eq!((code, stderr.as_str()), (0, "replay 1 of consumer `billing` is already stopped\n"));
    let feeder = cli.spawn(&["replay", "resume", "billing", "1", "--rate", "1000"]);
    work_until(inbox, &mut handled, "all are handled", async |handled| handled.len() >= COUNT).await;
    assert_eq!(ended(feeder).0, Some(0));
    handled.is_everything_once(COUNT);
}

pub(crate) async fn too_many_dead_letters_stop_a_replay(cli: &impl Spawn, inbox: &impl Inbox) {
    heartbeat(inbox).await;
    emit(cli, 20);
    let args = ["replay", "start", "billing", "--rate", "5", "--dead-letters-max", "3", "--reason", "wrong", "--yes"];
    let mut feeder = cli.spawn(&args);
    let end = Instant::now() + SOON;
    while feeder.try_wait().expect("it runs").is_none() {
        assert!(Instant::now() < end, "it stops by itself");
        dead_letter_due(inbox).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (code, stderr) = ended(feeder);
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("hint: see them with `relevo dead-letter list"), "{stderr}");
    let feeder = cli.spawn(&["replay", "resume", "billing", "1", "--rate", "1000", "--dead-letters-max", "1"]);
    let mut handled = Handled::default();
    work_until(inbox, &mut handled, "the rest is handled", async |handled| handled.len() >= 15).await;
    assert_eq!(ended(feeder).0, Some(0), "earlier dead letters do not count again");
}
