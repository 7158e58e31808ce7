//! A quarter of a minute of torture for each store and each broker, without and with consumers; `cargo xtask torture` goes on
//! for as long as one likes.

use std::path::Path;
use std::time::Duration;

use relevo_torture::{BrokerKind, ConsumerFindings, FaultCounts, Plan, Report, StoreKind, ledger_beside, torture};

fn plan(store: StoreKind, broker: BrokerKind) -> Plan {
    Plan {
        relevo: env!("CARGO_BIN_EXE_relevo").into(),
        ledger: None,
        store,
        broker,
        seed: 1,
        write_for: Duration::from_secs(15),
        messages: 0,
        faults: 0,
        broken_consumers: false,
    }
}

/// The same, with consumers, which lengthen the end, and a shorter time of writing.
fn plan_with_consumers(store: StoreKind, broker: BrokerKind) -> Plan {
    let ledger = ledger_beside(Path::new(env!("CARGO_BIN_EXE_relevo"))).unwrap_or_else(|error| panic!("{error:#}"));
    Plan { ledger: Some(ledger), write_for: Duration::from_secs(12), ..plan(store, broker) }
}

async fn run(plan: &Plan) -> Report {
    torture(plan).await.unwrap_or_else(|error| panic!("{error:#}"))
}

async fn survives(plan: Plan) -> Report {
    let report = run(&plan).await;
    assert!(report.is_sound(), "{report}");
    assert!(report.broker_findings.committed > 100, "enough messages were committed: {report}");
    let FaultCounts { relays, consumers, database, .. } = report.fault_counts;
    assert!(relays.killed > 0 && relays.suspended > 0, "relays were killed and suspended: {report}");
    assert!(plan.store == StoreKind::Sqlite || database.killed > 0, "the database was killed: {report}");
    if plan.ledger.is_some() {
        assert!(
            consumers.killed > 0 && consumers.suspended > 0 && consumers.stopped > 0,
            "consumers had every fault: {report}"
        );
        assert!(
            report.consumer_findings.iter().any(|found| found.redriven > 0),
            "dead letters were redriven: {report}"
        );
    }
    report
}

/// Requires each kind of fault at least once.
fn each_kind(plan: Plan) -> Plan {
    Plan { faults: if plan.ledger.is_some() { 12 } else { 9 }, ..plan }
}

fn assert_broker_had_faults(report: &Report) {
    let broker = report.fault_counts.broker;
    assert!(broker.killed > 0 && broker.suspended > 0 && broker.disconnected > 0, "{report}");
}

#[tokio::test]
async fn postgres_loses_and_inverts_nothing_under_torture() {
    survives(plan(StoreKind::Postgres, BrokerKind::Embedded)).await;
}

#[tokio::test]
async fn sqlite_loses_and_inverts_nothing_under_torture() {
    survives(plan(StoreKind::Sqlite, BrokerKind::Embedded)).await;
}

#[tokio::test]
async fn nothing_is_lost_or_inverted_on_the_way_to_a_tortured_rabbitmq() {
    assert_broker_had_faults(&survives(each_kind(plan(StoreKind::Postgres, BrokerKind::RabbitMq))).await);
}

#[tokio::test]
async fn nothing_is_lost_or_inverted_on_the_way_to_a_tortured_nats() {
    assert_broker_had_faults(&survives(each_kind(plan(StoreKind::Postgres, BrokerKind::Nats))).await);
}

#[tokio::test]
async fn every_committed_message_has_one_effect_in_postgres_under_torture() {
    survives(plan_with_consumers(StoreKind::Postgres, BrokerKind::Embedded)).await;
}

#[tokio::test]
async fn every_committed_message_has_one_effect_in_sqlite_under_torture() {
    survives(plan_with_consumers(StoreKind::Sqlite, BrokerKind::Embedded)).await;
}

#[tokio::test]
async fn every_committed_message_has_one_effect_behind_a_tortured_rabbitmq() {
    assert_broker_had_faults(
        &survives(each_kind(plan_with_consumers(StoreKind::Postgres, BrokerKind::RabbitMq))).await,
    );
}

#[tokio::test]
async fn every_committed_message_has_one_effect_behind_a_tortured_nats() {
    assert_broker_had_faults(&survives(each_kind(plan_with_consumers(StoreKind::Postgres, BrokerKind::Nats))).await);
}

#[tokio::test]
async fn consumers_that_forget_or_acknowledge_early_are_found_out() {
    let report =
        run(&Plan { broken_consumers: true, ..plan_with_consumers(StoreKind::Postgres, BrokerKind::Embedded) }).await;
    assert!(report.broker_findings.is_sound(), "the relays made no error: {report}");
    let of = |name: &str| -> &ConsumerFindings {
        report.consumer_findings.iter().find(|found| found.consumer == name).unwrap()
    };
    assert!(!of("ordered").repeated.is_empty(), "it lost its inbox: {report}");
    assert!(!of("unordered").lost.is_empty(), "it acknowledged before it committed: {report}");
}
