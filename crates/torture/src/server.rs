//! The PostgreSQL server under test, and the proxy between it and the relays and consumers.

use std::str::FromStr as _;
use std::time::Duration;

use relevo_testkit::postgres::{PgVersion, Private};
use relevo_testkit::proxy::CutProxy;
use sqlx::postgres::PgConnectOptions;
use tokio::time::sleep;

use crate::faults::ServerFault;
use relevo_core::random::SplitMix64;

/// A private server.
pub(crate) struct Server {
    server: Private,
    proxy: CutProxy,
}

impl Server {
    pub(crate) async fn start() -> Self {
        // Each consumer process uses up to 17 connections. PostgreSQL's default limit is 100.
        let server = Private::start_with(PgVersion::V15, &[("max_connections", "300")]).await;
        let proxy = CutProxy::start(([127, 0, 0, 1], server.port()).into()).await;
        Self { server, proxy }
    }

    /// Connection options without the proxy, for the applications and the oracle.
    pub(crate) fn options(&self) -> PgConnectOptions {
        PgConnectOptions::from_str(&self.server.url()).expect("the testkit gives a URL")
    }

    /// The URL through the proxy.
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres?sslmode=disable", self.proxy.addr())
    }

    /// Injects a fault, and returns when the server is back. After a freeze of length `past`, the server receives the
    /// bytes that were held back.
    pub(crate) async fn fault(&self, fault: ServerFault, past: Duration, random: &mut SplitMix64) {
        match fault {
            ServerFault::Kill => {
                self.server.kill9().await;
                sleep(Duration::from_millis(random.below(500).into())).await;
                self.server.start_again().await;
            }
            ServerFault::Suspend => {
                self.proxy.freeze();
                sleep(past).await;
                self.proxy.thaw();
            }
            ServerFault::Disconnect => self.proxy.cut().await,
        }
    }
}
