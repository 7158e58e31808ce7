//! A process that is suspended during its work, past its lease, and resumed when another process has its lanes.

use std::sync::Arc;
use std::time::Duration;

use relevo_store_sqlite::connect_options;
use relevo_torture::ledger::NoFault;
use sqlx::ConnectOptions as _;

use crate::backends::{Backends, OrderMode, StoreKind, file_of};
use crate::harness::{Harness, until};
use crate::process::Process;

/// A process that is suspended while the first change is at a point.
async fn suspended_at(harness: &Harness, point: &str) -> Process {
    let mut process = harness.process("suspended", &["--wait-at", &format!("{point}@1"), "--stall-ms", "700"]).await;
    harness.send(24, 12).await;
    process.until_prints(&format!("at {point}")).await;
    let handling = point == "during";
    until("it is suspended without a file lock", async || {
        process.freeze().await;
        let is_free = holds_no_lock(harness, handling).await;
        if !is_free {
            process.thaw();
        }
        is_free
    })
    .await;
    process
}

/// Whether others can continue: no process can take a file lock from a suspended process. The lock of a handler itself
/// is not checked.
async fn holds_no_lock(harness: &Harness, handling: bool) -> bool {
    let (store, broker) =
        (harness.resources.store_url(), harness.resources.broker(harness.backends, &harness.consumer));
    let files = [file_of(&store).filter(|_| !handling), file_of(&broker)];
    for file in files.into_iter().flatten() {
        let options = connect_options(file).busy_timeout(Duration::ZERO);
        let mut connection = options.connect().await.expect("a file");
        if sqlx::raw_sql("BEGIN IMMEDIATE; ROLLBACK").execute(&mut connection).await.is_err() {
            return false;
        }
    }
    true
}

/// Resumes the process, and stops it cleanly.
async fn resume_and_stop(mut process: Process) {
    process.thaw();
    process.proceed().await;
    process.leave().await;
}

async fn first_is_by(harness: &Harness, member: &str) {
    let rows = harness.rows().await;
    let first = rows.iter().find(|row| row.change == 1).expect("it has a row");
    assert_eq!(first.member, member);
}

pub(crate) async fn a_process_suspended_before_its_handler_repeats_nothing(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let process = suspended_at(&harness, "before").await;
    let other = harness.start("other", Arc::new(NoFault)).await;
    harness.until_all().await;
    resume_and_stop(process).await;
    first_is_by(&harness, "other").await;
    harness.finish([other], &[]).await;
}

/// PostgreSQL ends an idle transaction. SQLite cannot: the suspended process holds its only lock, and all others wait
/// until it resumes.
pub(crate) async fn a_process_suspended_in_its_handler_commits_nothing_after_it_lost_its_lane(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let process = suspended_at(&harness, "during").await;
    let other = harness.start("other", Arc::new(NoFault)).await;
    if backends.store == StoreKind::Sqlite {
        resume_and_stop(process).await;
        harness.until_all().await;
        first_is_by(&harness, "suspended").await;
    } else {
        harness.until_all().await;
        resume_and_stop(process).await;
        first_is_by(&harness, "other").await;
    }
    harness.finish([other], &[]).await;
}

/// The process could not acknowledge what it committed. The other member finds a duplicate.
pub(crate) async fn a_process_suspended_before_its_acknowledgement_keeps_its_one_effect(backends: Backends) {
    let harness = Harness::new(backends, OrderMode::Ordered).await;
    let process = suspended_at(&harness, "committed").await;
    let other = harness.start("other", Arc::new(NoFault)).await;
    harness.until_all().await;
    until("the other received the committed message again", async || other.status().duplicates() > 0).await;
    resume_and_stop(process).await;
    first_is_by(&harness, "suspended").await;
    harness.finish([other], &[]).await;
}
