//! The NATS harness for the consumer suite: a private server for each case, and groups of eight lanes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use async_trait::async_trait;
use bytes::Bytes;
use relevo_broker_nats::{Config, ConsumerOptions, Group, GroupConsumer, Publisher, consumer, declare_group};
use relevo_conformance::broker::harness::{ADDRESS, BrokerHarness, ConsumerHarness, Guarantees};
use relevo_core::RawMessage;
use relevo_core::message::Headers;
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings};
use relevo_testkit::proxy::CutProxy;
use tokio::task::JoinSet;

use crate::harness::{client, create_stream, stored};

pub(crate) const STREAM: &str = "all";
pub(crate) const LANES: u16 = 8;
/// Longer than any test case, so that only [`Lanes::expire`] ends a lease.
const LEASE: Duration = Duration::from_mins(5);

/// A server with one stream for all addresses.
pub(crate) struct Lanes {
    pub(crate) server: Private,
    /// One proxy for each consumer.
    proxies: Mutex<Vec<Arc<CutProxy>>>,
    resuming: Mutex<JoinSet<()>>,
}

pub(crate) async fn newest() -> Lanes {
    start(NatsVersion::V2_15).await
}

pub(crate) async fn oldest() -> Lanes {
    start(NatsVersion::V2_9).await
}

pub(crate) async fn start(version: NatsVersion) -> Lanes {
    let server = Private::start(version, Settings::new()).await;
    let subjects = ["orders.*", "other.*", "orders-not.*"].map(str::to_owned).to_vec();
    create_stream(&server, stream::Config { name: STREAM.to_owned(), subjects, ..stream::Config::default() }).await;
    Lanes { server, proxies: Mutex::default(), resuming: Mutex::default() }
}

impl Lanes {
    pub(crate) fn config(&self) -> Config {
        Config { lanes: Some(LANES), ..Config::new(self.server.url()) }
    }

    pub(crate) async fn jetstream(&self) -> jetstream::Context {
        jetstream::new(client(&self.server).await)
    }

    /// Expires every lease of the group, as time would. It rewrites each record without a lease and deletes the
    /// members. The owners are not notified.
    pub(crate) async fn expire_leases(&self, group: &str) {
        let jetstream = self.jetstream().await;
        let bucket = jetstream.get_stream("KV_relevo-lanes").await.expect("the bucket");
        let prefix = format!("$KV.relevo-lanes.{STREAM}.{group}");
        bucket.purge().filter(format!("{prefix}.member.*")).await.expect("forgotten");
        for lane in 0..LANES {
            let subject = format!("{prefix}.lane.{lane}");
            let Ok(record) = bucket.raw_message_builder().last_by_subject(subject.as_str()).send().await else {
                continue;
            };
            let mut record: serde_json::Value = serde_json::from_slice(&record.payload).expect("a record");
            record["lease_ms"] = 0.into();
            let written = jetstream.publish(subject, record.to_string().into()).await.expect("sent");
            written.await.expect("written");
        }
    }
}

/// The owner of each lane.
pub(crate) async fn owners(jetstream: &jetstream::Context, group: &str) -> Vec<Option<String>> {
    let bucket = jetstream.get_stream("KV_relevo-lanes").await.expect("the bucket");
    let mut owners = Vec::new();
    for lane in 0..LANES {
        let subject = format!("$KV.relevo-lanes.{STREAM}.{group}.lane.{lane}");
        let record = bucket.raw_message_builder().last_by_subject(subject).send().await.expect("a record");
        let record: serde_json::Value = serde_json::from_slice(&record.payload).expect("a record");
        owners.push(record["owner"].as_str().map(str::to_owned));
    }
    owners
}

/// The group that a test case requests.
pub(crate) fn group(name: &str, address: &str) -> Group {
    Group { lanes: Some(LANES), ..Group::new(name, STREAM, [address]) }
}

#[async_trait]
impl BrokerHarness for Lanes {
    type Broker = Publisher;

    async fn broker(&self) -> Publisher {
        Publisher::open(self.config()).await.expect("a broker")
    }

    async fn stored(&self, address: &str) -> Vec<RawMessage> {
        let is_of = |subject: &str| subject.rsplit_once('.').is_some_and(|(rest, _)| rest == address);
        let stored = stored(&self.server, STREAM).await;
        stored.into_iter().filter(|(subject, _)| is_of(subject)).map(|(_, raw)| raw).collect()
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
impl ConsumerHarness for Lanes {
    type Consumer = GroupConsumer;

    async fn group(&self, name: &str, address: &str) {
        declare_group(&self.config(), &group(name, address)).await.expect("a group");
    }

    async fn consumer(&self, name: &str, prefetch: usize) -> GroupConsumer {
        let membership = ConsumerOptions { prefetch, lease: LEASE, ..ConsumerOptions::default() };
        let proxy = CutProxy::start(([127, 0, 0, 1], self.server.port()).into()).await;
        let config = Config::new(format!("nats://{}", proxy.addr()));
        self.proxies.lock().expect("no holder panics").push(Arc::new(proxy));
        consumer(&config, &group(name, ADDRESS), membership).await.expect("a consumer")
    }

    async fn kill(&self, consumer: GroupConsumer) {
        let group = consumer.group().to_owned();
        drop(consumer);
        self.expire_leases(&group).await;
    }

    /// Blocks all traffic of the consumer until another one owns all of its lanes.
    async fn suspend_past_lease(&self, consumer: &GroupConsumer) {
        let proxies = self.proxies.lock().expect("no holder panics").clone();
        for proxy in &proxies {
            proxy.freeze();
        }
        self.expire_leases(consumer.group()).await;
        let (jetstream, group) = (self.jetstream().await, consumer.group().to_owned());
        let before = owners(&jetstream, &group).await;
        self.resuming.lock().expect("no holder panics").spawn(async move {
            while owners(&jetstream, &group).await.iter().zip(&before).any(|(now, before)| now == before) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            for proxy in &proxies {
                proxy.thaw();
            }
        });
    }

    async fn publish_raw(&self, address: &str, headers: &Headers, payload: Bytes) {
        let mut map = async_nats::HeaderMap::new();
        for (name, value) in headers {
            map.insert(name.as_str(), value.as_str());
        }
        let jetstream = self.jetstream().await;
        let sent = jetstream.publish_with_headers(format!("{address}.0"), map, payload).await;
        sent.expect("sent").await.expect("published");
    }
}
