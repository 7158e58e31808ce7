//! All tests that need a PostgreSQL server, in one program: it links once, and tests share their support code.

#[path = "postgres/conformance.rs"]
mod conformance;
#[path = "postgres/emit.rs"]
mod emit;
#[path = "postgres/every_inbox_call.rs"]
mod every_inbox_call;
#[path = "postgres/examine.rs"]
mod examine;
#[path = "postgres/grants.rs"]
mod grants;
#[path = "postgres/harness.rs"]
mod harness;
#[path = "postgres/inbox_conformance.rs"]
mod inbox_conformance;
#[path = "postgres/inbox_faults.rs"]
mod inbox_faults;
#[path = "postgres/inbox_grants.rs"]
mod inbox_grants;
#[path = "postgres/inbox_harness.rs"]
mod inbox_harness;
#[path = "postgres/inbox_plans.rs"]
mod inbox_plans;
#[path = "postgres/inbox_python.rs"]
mod inbox_python;
#[path = "postgres/inbox_round_trips.rs"]
mod inbox_round_trips;
#[path = "postgres/inbox_rules.rs"]
mod inbox_rules;
#[path = "postgres/inspect.rs"]
mod inspect;
#[path = "postgres/migrated_database.rs"]
mod migrated_database;
#[path = "postgres/migrations.rs"]
mod migrations;
#[path = "postgres/outbox_view.rs"]
mod outbox_view;
#[path = "postgres/relay.rs"]
mod relay;
#[path = "postgres/relay_failures.rs"]
mod relay_failures;
#[path = "postgres/relay_faults.rs"]
mod relay_faults;
#[path = "postgres/relay_leases.rs"]
mod relay_leases;
#[path = "postgres/relay_support.rs"]
mod relay_support;
#[path = "postgres/replay.rs"]
mod replay;
#[path = "postgres/rules_a.rs"]
mod rules_a;
#[path = "postgres/rules_a_sequence.rs"]
mod rules_a_sequence;
#[path = "postgres/rules_a_servers.rs"]
mod rules_a_servers;
#[path = "postgres/rules_a_stress.rs"]
mod rules_a_stress;
#[path = "postgres/rules_b.rs"]
mod rules_b;
#[path = "postgres/rules_c.rs"]
mod rules_c;
#[path = "postgres/rules_c_parking.rs"]
mod rules_c_parking;
#[path = "postgres/rules_d.rs"]
mod rules_d;
#[path = "postgres/rules_d_restore.rs"]
mod rules_d_restore;
#[path = "postgres/rules_f.rs"]
mod rules_f;
#[path = "postgres/sample.rs"]
mod sample;
#[path = "postgres/sql_support.rs"]
mod sql_support;
#[path = "postgres/tail.rs"]
mod tail;
#[path = "postgres/vanished_peer.rs"]
mod vanished_peer;
#[path = "postgres/verify.rs"]
mod verify;
