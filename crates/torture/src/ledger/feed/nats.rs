//! NATS JetStream.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use async_nats::jetstream;
use futures_util::TryStreamExt as _;
use relevo_broker_nats::{Admin, Config, ConsumerOptions, Group, Publisher, Stream, Topology, consumer as member};
use relevo_core::broker::admin::TopologyStatus;
use relevo_core::{Broker, BrokerAdmin as _, BrokerConsumer};

use super::{Feed, Kind};

impl Feed {
    fn nats(&self) -> Config {
        let Kind::Nats { url, .. } = &self.kind else { unreachable!("only called for NATS") };
        Config { lanes: self.lanes, ..Config::new(url) }
    }

    fn stream(&self) -> &str {
        let Kind::Nats { stream, .. } = &self.kind else { unreachable!("only called for NATS") };
        stream
    }

    fn nats_group(&self) -> Group {
        let stream = self.stream();
        // With lanes, the last subject token is the lane. The group adds it itself.
        let subject = format!("{stream}.{}", if self.lanes.is_some() { "*" } else { ">" });
        Group { lanes: self.lanes, ack_wait: Duration::from_secs(5), ..Group::new(&self.group, stream, [subject]) }
    }
}

pub(super) async fn declare(feed: &Feed) -> Result<()> {
    let stream = feed.stream();
    let topology =
        Topology { streams: vec![Stream::new(stream, [format!("{stream}.>")])], groups: vec![feed.nats_group()] };
    let items = Admin::new(Config { topology, ..feed.nats() })?.apply().await?;
    let failed =
        items.iter().find(|item| matches!(item.status, TopologyStatus::Missing | TopologyStatus::Different(_)));
    ensure!(failed.is_none(), "the topology could not be created: {failed:?}");
    Ok(())
}

pub(super) async fn publisher(feed: &Feed) -> Result<Arc<dyn Broker>> {
    Ok(Arc::new(Publisher::open(feed.nats()).await?))
}

pub(super) async fn consumer(feed: &Feed, name: &str) -> Result<Arc<dyn BrokerConsumer>> {
    let membership = ConsumerOptions { name: name.to_owned(), prefetch: feed.prefetch.into(), lease: feed.lease };
    Ok(Arc::new(member(&feed.nats(), &feed.nats_group(), membership).await?))
}

pub(super) async fn unsettled(feed: &Feed) -> Result<u64> {
    let Kind::Nats { url, .. } = &feed.kind else { unreachable!("only called for NATS") };
    let stream = jetstream::new(async_nats::connect(url).await?).get_stream(feed.stream()).await?;
    let mut unsettled = 0;
    let mut consumers = stream.consumers();
    while let Some(consumer) = consumers.try_next().await? {
        let lane = consumer.name.strip_prefix(&feed.group).and_then(|rest| rest.strip_prefix('-'));
        if consumer.name == feed.group || lane.is_some_and(|lane| lane.parse::<u16>().is_ok()) {
            unsettled += consumer.num_pending + u64::try_from(consumer.num_ack_pending)?;
        }
    }
    Ok(unsettled)
}
