//! Torture at the level of processes: producers that commit, roll back and vanish, several `relevo run`, killed and
//! stopped and continued, a database that is killed too, and a broker that is killed, stopped and cut off. At the end nothing is lost, nothing came that never
//! committed, and first appearances of each key are in commit order.

mod database;
mod far;
mod harms;
pub mod ledger;
mod oracle;
mod process;
mod producers;
mod random;
mod relays;
mod report;
mod stage;

pub use far::Far;
pub use oracle::{Arrival, Change, Judgement, judge};
pub use report::{Deeds, Report};
pub use stage::{Plan, Victim, torture};
