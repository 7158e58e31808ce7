//! A process that is suspended during its work, past its lease, and resumed when another process has its lanes.

use std::sync::Arc;
use std::time::Duration;

use relevo_store_sqlite::connect_options;
use relevo_torture::ledger::Steady;
use sqlx::ConnectOptions as _;

use crate::on::{Kept, On, Shape, file_of};
use crate::process::Process;
use crate::stage::{Stage, until};

/// A process that is suspended while the first change is at a point.
async fn frozen_at(stage: &Stage, point: &str) -> Process {
    let mut process = stage.process("frozen", &["--stay", &format!("{point}@1"), "--stall-ms", "700"]).await;
    stage.send(24, 12).await;
    process.until_says(&format!("at {point}")).await;
    let handling = point == "during";
    until("it stands still without a file's lock", async || {
        process.freeze().await;
        let is_free = holds_no_lock(stage, handling).await;
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
async fn holds_no_lock(stage: &Stage, handling: bool) -> bool {
    let (store, broker) = (stage.backing.store_url(), stage.backing.broker(stage.on, &stage.consumer));
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
async fn come_back(mut process: Process) {
    process.thaw();
    process.go_on().await;
    process.leave().await;
}

async fn first_is_by(stage: &Stage, member: &str) {
    let rows = stage.rows().await;
    let first = rows.iter().find(|row| row.change == 1).expect("it is there");
    assert_eq!(first.member, member);
}

pub(crate) async fn a_process_frozen_before_its_handler_handles_nothing_that_another_did(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let process = frozen_at(&stage, "before").await;
    let other = stage.start("other", Arc::new(Steady)).await;
    stage.until_all().await;
    come_back(process).await;
    first_is_by(&stage, "other").await;
    stage.finish([other], &[]).await;
}

/// PostgreSQL ends an idle transaction. SQLite cannot: the suspended process holds its only lock, and all others wait
/// until it resumes.
pub(crate) async fn a_process_frozen_in_its_handler_commits_nothing_after_another_took_its_lane(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let process = frozen_at(&stage, "during").await;
    let other = stage.start("other", Arc::new(Steady)).await;
    if on.store == Kept::Sqlite {
        come_back(process).await;
        stage.until_all().await;
        first_is_by(&stage, "frozen").await;
    } else {
        stage.until_all().await;
        come_back(process).await;
        first_is_by(&stage, "other").await;
    }
    stage.finish([other], &[]).await;
}

/// The process could not acknowledge what it committed. The other member finds a duplicate.
pub(crate) async fn a_process_frozen_before_its_acknowledgement_keeps_its_one_effect(on: On) {
    let stage = Stage::set(on, Shape::Ordered).await;
    let process = frozen_at(&stage, "committed").await;
    let other = stage.start("other", Arc::new(Steady)).await;
    stage.until_all().await;
    until("the other met what was committed", async || other.stats().duplicates() > 0).await;
    come_back(process).await;
    first_is_by(&stage, "frozen").await;
    stage.finish([other], &[]).await;
}
