//! Replays: read from a log at a limited rate, handled once more, in order, beside live messages.

use std::time::Duration;

use relevo_core::inbox::operate::{Operate, Order as Ordered, Plan, Replay, ReplayState};
use relevo_core::inbox::source::{Filter, Sending};
use relevo_core::store::StoreError;
use relevo_core::{MessageId, message::Headers};
use relevo_inbox::{Config, FeedEnd, FeedStep, Feeder, Feeding};
use relevo_store_memory::{Draft, Operator, OutboxLog};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::stage::{CONSUMER, Do, Stage, call, inside, ordered, told, unordered, until};

/// A consumer whose outbox has a log, and a replay of the whole log.
struct Scene {
    stage: Stage,
    log: OutboxLog,
    desk: Operator,
}

impl Scene {
    /// Puts `count` messages of three keys into the log, with payloads numbered from 0.
    fn new(count: usize) -> Self {
        let stage = Stage::new();
        let mut transaction = stage.outbox.begin();
        for number in 0..count {
            let draft = Draft::new("orders", format!("k{}", number % 3), "OrderPlaced", number.to_string());
            transaction.emit(draft).expect("a small message");
        }
        transaction.commit().expect("an open transaction");
        let (log, desk) = (stage.outbox.log(Sending::default()), stage.outbox.operator());
        Self { stage, log, desk }
    }

    async fn begin(&self, rate: u32, dead_max: u64) -> u32 {
        let plan = Plan {
            consumer: CONSUMER.to_owned(),
            source: "all".to_owned(),
            count: 0,
            rate,
            dead_max,
            by: "ana".to_owned(),
            reason: "why not".to_owned(),
        };
        self.desk.begin_replay(&plan).await.expect("the store answers")
    }

    fn feeder(&self, consumer: Config, number: u32, rate: u32) -> Feeder<'_> {
        Feeder::new(Feeding { consumer, number, filter: Filter::default(), rate }, &self.log, &self.desk)
    }

    async fn replay(&self) -> Replay {
        self.desk.replays(CONSUMER).await.expect("the store answers").remove(0)
    }

    async fn run(&self, consumer: Config, number: u32, rate: u32) -> FeedEnd {
        let mut feeder = self.feeder(consumer, number, rate);
        feeder.run(&CancellationToken::new(), |_, _| ()).await.expect("nothing fails")
    }

    async fn all_handled(&self) {
        until("all that was fed is handled", async || self.replay().await.waiting() == 0).await;
    }
}

/// The ledger entries of a key, in order.
fn of_key(ledger: &[String], key: &str) -> Vec<String> {
    let prefix = format!("{key}:");
    ledger.iter().filter_map(|line| line.strip_prefix(&prefix).map(str::to_owned)).collect()
}

