//! The broker handle and its publishing side.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use relevo_core::message::Headers;
use relevo_core::{Broker, Capabilities, Outcome, OutcomeSender, Publication};

use crate::classify::Error;
use crate::config::Config;
use crate::connection::Connections;
use crate::migrations;
use crate::publish::{self, EncodedMessage};
use crate::retention::PruneSchedule;
use crate::wake::ChangeNotifier;

/// A durable broker in a SQLite file. Cheap to clone: clones share their connections and wake each other's consumers.
#[derive(Clone, Debug)]
pub struct BrokerFile(pub(crate) Arc<BrokerInner>);

#[derive(Debug)]
pub(crate) struct BrokerInner {
    pub(crate) config: Config,
    pub(crate) connections: Connections,
    pub(crate) change_notifier: ChangeNotifier,
    pub(crate) prune_schedule: PruneSchedule,
}

impl BrokerFile {
    /// Opens the broker's file. Creates the file and the tables if they are missing.
    pub async fn open(config: Config) -> Result<Self, Error> {
        let link = Connections::open(&config).await?;
        migrations::migrate(link.begin_durable().await?).await?;
        let wake = ChangeNotifier::new(link.watch());
        Ok(Self(Arc::new(BrokerInner {
            config,
            connections: link,
            change_notifier: wake,
            prune_schedule: PruneSchedule::default(),
        })))
    }

    /// Stores any message with text headers. `key` decides its lane and so its order.
    ///
    /// Use it for messages that do not come from an outbox: duplicates are not detected.
    pub async fn publish_raw(&self, address: &str, key: &str, headers: &Headers, payload: Bytes) -> Result<(), Error> {
        let row = EncodedMessage::from_raw(address, key, headers, payload);
        row.validate(self.0.config.message_bytes_max)?;
        self.store(&[row]).await
    }

    /// Closes the file. Later calls fail, so close the consumers first.
    pub async fn close(&self) {
        self.0.connections.close().await;
    }

    async fn store(&self, rows: &[EncodedMessage<'_>]) -> Result<(), Error> {
        let BrokerInner { config, connections: link, .. } = &*self.0;
        loop {
            match publish::store(link.begin_durable().await?, rows, config).await {
                Err(Error::Full { .. }) if self.prune_to_fit(rows).await? => {}
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        self.0.change_notifier.notify();
        Ok(())
    }
}

#[async_trait]
impl Broker for BrokerFile {
    fn capabilities(&self) -> Capabilities {
        // A batch is one transaction, so no message can overtake a failed one of the same key.
        Capabilities { ordered_in_flight: true, message_bytes_max: self.0.config.message_bytes_max }
    }

    async fn publish(&self, batch: &[Publication], confirms: &OutcomeSender) {
        let (rows, refused) = publish::encode_batch(batch, &self.0.config);
        confirms.report_all(refused.into_iter().map(|(index, error)| (index, Err(error.into()))));
        if rows.is_empty() {
            return;
        }
        let (indexes, rows): (Vec<usize>, Vec<EncodedMessage<'_>>) = rows.into_iter().unzip();
        match self.store(&rows).await {
            Ok(()) => confirms.report_all(indexes.into_iter().map(|index| (index, Ok(())))),
            Err(error) => confirms.report_all(shared(indexes, error)),
        }
        self.prune_if_due(rows.len()).await;
    }
}

/// Reports one error for every message of a batch.
fn shared(indexes: Vec<usize>, error: Error) -> impl Iterator<Item = (usize, Outcome)> {
    let error = Arc::new(error);
    indexes.into_iter().map(move |index| {
        let failure = relevo_core::Failure::new(error.class(), Told(Arc::clone(&error)));
        (index, Err(failure))
    })
}

/// An error that several messages share.
#[derive(Debug)]
struct Told(Arc<Error>);

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Told {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}
