//! Maintains the connection for publishing, and reconnects when it is lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::ServerAddr;
use tokio::sync::watch;
use tracing::{info, warn};

use super::connection_task::{BrokerConnection, PublishConnection};
use crate::classify::Error;
use crate::config::Config;
use crate::connection;

/// The maximum number of servers that are used in addition to the configured ones.
const DISCOVERED_MAX: usize = 64;

/// A connection of this length counts as stable.
const STABLE_AFTER: Duration = Duration::from_secs(5);

/// Runs until it is dropped.
pub(crate) async fn maintain(config: Config, configured: Vec<ServerAddr>, state: watch::Sender<BrokerConnection>) {
    let mut servers = configured.clone();
    let mut failures = 0;
    loop {
        let server = servers[failures % servers.len()].clone();
        let why = match PublishConnection::open(&config, &server).await {
            Ok((session, ears)) => {
                info!(server = server.host(), port = server.port(), "connected to NATS");
                servers = known_servers(&configured, &session);
                let session = Arc::new(session);
                let began = Instant::now();
                state.send_replace(BrokerConnection::Up(Arc::clone(&session)));
                let why = session.run(ears, &config).await;
                // Keep the failure count if the server accepts and then closes connections, so that the pauses grow.
                if session.unconfirmed.has_stored() || began.elapsed() >= STABLE_AFTER {
                    failures = 0;
                }
                why
            }
            // That server is not in the configuration, so its TLS error is no configuration error.
            Err(error @ (Error::ServerCertificate(_) | Error::ClientCertificate(_) | Error::Tls(_)))
                if !configured.contains(&server) =>
            {
                warn!(server = server.host(), port = server.port(), error = %error_chain(&error), "a server of the cluster refuses us");
                Error::Disconnected
            }
            Err(error) => error,
        };
        if failures == 0 {
            warn!(server = server.host(), port = server.port(), error = %error_chain(&why), "no connection to NATS, trying again");
        }
        failures += 1;
        state.send_replace(BrokerConnection::Down(Arc::new(why)));
        tokio::time::sleep(reconnect_delay(failures, servers.len())).await;
    }
}

/// Every server is tried once before the pauses grow.
fn reconnect_delay(failures: usize, servers: usize) -> Duration {
    connection::pause(failures / servers + 1)
}

/// The configured servers, and those that the cluster announces.
fn known_servers(configured: &[ServerAddr], session: &PublishConnection) -> Vec<ServerAddr> {
    let mut servers = configured.to_vec();
    for url in session.client.server_info().connect_urls.iter().take(DISCOVERED_MAX) {
        match url.parse::<ServerAddr>() {
            Ok(server) if !servers.contains(&server) => servers.push(server),
            _ => {}
        }
    }
    servers
}

fn error_chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}
