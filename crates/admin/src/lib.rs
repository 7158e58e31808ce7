//! The HTTP endpoints of a running relevo: startup, liveness and readiness probes, and metrics.
//!
//! The process implements [`Observe`] from data that it already has; no request waits for a database or a broker.
//! [`Limited`] keeps a port responsive even if a client opens connections without end. A service can use it for its own
//! port, too.

mod connections;
mod report;
mod server;

pub use connections::{Connection, Limited, Limits};
pub use report::{Check, Part, Report};
pub use server::{Error, Observe, Server, Token};
