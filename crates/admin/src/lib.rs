//! The HTTP endpoints of a running process: startup, liveness and readiness probes, metrics, and rates.
//!
//! The process implements [`HealthSource`] from data that it already has; no request waits for a database or a broker.
//! [`LimitedListener`] keeps a port responsive even if a client opens connections without end. A service can use it for
//! its own port, too.

mod health;
mod limits;
mod server;
mod status;

pub use health::{DependencyCheck, HealthCheck, HealthReport};
pub use limits::{ConnectionLimits, LimitedConnection, LimitedListener};
pub use server::{BindError, HealthSource, Server, Token};
pub use status::{ConsumerRates, ProcessStatus, RelayRates};
