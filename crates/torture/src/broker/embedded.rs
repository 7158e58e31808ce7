//! The embedded broker.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use relevo_broker_embedded::{BrokerFile, Config, ConsumerOptions, Group};
use relevo_core::{AckOutcome, BrokerConsumer as _};

use crate::oracle::StoredMessage;

const ORACLE: &str = "oracle";

/// The broker's file.
pub(crate) struct Embedded(PathBuf);

impl Embedded {
    pub(super) async fn start(directory: &Path) -> Result<Self> {
        let file = directory.join("broker.db");
        // The broker keeps all messages for a group that has acknowledged none.
        BrokerFile::open(Config::new(&file)).await?.declare_group(&Group::new(ORACLE, ["**"])).await?;
        Ok(Self(file))
    }

    pub(super) fn config(&self, destination: &str) -> String {
        let path = format!("{:?}", self.0.to_string_lossy());
        format!("[outboxes.torture.destinations.{destination}]\nbroker = {{ kind = \"embedded\", path = {path} }}\n")
    }

    pub(super) fn spec(&self) -> String {
        format!("embedded:{}", self.0.display())
    }

    pub(super) async fn stored_messages(&self) -> Result<Vec<StoredMessage>> {
        let broker = BrokerFile::open(Config::new(&self.0)).await?;
        let consumer = broker.consumer(ORACLE, ConsumerOptions::default()).await?;
        let mut stored_messages = Vec::new();
        while left(&broker).await? > 0 {
            let deliveries = consumer.receive(1000).await?;
            let mut tags = Vec::with_capacity(deliveries.len());
            for delivery in deliveries {
                let message = delivery.raw.decode()?.message;
                stored_messages.push(super::stored_message(Some(message.key.to_string()), &message.payload)?);
                tags.push(delivery.tag);
            }
            let outcomes = consumer.acknowledge(&tags).await;
            let all = outcomes.iter().all(|outcome| matches!(outcome, AckOutcome::Acknowledged));
            ensure!(all, "deliveries of the oracle were not acknowledged: {outcomes:?}");
        }
        consumer.close().await?;
        Ok(stored_messages)
    }
}

async fn left(broker: &BrokerFile) -> Result<u64> {
    let groups = broker.groups().await?;
    let oracle = groups.iter().filter(|group| group.name == ORACLE);
    Ok(oracle.map(|group| group.lag + group.outstanding + group.ready).sum())
}
