//! The testkit's own promises about RabbitMQ.

use relevo_testkit::rabbitmq::{Private, Server, Settings};

#[tokio::test]
async fn a_virtual_host_is_gone_after_its_drop() {
    let server = Server::shared();
    let (first, second) = (server.vhost().await, server.vhost().await);
    assert_ne!(first.name(), second.name());
    drop(first);
    drop(second);
}

#[tokio::test]
async fn a_private_server_starts_stops_and_dies() {
    let server = Private::start_with(Settings::new().management()).await;
    let vhost = server.vhost().await;
    server.kill9().await;
    server.start_again().await;
    assert!(server.ctl(&["list_vhosts"]).await.contains(vhost.name()));
    server.stop().await;
    server.start_again().await;
    assert!(server.ctl(&["list_vhosts"]).await.contains(vhost.name()));
}
