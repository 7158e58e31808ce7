//! A quarter of a minute of torture for each store and each broker, without and with consumers; `cargo xtask torture` goes on
//! for as long as one likes.

use std::path::Path;
use std::time::Duration;

use relevo_torture::{Deeds, Far, Findings, Plan, Report, Victim, ledger_beside, torture};

fn plan(victim: Victim, far: Far) -> Plan {
    Plan {
        relevo: env!("CARGO_BIN_EXE_relevo").into(),
        ledger: None,
        victim,
        far,
        seed: 1,
        write_for: Duration::from_secs(15),
        messages: 0,
        faults: 0,
        careless: false,
    }
}

/// The same, with consumers on stage, which lengthen the end: so there is less of it.
fn plan_with_consumers(victim: Victim, far: Far) -> Plan {
    let ledger = ledger_beside(Path::new(env!("CARGO_BIN_EXE_relevo"))).unwrap_or_else(|error| panic!("{error:#}"));
    Plan { ledger: Some(ledger), write_for: Duration::from_secs(12), ..plan(victim, far) }
}

async fn run(plan: &Plan) -> Report {
    torture(plan).await.unwrap_or_else(|error| panic!("{error:#}"))
}

async fn survives(plan: Plan) -> Report {
    let report = run(&plan).await;
    assert!(report.is_sound(), "{report}");
    assert!(report.judgement.committed > 100, "there was something to lose: {report}");
    let Deeds { relays, consumers, database, .. } = report.deeds;
    assert!(relays.killed > 0 && relays.frozen > 0, "something was done to it: {report}");
    assert!(plan.victim == Victim::Sqlite || database.killed > 0, "to the database too: {report}");
    if plan.ledger.is_some() {
        assert!(consumers.killed > 0 && consumers.frozen > 0 && consumers.left > 0, "and to consumers: {report}");
        assert!(report.findings.iter().any(|found| found.redriven > 0), "dead letters were redriven: {report}");
    }
    report
}

/// Each kind of harm at least once to everybody who can be harmed.
fn each_kind(plan: Plan) -> Plan {
    Plan { faults: if plan.ledger.is_some() { 12 } else { 9 }, ..plan }
}

fn assert_broker_was_harmed(report: &Report) {
    let broker = report.deeds.broker;
    assert!(broker.killed > 0 && broker.frozen > 0 && broker.cut > 0, "{report}");
}

#[tokio::test]
async fn postgres_loses_and_inverts_nothing_under_torture() {
    survives(plan(Victim::Postgres, Far::Embedded)).await;
}

#[tokio::test]
async fn sqlite_loses_and_inverts_nothing_under_torture() {
    survives(plan(Victim::Sqlite, Far::Embedded)).await;
}

#[tokio::test]
async fn nothing_is_lost_or_inverted_on_the_way_to_a_tortured_rabbitmq() {
    assert_broker_was_harmed(&survives(each_kind(plan(Victim::Postgres, Far::RabbitMq))).await);
}

#[tokio::test]
async fn nothing_is_lost_or_inverted_on_the_way_to_a_tortured_nats() {
    assert_broker_was_harmed(&survives(each_kind(plan(Victim::Postgres, Far::Nats))).await);
}

#[tokio::test]
async fn every_committed_message_has_one_effect_in_postgres_under_torture() {
    survives(plan_with_consumers(Victim::Postgres, Far::Embedded)).await;
}

#[tokio::test]
async fn every_committed_message_has_one_effect_in_sqlite_under_torture() {
    survives(plan_with_consumers(Victim::Sqlite, Far::Embedded)).await;
}

#[tokio::test]
async fn every_committed_message_has_one_effect_behind_a_tortured_rabbitmq() {
    assert_broker_was_harmed(&survives(each_kind(plan_with_consumers(Victim::Postgres, Far::RabbitMq))).await);
}

#[tokio::test]
async fn every_committed_message_has_one_effect_behind_a_tortured_nats() {
    assert_broker_was_harmed(&survives(each_kind(plan_with_consumers(Victim::Postgres, Far::Nats))).await);
}

#[tokio::test]
async fn consumers_that_forget_or_acknowledge_early_are_found_out() {
    let report = run(&Plan { careless: true, ..plan_with_consumers(Victim::Postgres, Far::Embedded) }).await;
    assert!(report.judgement.is_sound(), "the relays are as good as ever: {report}");
    let of = |name: &str| -> &Findings { report.findings.iter().find(|found| found.consumer == name).unwrap() };
    assert!(!of("ordered").twice.is_empty(), "it forgot what it did: {report}");
    assert!(!of("unordered").lost.is_empty(), "it acknowledged before it committed: {report}");
}
