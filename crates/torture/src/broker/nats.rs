//! NATS JetStream, read only with its client library: the oracle does not use the tested adapter.

use anyhow::{Context as _, Result};
use async_nats::jetstream::{self, consumer, stream};
use futures_util::StreamExt as _;
use relevo_testkit::nats::{NatsVersion, Private, Settings};
use relevo_testkit::proxy::CutProxy;

use crate::consumers::LANES;
use crate::oracle::StoredMessage;

const STREAM: &str = "torture";

/// A server, and the proxy between it and the relays.
pub(crate) struct Nats {
    pub(super) server: Private,
    pub(super) proxy: CutProxy,
}

impl Nats {
    pub(super) async fn start() -> Result<Self> {
        let server = Private::start(NatsVersion::V2_15, Settings::new()).await;
        let proxy = CutProxy::start(([127, 0, 0, 1], server.port()).into()).await;
        let broker = Self { server, proxy };
        let config = stream::Config {
            name: STREAM.to_owned(),
            subjects: vec!["torture.>".to_owned()],
            storage: stream::StorageType::File,
            discard: stream::DiscardPolicy::New,
            duplicate_window: std::time::Duration::from_mins(10),
            allow_atomic_publish: true,
            ..stream::Config::default()
        };
        broker.jetstream().await?.create_stream(config).await?;
        Ok(broker)
    }

    pub(super) fn config(&self, destination: &str) -> String {
        let url = self.url();
        format!(
            "[outboxes.torture.destinations.{destination}]\n\
             [outboxes.torture.destinations.{destination}.broker]\nkind = \"nats\"\nurls = [{url:?}]\n\
             stream = \"{STREAM}\"\nlanes = {LANES}\nconfirm_timeout = \"1s\"\n\
             [[outboxes.torture.destinations.{destination}.routes]]\naddress = \"torture.{{topic}}\"\n"
        )
    }

    /// The URL through the proxy.
    pub(super) fn url(&self) -> String {
        format!("nats://{}", self.proxy.addr())
    }

    pub(super) async fn stored_messages(&self) -> Result<Vec<StoredMessage>> {
        let jetstream = self.jetstream().await?;
        let stream = jetstream.get_stream(STREAM).await?;
        let count = usize::try_from(stream.get_info().await?.state.messages)?;
        let config = consumer::pull::Config { ack_policy: consumer::AckPolicy::None, ..Default::default() };
        let mut messages = stream.create_consumer(config).await?.messages().await?;
        let mut stored_messages = Vec::with_capacity(count);
        while stored_messages.len() < count {
            let message = messages.next().await.context("the oracle's consumer ended")??;
            let headers = message.headers.as_ref();
            let key = headers.and_then(|headers| headers.get("ce-partitionkey")).map(ToString::to_string);
            stored_messages.push(super::stored_message(key, &message.payload)?);
        }
        Ok(stored_messages)
    }

    async fn jetstream(&self) -> Result<jetstream::Context> {
        Ok(jetstream::new(async_nats::connect(self.server.url()).await?))
    }
}

/// The stream at this server.
pub(super) fn spec(url: &str) -> String {
    format!("{url}#{STREAM}")
}
