//! The embedded broker.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use relevo_broker_embedded::{BrokerFile, Config, ConsumerOptions, Group};
use relevo_core::{Broker, BrokerConsumer};

use super::Feed;

const LANES: u16 = 4;

async fn open(path: &Path) -> Result<BrokerFile> {
    Ok(BrokerFile::open(Config::new(path)).await?)
}

pub(super) async fn declare(feed: &Feed, path: &Path) -> Result<()> {
    let lanes = feed.lanes.unwrap_or(LANES);
    let group = Group { lanes, ..Group::new(feed.group.as_str(), ["**"]) };
    Ok(open(path).await?.declare_group(&group).await?)
}

pub(super) async fn publisher(path: &Path) -> Result<Arc<dyn Broker>> {
    Ok(Arc::new(open(path).await?))
}

pub(super) async fn consumer(feed: &Feed, path: &Path, name: &str) -> Result<Arc<dyn BrokerConsumer>> {
    let membership = ConsumerOptions { name: name.to_owned(), prefetch: feed.prefetch.into(), lease: feed.lease };
    Ok(Arc::new(open(path).await?.consumer(&feed.group, membership).await?))
}

pub(super) async fn unsettled(feed: &Feed, path: &Path) -> Result<u64> {
    let groups = open(path).await?.groups().await?;
    let group = groups.iter().find(|group| group.name == feed.group).context("the group does not exist")?;
    Ok(group.lag + group.outstanding + group.ready)
}
