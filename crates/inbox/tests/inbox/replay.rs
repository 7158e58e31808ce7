//! Replays: read from a log at a limited rate, handled once more, in order, beside live messages.

use std::time::Duration;

use relevo_core::inbox::admin::{ConsumerAdmin as _, ConsumerControl as Ordered};
use relevo_core::inbox::replays::{ConsumerReplays, Replay, ReplayPlan, ReplayState};
use relevo_core::replay_source::{OutboxRouting, ReplayFilter};
use relevo_core::store::StoreError;
use relevo_core::{MessageId, message::Headers};
use relevo_inbox::{Config, ReplayEnd, ReplayJob, ReplayRunner, ReplayStep};
use relevo_store_memory::{Draft, Operator, OutboxReplaySource};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::harness::{
    Action, CONSUMER, Env, call_handlers, ordered_config, scripted, transaction_handlers, unordered_config, wait_until,
};

/// A consumer whose outbox has a log, and a replay of the whole log.
struct ReplayEnv {
    env: Env,
    log: OutboxReplaySource,
    operator: Operator,
}

impl ReplayEnv {
    /// Puts `count` messages of three keys into the log, with payloads numbered from 0.
    fn new(count: usize) -> Self {
        let env = Env::new();
        let mut transaction = env.outbox.begin();
        for number in 0..count {
            let draft = Draft::json("orders", &format!("k{}", number % 3), "OrderPlaced", number.to_string());
            transaction.emit(draft).expect("a small message");
        }
        transaction.commit().expect("an open transaction");
        let (log, operator) = (env.outbox.log(OutboxRouting::default()), env.outbox.operator());
        Self { env, log, operator }
    }

    async fn create_replay(&self, rate: u32, dead_max: u64) -> u32 {
        let plan = ReplayPlan {
            consumer: CONSUMER.to_owned(),
            source: "all".to_owned(),
            count: 0,
            rate,
            dead_letters_max: dead_max,
            requested_by: "ana".to_owned(),
            reason: "why not".to_owned(),
        };
        self.operator.create_replay(&plan).await.expect("the store answers")
    }

    fn runner(&self, config: Config, number: u32, rate: u32) -> ReplayRunner<'_> {
        ReplayRunner::new(
            ReplayJob { consumer: CONSUMER.to_owned(), config, number, filter: ReplayFilter::default(), rate },
            &self.log,
            &self.operator,
        )
    }

    async fn replay(&self) -> Replay {
        self.operator.list_replays(CONSUMER).await.expect("the store answers").remove(0)
    }

    async fn run(&self, consumer: Config, number: u32, rate: u32) -> ReplayEnd {
        let mut feeder = self.runner(consumer, number, rate);
        feeder.run(&CancellationToken::new(), |_, _| ()).await.expect("nothing fails")
    }

    async fn wait_until_handled(&self) {
        wait_until("all that was fed is handled", async || self.replay().await.waiting() == 0).await;
    }
}

/// The ledger entries of a key, in order.
fn payloads_of_key(ledger: &[String], key: &str) -> Vec<String> {
    let prefix = format!("{key}:");
    ledger.iter().filter_map(|line| line.strip_prefix(&prefix).map(str::to_owned)).collect()
}