#[tokio::test(start_paused = true)]
async fn everything_of_the_log_is_handled_once_for_each_replay() {
    for config in [ordered(), unordered()] {
        let scene = Scene::new(20);
        let _process = scene.stage.start(config.clone(), inside(&told(|_| Do::Done)));
        for round in 1..=2 {
            let number = scene.begin(1000, 1).await;
            assert_eq!(scene.run(config.clone(), number, 1000).await, FeedEnd::Finished);
            scene.all_handled().await;
            let replay = scene.replay().await;
            assert_eq!((replay.state, replay.fed, replay.done, replay.dead), (ReplayState::Finished, 20, 20, 0));
            let mut ledger = scene.stage.ledger();
            ledger.sort();
            ledger.dedup();
            assert_eq!((ledger.len(), scene.stage.ledger().len()), (20, 20 * round));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_keeps_order_handles_each_key_in_the_order_of_the_log() {
    let scene = Scene::new(60);
    let slow = told(|incoming| Do::DoneAfter(Duration::from_millis(u64::from(incoming.payload()[0]) % 7 * 10)));
    let _process = scene.stage.start(ordered(), inside(&slow));
    let number = scene.begin(1000, 1).await;
    scene.run(ordered(), number, 1000).await;
    scene.all_handled().await;
    for (key, first) in [("k0", 0), ("k1", 1), ("k2", 2)] {
        let expected: Vec<String> = (first..60).step_by(3).map(|number: i32| number.to_string()).collect();
        assert_eq!(of_key(&scene.stage.ledger(), key), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_are_handled_than_the_rate_says() {
    let scene = Scene::new(100);
    let handler = told(|_| Do::Done);
    let _process = scene.stage.start(ordered(), inside(&handler));
    let number = scene.begin(10, 1).await;
    let began = Instant::now();
    scene.run(ordered(), number, 10).await;
    scene.all_handled().await;
    let took = began.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(15)).contains(&took), "{took:?}");
    let tries = handler.tries.lock().expect("no handler panics with it").clone();
    for window in tries.windows(25) {
        let apart = window[24].0.duration_since(window[0].0);
        assert!(apart >= Duration::from_secs(1), "25 within {apart:?}, at 10 a second");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_the_consumer_is_not_made_up_for() {
    let scene = Scene::new(100);
    let handler = told(|_| Do::Done);
    let _process = scene.stage.start(ordered(), inside(&handler));
    until("it lives", async || scene.desk.consumers().await.is_ok_and(|all| all.len() == 1)).await;
    scene.stage.order(None, Ordered::Pause).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let number = scene.begin(10, 1).await;
    let mut feeder = scene.feeder(ordered(), number, 10);
    for _ in 0..100 {
        feeder.step(100).await.expect("nothing fails");
    }
    assert_eq!(feeder.step(100).await.expect("nothing fails"), FeedStep::Full);
    let replay = scene.replay().await;
    assert_eq!((replay.fed, replay.ready), (10, 10), "one second's worth waits, and no more");
}

#[tokio::test(start_paused = true)]
async fn messages_that_fail_do_not_hold_others_back() {
    let scene = Scene::new(30);
    let handler = told(|incoming| if incoming.key() == "k0" { Do::Fail } else { Do::Done });
    let _process = scene.stage.start(ordered(), inside(&handler));
    let number = scene.begin(5, 100).await;
    let ended = tokio::time::timeout(Duration::from_secs(30), scene.run(ordered(), number, 5)).await;
    assert_eq!(ended, Ok(FeedEnd::Finished), "what waits for its time does not count against the rate");
    let done = async || of_key(&scene.stage.ledger(), "k1").len() == 10;
    until("the others are handled", done).await;
}

#[tokio::test(start_paused = true)]
async fn too_many_dead_letters_stop_it_and_it_goes_on_when_told() {
    let scene = Scene::new(30);
    let handler =
        told(|incoming| if incoming.attempt() == 1 && incoming.key() == "k1" { Do::Poison } else { Do::Done });
    let _process = scene.stage.start(unordered(), inside(&handler));
    let number = scene.begin(10, 3).await;
    assert_eq!(scene.run(unordered(), number, 10).await, FeedEnd::Stopped);
    let replay = scene.replay().await;
    assert!(replay.dead >= 3 && replay.fed < 30, "{replay:?}");
    assert_eq!(scene.run(unordered(), number, 10).await, FeedEnd::Stopped, "it does not run by itself");
    assert!(scene.desk.resume_replay(CONSUMER, number, 100).await.expect("the store answers"));
    assert_eq!(scene.run(unordered(), number, 10).await, FeedEnd::Finished);
    scene.all_handled().await;
    let replay = scene.replay().await;
    assert_eq!((replay.fed, replay.done, replay.dead), (30, 20, 10), "nothing was skipped, nothing came twice");
    assert_eq!(scene.stage.ledger().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn of_two_feeders_one_goes_on() {
    let scene = Scene::new(50);
    let number = scene.begin(20, 1).await;
    let _process = scene.stage.start(ordered(), inside(&told(|_| Do::Done)));
    let (one, other) = tokio::join!(scene.run(ordered(), number, 20), scene.run(ordered(), number, 20));
    let mut ends = [one, other];
    ends.sort_by_key(|end| *end == FeedEnd::Finished);
    assert_eq!(ends, [FeedEnd::Elsewhere, FeedEnd::Finished]);
    scene.all_handled().await;
    assert_eq!((scene.replay().await.fed, scene.stage.ledger().len()), (50, 50));
}

/// Runs through every kind of interruption; in the end each message was enqueued once.
#[tokio::test(start_paused = true)]
async fn a_feeder_that_dies_at_any_step_loses_and_repeats_nothing() {
    let scene = Scene::new(40);
    let _process = scene.stage.start(ordered(), inside(&told(|_| Do::Done)));
    let number = scene.begin(1000, 1).await;
    let mut dead_feeders = 0;
    loop {
        // Each runner lives for one step. After every third step an operator stops and resumes the replay. Every fifth
        // step is cancelled in the middle.
        let mut feeder = scene.feeder(ordered(), number, 1000);
        dead_feeders += 1;
        if dead_feeders % 5 == 0 {
            let cut = tokio::time::timeout(Duration::ZERO, feeder.step(3)).await;
            drop(cut);
            continue;
        }
        let step = feeder.step(3).await.expect("nothing fails");
        if step == FeedStep::End(FeedEnd::Finished) {
            break;
        }
        if dead_feeders % 3 == 0 && scene.desk.stop_replay(CONSUMER, number).await.expect("the store answers") {
            assert!(scene.desk.resume_replay(CONSUMER, number, 1).await.expect("the store answers"));
        }
        // Some messages are handled meanwhile, others are not.
        tokio::time::sleep(Duration::from_millis(dead_feeders % 4 * 150)).await;
    }
    scene.all_handled().await;
    let replay = scene.replay().await;
    assert_eq!((replay.fed, replay.done), (40, 40));
    for key in ["k0", "k1", "k2"] {
        let numbers: Vec<usize> =
            of_key(&scene.stage.ledger(), key).iter().map(|text| text.parse().expect("a number")).collect();
        assert!(numbers.is_sorted() && numbers.windows(2).all(|pair| pair[0] < pair[1]), "{key}: {numbers:?}");
    }
}

/// Live messages of a key go behind those enqueued before they arrived, and keep their own order.
#[tokio::test(start_paused = true)]
async fn live_messages_of_a_replayed_key_stay_in_their_order() {
    let scene = Scene::new(30);
    let slow = told(|incoming| {
        let odd = incoming.payload().last().is_some_and(|byte| byte % 2 == 1);
        if odd { Do::DoneAfter(Duration::from_millis(120)) } else { Do::Done }
    });
    let _process = scene.stage.start(ordered(), inside(&slow));
    let number = scene.begin(20, 1).await;
    let live = async {
        for number in 0..60 {
            scene.stage.send("0", &format!("k{}", number % 3), &format!("live {number}"));
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    };
    let (end, ()) = tokio::join!(scene.run(ordered(), number, 20), live);
    assert_eq!(end, FeedEnd::Finished);
    until("all of it is handled", async || scene.stage.ledger().len() == 90).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let ledger = scene.stage.ledger();
    assert_eq!(ledger.len(), 90, "each effect once, the live one and the replayed one");
    for (key, first) in [("k0", 0), ("k1", 1), ("k2", 2)] {
        let (live, replayed): (Vec<String>, Vec<String>) =
            of_key(&ledger, key).into_iter().partition(|payload| payload.starts_with("live"));
        let expected: Vec<String> = (first..60).step_by(3).map(|number: i32| format!("live {number}")).collect();
        assert_eq!(live, expected);
        let expected: Vec<String> = (first..30).step_by(3).map(|number: i32| number.to_string()).collect();
        assert_eq!(replayed, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_live_is_handled_live_and_replayed() {
    let stage = Stage::new();
    let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
    stage.wire.put("0", raw.clone());
    let handler = crate::stage::fails(4);
    let _process = stage.start(ordered(), inside(&handler));
    let desk = stage.outbox.operator();
    let waits =
        async || desk.consumer(CONSUMER, 9).await.is_ok_and(|shown| shown.is_some_and(|it| it.queues.len() == 1));
    until("it waits in the retry table", waits).await;
    let logged = relevo_core::inbox::source::Logged {
        number: 1,
        at: crate::stage::BEGUN,
        raw,
        address: "orders".into(),
        lane: relevo_core::Lane::new("0"),
        place: Some(1),
    };
    let arrival = relevo_inbox::arrival(&ordered(), logged);
    let plan = Plan {
        consumer: CONSUMER.to_owned(),
        source: String::new(),
        count: 1,
        rate: 1,
        dead_max: 1,
        by: String::new(),
        reason: String::new(),
    };
    let number = desk.begin_replay(&plan).await.expect("the store answers");
    let portion = relevo_core::inbox::operate::Portion { messages: &[arrival], from: None, to: None };
    let fed: Result<_, StoreError> = desk.feed(CONSUMER, number, portion).await;
    assert_eq!(fed.expect("the store answers"), relevo_core::inbox::operate::Fed::Kept);
    until("both are handled", async || stage.ledger().len() == 2).await;
    assert_eq!(stage.ledger(), ["k:1", "k:1"]);
    let id: MessageId = desk.known(MessageId::v7(1, [7; 10])).await.expect("the store answers")[0].entry.id;
    assert_eq!(desk.known(id).await.expect("the store answers").len(), 2, "two entries, one for each");
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_is_stopped_under_a_worker_holds_back_nothing() {
    let scene = Scene::new(9);
    let number = scene.begin(1000, 1).await;
    scene.feeder(ordered(), number, 1000).step(6).await.expect("nothing fails");
    let slow = told(|_| Do::DoneAfter(Duration::from_secs(5)));
    let _process = scene.stage.start(ordered(), call(&slow));
    until("the first of each key is called for", async || slow.tried().len() == 3).await;
    let began = Instant::now();
    assert!(scene.desk.stop_replay(CONSUMER, number).await.expect("the store answers"));
    scene.stage.send("0", "k0", "live");
    until("what is live is handled", async || scene.stage.ledger().contains(&"k0:live".to_owned())).await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!(!scene.stage.ledger().contains(&"k0:3".to_owned()), "it was taken out");
}
