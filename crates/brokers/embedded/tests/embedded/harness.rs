//! The embedded broker's harness for the conformance suites.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use relevo_broker_embedded::{BrokerFile, Config, ConsumerOptions, Group, GroupConsumer};
use relevo_conformance::broker::harness::{BrokerHarness, ConsumerHarness, Guarantees, MESSAGE_BYTES_MAX};
use relevo_core::RawMessage;
use relevo_core::message::Headers;
use sqlx::Connection as _;

use crate::directory::{Directory, connect, stored_messages};

/// Longer than any test case, so that only [`Embedded::expire_leases`] ends a lease.
const LEASE: Duration = Duration::from_mins(5);

pub(crate) struct Embedded {
    directory: Directory,
}

#[expect(clippy::unused_async, reason = "the suite awaits it: other brokers start servers")]
pub(crate) async fn start() -> Embedded {
    Embedded { directory: Directory::new() }
}

impl Embedded {
    fn path(&self) -> PathBuf {
        self.directory.path().join("broker.db")
    }

    async fn open(&self) -> BrokerFile {
        let config = Config { message_size_max: MESSAGE_BYTES_MAX, ..Config::new(self.path()) };
        BrokerFile::open(config).await.expect("the file can be opened")
    }

    /// Changes the file as the passage of time would.
    async fn sql(&self, sql: &'static str, ms: i64) {
        let mut connection = connect(&self.path()).await;
        sqlx::query(sql).bind(ms).execute(&mut connection).await.expect("the statement runs");
        connection.close().await.expect("closed");
    }

    async fn expire_leases(&self) {
        self.sql("UPDATE broker_lane SET lease_until_ms = lease_until_ms - ?1", 600_000).await;
        self.sql("UPDATE broker_member SET lease_until_ms = lease_until_ms - ?1", 600_000).await;
    }
}

#[async_trait]
impl BrokerHarness for Embedded {
    type Broker = BrokerFile;

    async fn broker(&self) -> BrokerFile {
        self.open().await
    }

    async fn stored(&self, address: &str) -> Vec<RawMessage> {
        stored_messages(&self.path(), address).await
    }

    /// There is no server: a crash leaves the file as it is. Other tests kill real processes.
    async fn kill_and_restart(&mut self) {
        self.expire_leases().await;
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { survives_crash: true, deduplicates: true }
    }
}

#[async_trait]
impl ConsumerHarness for Embedded {
    type Consumer = GroupConsumer;

    async fn group(&self, name: &str, address: &str) {
        let group = Group { lanes: 8, ..Group::new(name, [address]) };
        self.open().await.declare_group(&group).await.expect("a group");
    }

    async fn consumer(&self, group: &str, prefetch: usize) -> GroupConsumer {
        let membership = ConsumerOptions { prefetch, lease: LEASE, ..ConsumerOptions::default() };
        self.open().await.consumer(group, membership).await.expect("a consumer")
    }

    async fn kill(&self, consumer: GroupConsumer) {
        drop(consumer);
        self.expire_leases().await;
    }

    /// The next heartbeat is far in the future, so the consumer does not notice.
    async fn suspend_past_lease(&self, _consumer: &GroupConsumer) {
        self.expire_leases().await;
    }

    async fn publish_raw(&self, address: &str, headers: &Headers, payload: Bytes) {
        self.open().await.publish_raw(address, "", headers, payload).await.expect("published");
    }
}
