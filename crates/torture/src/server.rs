//! The PostgreSQL server under a tortured database, and the proxy through which relays and consumers reach it.

use std::str::FromStr as _;
use std::time::Duration;

use relevo_testkit::postgres::{PgVersion, Private};
use relevo_testkit::proxy::CutProxy;
use sqlx::postgres::PgConnectOptions;
use tokio::time::sleep;

use crate::harms::Blow;
use relevo_core::random::SplitMix64;

/// A server of the run's own.
pub(crate) struct Server {
    server: Private,
    proxy: CutProxy,
}

impl Server {
    pub(crate) async fn start() -> Self {
        // Each process of a consumer has up to 17 connections, and a hundred are all that PostgreSQL gives by itself.
        let server = Private::start_with(PgVersion::V15, &[("max_connections", "300")]).await;
        let proxy = CutProxy::start(([127, 0, 0, 1], server.port()).into()).await;
        Self { server, proxy }
    }

    /// Without the proxy: for the applications, and for the judge.
    pub(crate) fn options(&self) -> PgConnectOptions {
        PgConnectOptions::from_str(&self.server.url()).expect("the testkit gives a URL")
    }

    /// Through the proxy.
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres?sslmode=disable", self.proxy.addr())
    }

    /// Does it; returns when the server is back. Stopped for `past`, it takes afterwards what was said to it meanwhile.
    pub(crate) async fn blow(&self, blow: Blow, past: Duration, random: &mut SplitMix64) {
        match blow {
            Blow::Kill => {
                self.server.kill9().await;
                sleep(Duration::from_millis(random.below(500).into())).await;
                self.server.start_again().await;
            }
            Blow::Freeze => {
                self.proxy.freeze();
                sleep(past).await;
                self.proxy.thaw();
            }
            Blow::Cut => self.proxy.cut().await,
        }
    }
}
