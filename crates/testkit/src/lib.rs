//! Finds or starts the real servers that the tests talk to.
//!
//! A missing server fails the test, with a sentence that says which command starts it; it never skips it.
//! Everything here may panic: its callers are tests.

mod account;
pub mod browser;
pub mod certs;
mod http;
mod installed;
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

pub use nats::NatsVersion;
pub use postgres::PgVersion;
pub use tls::ClientCertificate;
