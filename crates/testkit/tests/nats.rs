//! The testkit's own promises about NATS.

use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings};

#[tokio::test]
async fn a_private_server_starts_stops_and_dies() {
    for version in NatsVersion::ALL {
        let server = Private::start(version, Settings::new().jetstream("max_file_store: 10MB")).await;
        server.kill9().await;
        server.start_again().await;
        server.stop().await;
        server.start_again().await;
        assert!(server.log().contains("Server is ready"));
    }
}