#[tokio::test(start_paused = true)]
async fn each_replay_handles_the_log_once() {
    for config in [ordered_config(), unordered_config()] {
        let scene = ReplayEnv::new(20);
        let _process = scene.env.start(config.clone(), transaction_handlers(&scripted(|_| Action::Done)));
        for round in 1..=2 {
            let number = scene.create_replay(1000, 1).await;
            assert_eq!(scene.run(config.clone(), number, 1000).await, ReplayEnd::Finished);
            scene.wait_until_handled().await;
            let replay = scene.replay().await;
            assert_eq!((replay.state, replay.enqueued, replay.done, replay.dead), (ReplayState::Finished, 20, 20, 0));
            let mut ledger = scene.env.effects();
            ledger.sort();
            ledger.dedup();
            assert_eq!((ledger.len(), scene.env.effects().len()), (20, 20 * round));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_ordered_consumer_handles_each_key_in_log_order() {
    let scene = ReplayEnv::new(60);
    let slow = scripted(|incoming| Action::DoneAfter(Duration::from_millis(u64::from(incoming.payload()[0]) % 7 * 10)));
    let _process = scene.env.start(ordered_config(), transaction_handlers(&slow));
    let number = scene.create_replay(1000, 1).await;
    scene.run(ordered_config(), number, 1000).await;
    scene.wait_until_handled().await;
    for (key, first) in [("k0", 0), ("k1", 1), ("k2", 2)] {
        let expected: Vec<String> = (first..60).step_by(3).map(|number: i32| number.to_string()).collect();
        assert_eq!(payloads_of_key(&scene.env.effects(), key), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_replay_stays_within_its_rate() {
    let scene = ReplayEnv::new(100);
    let handler = scripted(|_| Action::Done);
    let _process = scene.env.start(ordered_config(), transaction_handlers(&handler));
    let number = scene.create_replay(10, 1).await;
    let began = Instant::now();
    scene.run(ordered_config(), number, 10).await;
    scene.wait_until_handled().await;
    let took = began.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(15)).contains(&took), "{took:?}");
    let tries = handler.attempts.lock().expect("no handler panics with it").clone();
    for window in tries.windows(25) {
        let apart = window[24].0.duration_since(window[0].0);
        assert!(apart >= Duration::from_secs(1), "25 within {apart:?}, at 10 a second");
    }
}

#[tokio::test(start_paused = true)]
async fn a_replay_does_not_catch_up_after_a_pause() {
    let scene = ReplayEnv::new(100);
    let handler = scripted(|_| Action::Done);
    let _process = scene.env.start(ordered_config(), transaction_handlers(&handler));
    wait_until("it lives", async || scene.operator.list_consumers().await.is_ok_and(|all| all.len() == 1)).await;
    scene.env.set_control(None, Ordered::Pause).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let number = scene.create_replay(10, 1).await;
    let mut feeder = scene.runner(ordered_config(), number, 10);
    for _ in 0..100 {
        feeder.step(100).await.expect("nothing fails");
    }
    assert_eq!(feeder.step(100).await.expect("nothing fails"), ReplayStep::QueueFull);
    let replay = scene.replay().await;
    assert_eq!((replay.enqueued, replay.ready), (10, 10), "one second's worth waits, and no more");
}

#[tokio::test(start_paused = true)]
async fn failing_messages_do_not_block_a_replay() {
    let scene = ReplayEnv::new(30);
    let handler = scripted(|incoming| if incoming.key() == "k0" { Action::Fail } else { Action::Done });
    let _process = scene.env.start(ordered_config(), transaction_handlers(&handler));
    let number = scene.create_replay(5, 100).await;
    let ended = tokio::time::timeout(Duration::from_secs(30), scene.run(ordered_config(), number, 5)).await;
    assert_eq!(ended, Ok(ReplayEnd::Finished), "what waits for its time does not count against the rate");
    let done = async || payloads_of_key(&scene.env.effects(), "k1").len() == 10;
    wait_until("the others are handled", done).await;
}

#[tokio::test(start_paused = true)]
async fn too_many_dead_letters_stop_a_replay_until_it_is_resumed() {
    let scene = ReplayEnv::new(30);
    let handler =
        scripted(
            |incoming| if incoming.attempt() == 1 && incoming.key() == "k1" { Action::Poison } else { Action::Done },
        );
    let _process = scene.env.start(unordered_config(), transaction_handlers(&handler));
    let number = scene.create_replay(10, 3).await;
    assert_eq!(scene.run(unordered_config(), number, 10).await, ReplayEnd::Stopped);
    let replay = scene.replay().await;
    assert!(replay.dead >= 3 && replay.enqueued < 30, "{replay:?}");
    assert_eq!(scene.run(unordered_config(), number, 10).await, ReplayEnd::Stopped, "it does not run by itself");
    assert!(scene.operator.resume_replay(CONSUMER, number, 100).await.expect("the store answers"));
    assert_eq!(scene.run(unordered_config(), number, 10).await, ReplayEnd::Finished);
    scene.wait_until_handled().await;
    let replay = scene.replay().await;
    assert_eq!((replay.enqueued, replay.done, replay.dead), (30, 20, 10), "nothing was skipped, nothing came twice");
    assert_eq!(scene.env.effects().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn only_the_last_of_two_runners_continues() {
    let scene = ReplayEnv::new(50);
    let number = scene.create_replay(20, 1).await;
    let _process = scene.env.start(ordered_config(), transaction_handlers(&scripted(|_| Action::Done)));
    let (one, other) = tokio::join!(scene.run(ordered_config(), number, 20), scene.run(ordered_config(), number, 20));
    let mut ends = [one, other];
    ends.sort_by_key(|end| *end == ReplayEnd::Finished);
    assert_eq!(ends, [ReplayEnd::TakenOver, ReplayEnd::Finished]);
    scene.wait_until_handled().await;
    assert_eq!((scene.replay().await.enqueued, scene.env.effects().len()), (50, 50));
}

/// Runs through every kind of interruption; in the end each message was enqueued once.
#[tokio::test(start_paused = true)]
async fn a_runner_killed_at_any_step_loses_and_repeats_nothing() {
    let scene = ReplayEnv::new(40);
    let _process = scene.env.start(ordered_config(), transaction_handlers(&scripted(|_| Action::Done)));
    let number = scene.create_replay(1000, 1).await;
    let mut dead_feeders = 0;
    loop {
        // Each runner lives for one step. After every third step an operator stops and resumes the replay. Every fifth
        // step is cancelled in the middle.
        let mut feeder = scene.runner(ordered_config(), number, 1000);
        dead_feeders += 1;
        if dead_feeders % 5 == 0 {
            let cut = tokio::time::timeout(Duration::ZERO, feeder.step(3)).await;
            drop(cut);
            continue;
        }
        let step = feeder.step(3).await.expect("nothing fails");
        if step == ReplayStep::End(ReplayEnd::Finished) {
            break;
        }
        if dead_feeders % 3 == 0 && scene.operator.stop_replay(CONSUMER, number).await.expect("the store answers") {
            assert!(scene.operator.resume_replay(CONSUMER, number, 1).await.expect("the store answers"));
        }
        // Some messages are handled meanwhile, others are not.
        tokio::time::sleep(Duration::from_millis(dead_feeders % 4 * 150)).await;
    }
    scene.wait_until_handled().await;
    let replay = scene.replay().await;
    assert_eq!((replay.enqueued, replay.done), (40, 40));
    for key in ["k0", "k1", "k2"] {
        let numbers: Vec<usize> =
            payloads_of_key(&scene.env.effects(), key).iter().map(|text| text.parse().expect("a number")).collect();
        assert!(numbers.is_sorted() && numbers.windows(2).all(|pair| pair[0] < pair[1]), "{key}: {numbers:?}");
    }
}

/// Live messages of a key go behind those enqueued before they arrived, and keep their own order.
#[tokio::test(start_paused = true)]
async fn live_messages_of_a_replayed_key_keep_their_order() {
    let scene = ReplayEnv::new(30);
    let slow = scripted(|incoming| {
        let odd = incoming.payload().last().is_some_and(|byte| byte % 2 == 1);
        if odd { Action::DoneAfter(Duration::from_millis(120)) } else { Action::Done }
    });
    let _process = scene.env.start(ordered_config(), transaction_handlers(&slow));
    let number = scene.create_replay(20, 1).await;
    let live = async {
        for number in 0..60 {
            scene.env.send("0", &format!("k{}", number % 3), &format!("live {number}"));
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    };
    let (end, ()) = tokio::join!(scene.run(ordered_config(), number, 20), live);
    assert_eq!(end, ReplayEnd::Finished);
    wait_until("all of it is handled", async || scene.env.effects().len() == 90).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let ledger = scene.env.effects();
    assert_eq!(ledger.len(), 90, "each effect once, the live one and the replayed one");
    for (key, first) in [("k0", 0), ("k1", 1), ("k2", 2)] {
        let (live, replayed): (Vec<String>, Vec<String>) =
            payloads_of_key(&ledger, key).into_iter().partition(|payload| payload.starts_with("live"));
        let expected: Vec<String> = (first..60).step_by(3).map(|number: i32| format!("live {number}")).collect();
        assert_eq!(live, expected);
        let expected: Vec<String> = (first..30).step_by(3).map(|number: i32| number.to_string()).collect();
        assert_eq!(replayed, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_queued_live_message_is_handled_live_and_replayed() {
    let stage = Env::new();
    let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
    stage.broker.publish("0", raw.clone());
    let handler = crate::harness::failing(4);
    let _process = stage.start(ordered_config(), transaction_handlers(&handler));
    let operator = stage.outbox.operator();
    let waits = async || {
        operator.get_consumer(CONSUMER, 9).await.is_ok_and(|shown| shown.is_some_and(|it| it.queues.len() == 1))
    };
    wait_until("it waits in the retry table", waits).await;
    let logged = relevo_core::replay_source::LogMessage {
        number: 1,
        at: crate::harness::STARTED_AT,
        raw,
        address: "orders".into(),
        lane: relevo_core::Lane::new("0"),
        offset: Some(1),
    };
    let arrival = relevo_inbox::to_inbox_message(&ordered_config(), logged);
    let plan = ReplayPlan {
        consumer: CONSUMER.to_owned(),
        source: String::new(),
        count: 1,
        rate: 1,
        dead_letters_max: 1,
        requested_by: String::new(),
        reason: String::new(),
    };
    let number = operator.create_replay(&plan).await.expect("the store answers");
    let portion = relevo_core::inbox::replays::ReplayBatch { messages: &[arrival], cursor: None, next_cursor: None };
    let fed: Result<_, StoreError> = operator.enqueue_replay(CONSUMER, number, portion).await;
    assert_eq!(fed.expect("the store answers"), relevo_core::inbox::replays::EnqueueOutcome::Enqueued);
    wait_until("both are handled", async || stage.effects().len() == 2).await;
    assert_eq!(stage.effects(), ["k:1", "k:1"]);
    let id: MessageId =
        operator.find_message(MessageId::v7(1, [7; 10])).await.expect("the store answers")[0].dedup_id.id;
    assert_eq!(operator.find_message(id).await.expect("the store answers").len(), 2, "two entries, one for each");
}

#[tokio::test(start_paused = true)]
async fn a_replay_stopped_during_an_attempt_blocks_no_queue() {
    let scene = ReplayEnv::new(9);
    let number = scene.create_replay(1000, 1).await;
    scene.runner(ordered_config(), number, 1000).step(6).await.expect("nothing fails");
    let slow = scripted(|_| Action::DoneAfter(Duration::from_secs(5)));
    let _process = scene.env.start(ordered_config(), call_handlers(&slow));
    wait_until("the first of each key is called for", async || slow.attempted().len() == 3).await;
    let began = Instant::now();
    assert!(scene.operator.stop_replay(CONSUMER, number).await.expect("the store answers"));
    scene.env.send("0", "k0", "live");
    wait_until("the live message is handled", async || scene.env.effects().contains(&"k0:live".to_owned())).await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!(!scene.env.effects().contains(&"k0:3".to_owned()), "it was removed");
}
