//! What a running relevo tells over HTTP: whether it has started, lives and is ready, and its
//! metrics.
//!
//! The process implements [`Observe`] from what it knows already; nothing here waits for a database or a broker.

mod report;
mod server;

pub use report::{Check, Part, Report};
pub use server::{Error, METRICS_TYPE, Observe, Server, Token};
