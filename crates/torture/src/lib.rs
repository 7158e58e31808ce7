//! Torture at the level of processes: producers that commit, roll back and vanish, several `relevo run` and several consumers,
//! killed and stopped and continued, a database that is killed too, and a broker that is killed, stopped and cut off. At the
//! end nothing is lost, nothing came that never committed, first appearances of each key are in commit order, and every
//! committed message has had one effect.

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
