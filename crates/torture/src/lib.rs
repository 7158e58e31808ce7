//! Torture tests with real processes. Producers commit, roll back and disconnect. Several `relevo run` and several
//! consumers are killed, suspended and resumed. The database is killed; the broker is killed, suspended and
//! disconnected.
//!
//! At the end, no committed message is lost and no uncommitted one is published. First deliveries of each key are in
//! commit order, and every committed message has exactly one effect.

mod consumers;
mod database;
mod drain;
mod far;
mod harms;
pub mod ledger;
mod operator;
mod oracle;
mod process;
mod producers;
mod relays;
mod report;
mod server;
mod stage;
mod witness;

pub use consumers::ledger_beside;
pub use far::Far;
pub use oracle::{Arrival, Change, Effect, Findings, Judgement, Left, Mark, judge, judge_effects};
pub use report::{Deeds, Ended, Report, Struck};
pub use stage::{Plan, Victim, torture};
