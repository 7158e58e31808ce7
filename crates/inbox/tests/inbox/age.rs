//! Messages older than the inbox retention.

use std::time::Duration;

use relevo_core::inbox::operate::{DeadFilter, Mark, Operate as _};
use relevo_core::message::Headers;
use relevo_inbox::{Clock, Config};

use crate::stage::{BEGUN, Do, Stage, acknowledged, call, fails, inside, ordered, told, until};

const DAY: Duration = Duration::from_hours(24);

fn at(age: Duration) -> Config {
    Config { clock: Clock::new(move || BEGUN + age), ..ordered() }
}

#[tokio::test(start_paused = true)]
async fn a_message_older_than_the_inbox_remembers_is_a_dead_letter_unless_a_person_wants_it() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    let process = stage.start(Config { batch_max: 10, ..at(31 * DAY) }, inside(&fails(0)));
    acknowledged(&stage, 1).await;
    let dead = stage.dead().await;
    assert_eq!((dead[0].class.as_str(), dead[0].attempts, process.stats.expired()), ("expired", 0, 1));
    assert_eq!(stage.ledger().len(), 0);
    let mark = Mark {
        filter: DeadFilter::default(),
        dry_run: false,
        rate: None,
        by: "ana".to_owned(),
        note: "wanted".to_owned(),
    };
    assert_eq!(stage.outbox.operator().redrive(&mark).await.unwrap(), 1);
    until("it is handled", async || stage.ledger() == ["k:1"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_is_remembered_is_handled() {
    let stage = Stage::new();
    stage.send("0", "k", "1");
    let _process = stage.start(at(29 * DAY), inside(&fails(0)));
    acknowledged(&stage, 1).await;
    assert_eq!(stage.ledger(), ["k:1"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_handled_and_is_old_is_a_repeat_while_it_is_remembered() {
    let stage = Stage::new();
    let raw = stage.raw("OrderPlaced", "k", "1", Headers::new());
    stage.wire.put("0", raw.clone());
    let first = stage.start(at(DAY), inside(&fails(0)));
    acknowledged(&stage, 1).await;
    first.kill().await;
    stage.wire.put("0", raw);
    let second = stage.start_with(stage.wire.hand(1), at(31 * DAY), inside(&fails(0)));
    acknowledged(&stage, 2).await;
    assert_eq!((second.stats.duplicates(), stage.dead().await.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn one_that_was_being_called_for_when_its_process_died_and_is_too_old_now_is_a_dead_letter() {
    let stage = Stage::new();
    let (hangs, quick) = (told(|_| Do::Hang), told(|_| Do::Done));
    stage.send("0", "k", "1");
    let first = stage.start(at(DAY), call(&hangs));
    until("it is called for", async || !hangs.tried().is_empty()).await;
    first.kill().await;
    stage.wire.redeliver();
    let second = stage.start_with(stage.wire.hand(1), at(31 * DAY), call(&quick));
    acknowledged(&stage, 1).await;
    assert_eq!((stage.dead().await[0].class.as_str(), second.stats.expired()), ("expired", 1));
    assert_eq!(quick.tried().len(), 0);
}
