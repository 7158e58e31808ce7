//! Processes that end at every point of a message's way, by `abort` and by SIGKILL.

use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::time::Duration;

use relevo_torture::ledger::{Running, Steady};
use rustix::process::Signal;
use tokio::time::sleep;

use crate::on::{On, Shape};
use crate::stage::{Stage, until};

/// Two processes end at a point while they hold messages. Returns the member that takes over.
async fn both_end(on: On, point: &str) -> (Stage, Running) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let (dies, stays) = (["--die", point, "--batch", "4"], ["--stay", point]);
    let (mut dying, mut staying) = tokio::join!(stage.process("dying", &dies), stage.process("staying", &stays));
    stage.send(48, 24).await;
    staying.until_says(&format!("at {point}")).await;
    staying.kill9().await;
    assert_eq!(dying.ended().await.signal(), Some(Signal::ABORT.as_raw()));
    let survivor = stage.start("survivor", Arc::new(Steady)).await;
    stage.until_all().await;
    (stage, survivor)
}

pub(crate) async fn what_died_before_its_handler_is_handled_by_another(on: On) {
    let (stage, survivor) = both_end(on, "before").await;
    let rows = stage.rows().await;
    assert!(rows.iter().all(|row| row.member == "survivor"), "nobody else handled anything");
    stage.finish([survivor], &[]).await;
}

pub(crate) async fn what_died_in_its_handler_did_not_happen(on: On) {
    let (stage, survivor) = both_end(on, "during").await;
    stage.finish([survivor], &[]).await;
}

pub(crate) async fn what_was_committed_and_not_acknowledged_is_a_repeat(on: On) {
    let (stage, survivor) = both_end(on, "committed").await;
    until("of each of the two at least one came again", async || survivor.stats().duplicates() >= 2).await;
    stage.finish([survivor], &[]).await;
}

/// The processes are killed at arbitrary moments.
pub(crate) async fn processes_killed_at_any_moment_cost_nothing(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    for round in 0..2_u64 {
        let names = [format!("a{round}"), format!("b{round}")];
        let (mut one, mut other) =
            tokio::join!(stage.process(&names[0], &["--batch", "3"]), stage.process(&names[1], &[]));
        stage.send(60, 12).await;
        sleep(Duration::from_millis(30 + 90 * round)).await;
        one.kill9().await;
        other.kill9().await;
    }
    let survivor = stage.start("survivor", Arc::new(Steady)).await;
    stage.until_all().await;
    stage.finish([survivor], &[]).await;
}
