//! NATS with JetStream: servers shared by all tests, and private servers that a test may kill.

mod cluster;
mod node;
mod private;
mod server;
mod settings;
mod version;

pub use cluster::Cluster;
pub use private::Private;
pub use server::Server;
pub use settings::Settings;
pub use version::NatsVersion;

/// A unique name for a stream, a bucket or a first subject token: `unique("orders")`.
pub fn unique(name: &str) -> String {
    format!("{name}_{}", uuid::Uuid::new_v4().simple())
}
