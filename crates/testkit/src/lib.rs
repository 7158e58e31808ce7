//! Finds or starts the real servers for the tests.
//!
//! A missing server fails the test, with a message that names the command that starts it. Tests are never skipped.
//! Everything here may panic: the callers are tests.

mod account;
pub mod browser;
pub mod certs;
mod http;
mod installed;
pub mod local_ports;
mod marked;
pub mod nats;
pub mod pgbouncer;
mod port;
pub mod postgres;
pub mod prometheus;
pub mod proxy;
pub mod rabbitmq;
mod scratch;
pub mod smtp;
mod tls;
mod unblocked;
pub mod walkthrough;

pub use nats::NatsVersion;
pub use postgres::PgVersion;
pub use tls::ClientCertificate;
