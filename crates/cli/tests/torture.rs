//! A quarter of a minute of torture for each store and each broker; `cargo xtask torture` goes on for as long as one
//! likes.

use std::time::Duration;

use relevo_torture::{Far, Plan, Report, Victim, torture};

async fn survives(victim: Victim, far: Far, faults: u32) -> Report {
    let relevo = env!("CARGO_BIN_EXE_relevo").into();
    let plan = Plan { relevo, victim, far, seed: 1, write_for: Duration::from_secs(15), messages: 0, faults };
    let report = torture(&plan).await.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.judgement.is_sound(), "{report}");
    assert!(report.judgement.committed > 200, "there was something to lose: {report}");
    assert!(report.deeds.killed > 0 && report.deeds.frozen > 0, "something was done to it: {report}");
    assert!(victim == Victim::Sqlite || report.deeds.database_killed > 0, "to the database too: {report}");
    report
}

/// Each kind of harm at least once.
const EACH_KIND: u32 = 7;

#[tokio::test]
async fn postgres_loses_and_inverts_nothing_under_torture() {
    survives(Victim::Postgres, Far::Embedded, 0).await;
}

#[tokio::test]
async fn sqlite_loses_and_inverts_nothing_under_torture() {
    survives(Victim::Sqlite, Far::Embedded, 0).await;
}

#[tokio::test]
async fn nothing_is_lost_or_inverted_on_the_way_to_a_tortured_rabbitmq() {
    let deeds = survives(Victim::Postgres, Far::RabbitMq, EACH_KIND).await.deeds;
    assert!(deeds.broker_killed > 0 && deeds.broker_frozen > 0 && deeds.connections_cut > 0, "{deeds:?}");
}

#[tokio::test]
async fn nothing_is_lost_or_inverted_on_the_way_to_a_tortured_nats() {
    let deeds = survives(Victim::Postgres, Far::Nats, EACH_KIND).await.deeds;
    assert!(deeds.broker_killed > 0 && deeds.broker_frozen > 0 && deeds.connections_cut > 0, "{deeds:?}");
}
