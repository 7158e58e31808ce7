//! Processes that end at every point of a message's way, by `abort` and by SIGKILL.

use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::time::Duration;

use relevo_torture::ledger::{NoFault, RunningMember};
use rustix::process::Signal;
use tokio::time::sleep;

use crate::backends::{Backends, OrderMode};
use crate::harness::{Harness, until};

/// Two processes end at a point while they hold messages. Returns the member that takes over.
async fn both_end(backends: Backends, point: &str) -> (Harness, RunningMember) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let (dies, stays) = (["--abort-at", point, "--batch", "4"], ["--wait-at", point]);
    let (mut dying, mut staying) = tokio::join!(harness.process("dying", &dies), harness.process("staying", &stays));
    harness.send(48, 24).await;
    staying.until_prints(&format!("at {point}")).await;
    staying.kill9().await;
    assert_eq!(dying.ended().await.signal(), Some(Signal::ABORT.as_raw()));
    let survivor = harness.start("survivor", Arc::new(NoFault)).await;
    harness.until_all().await;
    (harness, survivor)
}

pub(crate) async fn a_message_whose_process_died_before_its_handler_is_handled_by_another(backends: Backends) {
    let (harness, survivor) = both_end(backends, "before").await;
    let rows = harness.rows().await;
    assert!(rows.iter().all(|row| row.member == "survivor"), "only the survivor handled messages");
    harness.finish([survivor], &[]).await;
}

pub(crate) async fn a_message_whose_process_died_in_its_handler_has_no_effect(backends: Backends) {
    let (harness, survivor) = both_end(backends, "during").await;
    harness.finish([survivor], &[]).await;
}

pub(crate) async fn a_committed_message_without_acknowledgement_is_a_duplicate(backends: Backends) {
    let (harness, survivor) = both_end(backends, "committed").await;
    until("messages of both were delivered again", async || survivor.status().duplicates() >= 2).await;
    harness.finish([survivor], &[]).await;
}

/// The processes are killed at arbitrary moments.
pub(crate) async fn processes_killed_at_any_moment_lose_nothing(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    for round in 0..2_u64 {
        let names = [format!("a{round}"), format!("b{round}")];
        let (mut one, mut other) =
            tokio::join!(harness.process(&names[0], &["--batch", "3"]), harness.process(&names[1], &[]));
        harness.send(60, 12).await;
        sleep(Duration::from_millis(30 + 90 * round)).await;
        one.kill9().await;
        other.kill9().await;
    }
    let survivor = harness.start("survivor", Arc::new(NoFault)).await;
    harness.until_all().await;
    harness.finish([survivor], &[]).await;
}
