//! A quarter of a minute of torture for each store and each broker; `cargo xtask torture` goes on for as long as one
//! likes.

use std::time::Duration;

use relevo_torture::{Far, Plan, Victim, torture};

async fn survives(victim: Victim, far: Far) {
    let relevo = env!("CARGO_BIN_EXE_relevo").into();
    let plan = Plan { relevo, victim, far, seed: 1, write_for: Duration::from_secs(15), messages: 0, faults: 0 };
    let report = torture(&plan).await.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.judgement.is_sound(), "{report}");
    assert!(report.judgement.committed > 200, "there was something to lose: {report}");
    assert!(report.deeds.killed > 0 && report.deeds.frozen > 0, "something was done to it: {report}");
    assert!(victim == Victim::Sqlite || report.deeds.database_killed > 0, "to the database too: {report}");
}

#[tokio::test]
async fn postgres_loses_and_inverts_nothing_under_torture() {
    survives(Victim::Postgres, Far::Embedded).await;
}

#[tokio::test]
async fn sqlite_loses_and_inverts_nothing_under_torture() {
    survives(Victim::Sqlite, Far::Embedded).await;
}
