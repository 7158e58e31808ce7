//! A process that is stopped in the middle of its work, past its lease, and continued when another has its lanes.

use std::sync::Arc;
use std::time::Duration;

use relevo_store_sqlite::connect_options;
use relevo_torture::ledger::Steady;
use sqlx::ConnectOptions as _;

use crate::on::{Kept, On, Shape, file_of};
use crate::process::Process;
use crate::stage::{Stage, until};

/// A process that is stopped with the first change at a point, and what it was sent.
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

/// Whether others can go on: a lock of a file that a frozen process holds nobody can take from it. A handler's own is not
/// looked at.
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

/// Continues it and lets it end in good order.
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

/// The database ends a transaction in which nothing happens. SQLite has nobody who could: its one lock is the frozen
/// process's, and everybody waits until it comes back.
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

/// What it committed it could not acknowledge; the other finds a repeat.
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
