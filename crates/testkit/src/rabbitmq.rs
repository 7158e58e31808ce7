//! RabbitMQ: a server shared by all tests, and private servers that a test may kill.

mod cluster;
mod epmd;
mod node;
mod private;
mod server;
mod settings;
mod vhost;

pub use cluster::Cluster;
pub use private::Private;
pub use server::Server;
pub use settings::Settings;
pub use vhost::Vhost;
