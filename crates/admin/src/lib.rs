//! What a running relevo tells over HTTP: whether it has started, lives and is ready, and its
//! metrics.
//!
//! The process implements [`Observe`] from what it knows already; nothing here waits for a database or a broker. [`Limited`] is what
//! keeps the port open to others though somebody opens connections without end, for a service's own port, too.

mod connections;
mod report;
mod server;

pub use connections::{Connection, Limited, Limits};
pub use report::{Check, Part, Report};
pub use server::{Error, METRICS_TYPE, Observe, Server, Token};
