//! The conformance suite of replay sources, and streams that cannot be one.

use std::time::Duration;

use async_nats::jetstream::stream;
use async_trait::async_trait;
use relevo_broker_nats::{Config, ConsumerOptions, Group, Publisher, ReplayLog, consumer, declare_group};
use relevo_conformance::replay::Harness;
use relevo_conformance::replay::harness::{publications, receive};
use relevo_core::replay_source::{ReplayFilter, ReplaySource, ReplaySourceError};
use relevo_core::{Delivery, Draft, MessageId};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings};

use crate::harness::{create_stream, outcomes_of};

const STREAM: &str = "all";

struct Nats {
    server: Private,
    lanes: Option<u16>,
    published: u64,
}

async fn newest() -> Nats {
    start(NatsVersion::V2_15, Some(8)).await
}

async fn oldest() -> Nats {
    start(NatsVersion::V2_9, None).await
}

async fn start(version: NatsVersion, lanes: Option<u16>) -> Nats {
    let server = Private::start(version, Settings::new()).await;
    let subjects = ["orders.>", "bills.>", "bills"].map(str::to_owned).to_vec();
    create_stream(&server, stream::Config { name: STREAM.to_owned(), subjects, ..stream::Config::default() }).await;
    Nats { server, lanes, published: 0 }
}

impl Nats {
    fn config(&self) -> Config {
        Config { lanes: self.lanes, ..Config::new(self.server.url()) }
    }

    fn group(&self) -> Group {
        Group { lanes: self.lanes, ..Group::new("billing", STREAM, ["orders.*"]) }
    }

    async fn open(&self, group: &Group) -> Result<ReplayLog, ReplaySourceError> {
        ReplayLog::open(&self.config(), group).await
    }
}

#[async_trait]
impl Harness for Nats {
    async fn source(&self) -> Box<dyn ReplaySource> {
        Box::new(self.open(&self.group()).await.expect("a stream"))
    }

    async fn publish(&mut self, drafts: Vec<Draft>) -> Vec<MessageId> {
        let batch = publications(drafts, self.published + 1);
        self.published += batch.len() as u64;
        let broker = Publisher::open(self.config()).await.expect("a broker");
        // Publish one by one: the server stores them in the order of arrival.
        for publication in &batch {
            assert_eq!(outcomes_of(&broker, std::slice::from_ref(publication)).await, [None]);
        }
        broker.close().await;
        batch.iter().map(|publication| publication.message.id).collect()
    }

    async fn received(&self) -> Option<Vec<Delivery>> {
        let count = usize::try_from(self.published).expect("a small number");
        declare_group(&self.config(), &self.group()).await.expect("a group");
        let consumer = consumer(&self.config(), &self.group(), ConsumerOptions::default()).await.expect("a consumer");
        Some(receive(&consumer, count).await)
    }
}

mod nats_2_15 {
    relevo_conformance::replay_suite!(super::newest);
}

mod nats_2_9 {
    relevo_conformance::replay_suite!(super::oldest);
}

#[tokio::test]
async fn a_log_has_the_subjects_of_its_group() {
    for version in [NatsVersion::V2_9, NatsVersion::V2_15] {
        let mut nats = start(version, None).await;
        let drafts = [("orders.eu", "1"), ("bills.eu", "2"), ("orders.us", "3"), ("bills", "4")];
        let drafts = drafts.map(|(topic, key)| Draft::json(topic, key, "T", "{}"));
        nats.publish(drafts.to_vec()).await;
        for (subjects, count) in [(vec!["orders.*"], 2), (vec!["orders.eu", "bills.>"], 2), (Vec::new(), 4)] {
            let log = nats.open(&Group::new("billing", STREAM, subjects.clone())).await.expect("a stream");
            assert_eq!(log.count(&ReplayFilter::default()).await.expect("a stream"), count, "{subjects:?}");
        }
    }
}

#[tokio::test]
async fn a_stream_that_deletes_acknowledged_messages_cannot_be_replayed() {
    let nats = start(NatsVersion::V2_15, None).await;
    for (name, retention) in
        [("work", stream::RetentionPolicy::WorkQueue), ("wanted", stream::RetentionPolicy::Interest)]
    {
        let subjects = vec![format!("{name}.>")];
        let config = stream::Config { name: name.to_owned(), subjects, retention, ..stream::Config::default() };
        create_stream(&nats.server, config).await;
        let refused = nats.open(&Group::new("billing", name, ["work.>"])).await;
        assert!(matches!(refused, Err(ReplaySourceError::Unsupported(_))), "{name}");
    }
    let missing = nats.open(&Group::new("billing", "nowhere", ["orders.>"])).await;
    assert!(matches!(missing, Err(ReplaySourceError::Unsupported(_))));
}

#[tokio::test]
async fn reading_continues_without_a_gap_after_a_restart() {
    let mut nats = newest().await;
    let drafts = |count: usize| (0..count).map(|number| Draft::json("orders.eu", &number.to_string(), "T", "{}"));
    let put = nats.publish(drafts(30).collect()).await;
    let source = nats.source().await;
    let request = |after| relevo_core::replay_source::ReplayReadRequest { after, limit: 10, bytes: 1 << 20 };
    let first = source.read(&ReplayFilter::default(), request(0)).await.expect("a stream");
    nats.server.kill9().await;
    let cut =
        tokio::time::timeout(Duration::from_secs(30), source.read(&ReplayFilter::default(), request(first.next))).await;
    assert!(matches!(cut, Ok(Err(ReplaySourceError::Unreachable(_)))), "the failure is reported as temporary");
    nats.server.start_again().await;
    let (mut read, mut after) = (first.messages, first.next);
    while read.len() < put.len() {
        // The library reconnects on its own schedule.
        if let Ok(next) = source.read(&ReplayFilter::default(), request(after)).await {
            after = next.next;
            read.extend(next.messages);
        }
    }
    let ids: Vec<MessageId> = read.iter().map(|logged| logged.raw.decode().expect("ours").message.id).collect();
    assert_eq!(ids, put);
}
