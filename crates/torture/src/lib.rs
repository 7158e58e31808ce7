//! Torture tests with real processes. Producers commit, roll back and disconnect. Several `relevo run` and several
//! consumers are killed, suspended and resumed. The database is killed; the broker is killed, suspended and
//! disconnected.
//!
//! At the end, no committed message is lost and no uncommitted one is published. First deliveries of each key are in
//! commit order, and every committed message has exactly one effect.

mod broker;
mod consumer_state;
mod consumers;
mod database;
mod drain;
mod faults;
pub mod ledger;
mod operator;
mod oracle;
mod process;
mod producers;
mod relays;
mod report;
mod run;
mod server;

pub use broker::BrokerKind;
pub use consumers::ledger_beside;
pub use oracle::{
    BrokerFindings, Change, ConsumerFindings, ConsumerState, Effect, LaneMark, StoredMessage, check_deliveries,
    check_effects,
};
pub use report::{FaultCounts, ProcessFaultCounts, Report, ServerFaultCounts};
pub use run::{Plan, StoreKind, torture};
