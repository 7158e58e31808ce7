//! Thirty seconds of torture, half of them for each store; `cargo xtask torture` goes on for as long as one likes.

use std::time::Duration;

use relevo_torture::{Plan, Victim, torture};

async fn survives(victim: Victim) {
    let relevo = env!("CARGO_BIN_EXE_relevo").into();
    let plan = Plan { relevo, victim, seed: 1, write_for: Duration::from_secs(15) };
    let report = torture(&plan).await.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.judgement.is_sound(), "{report}");
    assert!(report.judgement.committed > 200, "there was something to lose: {report}");
    assert!(report.deeds.killed > 0 && report.deeds.frozen > 0, "something was done to it: {report}");
    assert!(victim == Victim::Sqlite || report.deeds.database_killed > 0, "to the database too: {report}");
}

#[tokio::test]
async fn postgres_loses_and_inverts_nothing_under_torture() {
    survives(Victim::Postgres).await;
}

#[tokio::test]
async fn sqlite_loses_and_inverts_nothing_under_torture() {
    survives(Victim::Sqlite).await;
}
