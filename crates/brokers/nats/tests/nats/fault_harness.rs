//! The NATS harness for the fault suite: behind a proxy, with a private server.

use std::time::Duration;

use async_nats::jetstream::{self, stream};
use async_trait::async_trait;
use relevo_broker_nats::{Config, Publisher};
use relevo_conformance::broker::faults::{Fault, FaultHarness};
use relevo_conformance::broker::harness::{BrokerHarness, Guarantees, within_timeout};
use relevo_core::RawMessage;
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings};
use relevo_testkit::proxy::{CutProxy, Direction};

use crate::harness::{STREAM, catch_all_stream, client, create_stream, open, stored};

/// The message limit of the stream that a case fills: more than half of the messages, and less than those before the
/// fault.
const MESSAGES_MAX: u64 = 1_600;
/// The byte limit of the stream in the memory case.
const STREAM_BYTES_MAX: i64 = 500_000;
/// The storage limit of the server in the disk case.
const FILE_STORE_LIMIT: &str = "max_file_store: 2097152";
const FILLER_BYTES: usize = 1_600_000;

pub(crate) struct FaultyServer {
    server: Private,
    proxy: CutProxy,
}

pub(crate) async fn newest() -> FaultyServer {
    start(NatsVersion::V2_15).await
}

pub(crate) async fn oldest() -> FaultyServer {
    start(NatsVersion::V2_9).await
}

async fn start(version: NatsVersion) -> FaultyServer {
    // The thread of a test has the name of the test. The storage limit must be set when the server starts.
    let named = |part| std::thread::current().name().is_some_and(|name| name.contains(part));
    let settings = if named("short_of_disk") { Settings::new().jetstream(FILE_STORE_LIMIT) } else { Settings::new() };
    let server = Private::start(version, settings).await;
    let mut config = stream::Config { discard: stream::DiscardPolicy::New, ..catch_all_stream() };
    if named("full") {
        config.max_messages = i64::try_from(MESSAGES_MAX).expect("a small number");
    }
    if named("short_of_memory") {
        config.max_bytes = STREAM_BYTES_MAX;
    }
    create_stream(&server, config).await;
    if named("short_of_disk") {
        fill_server(&server).await;
    }
    let proxy = CutProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    FaultyServer { server, proxy }
}

/// Uses most of the server's storage.
async fn fill_server(server: &Private) {
    let config = stream::Config {
        name: "ballast".to_owned(),
        subjects: vec!["ballast".to_owned()],
        ..stream::Config::default()
    };
    create_stream(server, config).await;
    let jetstream = jetstream::new(client(server).await);
    for part in vec![0; FILLER_BYTES].chunks(500_000) {
        let stored = jetstream.publish("ballast", part.to_vec().into()).await.expect("sent");
        stored.await.expect("stored");
    }
}

impl FaultyServer {
    /// Waits until the stream stops growing.
    async fn wait_until_full(&self) {
        let jetstream = jetstream::new(client(&self.server).await);
        let mut before = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let stream = jetstream.get_stream(STREAM).await.expect("the stream exists");
            let now = stream.cached_info().state.messages;
            if now == before && now > 0 {
                return;
            }
            before = now;
        }
    }

    /// Removes the limits of the stream.
    async fn remove_limits(&self) {
        let config = stream::Config { discard: stream::DiscardPolicy::New, ..catch_all_stream() };
        jetstream::new(client(&self.server).await).update_stream(config).await.expect("a wider stream");
    }
}

#[async_trait]
impl BrokerHarness for FaultyServer {
    type Broker = Publisher;

    async fn broker(&self) -> Publisher {
        open(Config::new(self.server.url())).await
    }

    async fn stored(&self, address: &str) -> Vec<RawMessage> {
        let stored = stored(&self.server, STREAM).await;
        stored.into_iter().filter(|(subject, _)| subject == address).map(|(_, raw)| raw).collect()
    }

    async fn kill_and_restart(&mut self) {
        self.server.kill9().await;
        self.server.start_again().await;
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { survives_crash: true, deduplicates: true }
    }
}

#[async_trait]
impl FaultHarness for FaultyServer {
    async fn publisher_through_proxy(&self) -> Publisher {
        let second = Duration::from_secs(1);
        let url = format!("nats://{}", self.proxy.addr());
        open(Config { confirm_timeout: second, connect_timeout: second, ..Config::new(url) }).await
    }

    async fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::Suspended => self.server.pause().await,
            Fault::Killed => self.server.kill9().await,
            Fault::ConnectionsCut => self.proxy.cut().await,
            Fault::Unreachable => self.proxy.block().await,
            Fault::ResponsesLost => self.proxy.stall(Direction::ToClient),
            Fault::Slow => {
                self.proxy.delay(Duration::from_millis(20));
                self.proxy.throttle(50_000);
            }
            // NATS has no alarms. The closest equivalents are the byte limit of a stream and the storage limit of the
            // server.
            Fault::Full | Fault::MemoryAlarm | Fault::DiskAlarm => within_timeout(self.wait_until_full()).await,
        }
    }

    async fn clear(&mut self, fault: Fault) {
        match fault {
            Fault::Suspended => self.server.resume().await,
            Fault::Killed => self.server.start_again().await,
            Fault::ConnectionsCut => {}
            Fault::Unreachable => self.proxy.unblock(),
            Fault::ResponsesLost => {
                self.proxy.cut().await;
                self.proxy.flow(Direction::ToClient);
            }
            Fault::Slow => {
                self.proxy.delay(Duration::ZERO);
                self.proxy.unthrottle();
            }
            Fault::Full | Fault::MemoryAlarm => self.remove_limits().await,
            Fault::DiskAlarm => {
                let jetstream = jetstream::new(client(&self.server).await);
                jetstream.delete_stream("ballast").await.expect("the ballast is deleted");
            }
        }
    }
}
