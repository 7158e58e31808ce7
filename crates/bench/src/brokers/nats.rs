//! NATS JetStream.

use std::future::IntoFuture as _;

use async_nats::header::HeaderMap;
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, stream};
use async_trait::async_trait;
use relevo_broker_nats::{Config, ConsumerOptions, Group, GroupConsumer, Publisher};
use relevo_core::{Publication, wire};

use super::alone::{Client, Confirm};

const STREAM: &str = "bench";

pub(super) async fn open(url: &str) -> anyhow::Result<Publisher> {
    Ok(Publisher::open(Config { stream: Some(STREAM.to_owned()), ..Config::new(url) }).await?)
}

pub(super) async fn consumer(url: &str) -> anyhow::Result<GroupConsumer> {
    let (config, group) = (Config::new(url), Group::new("bench", STREAM, ["orders"]));
    relevo_broker_nats::declare_group(&config, &group).await?;
    Ok(relevo_broker_nats::consumer(&config, &group, ConsumerOptions::default()).await?)
}

pub(super) async fn empty(url: &str) -> anyhow::Result<()> {
    let context = jetstream::new(async_nats::connect(url).await?);
    // The first run finds no stream.
    context.delete_stream(STREAM).await.ok();
    let config = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec!["orders".to_owned()],
        discard: stream::DiscardPolicy::New,
        allow_atomic_publish: true,
        ..stream::Config::default()
    };
    context.create_stream(config).await?;
    Ok(())
}

/// The client library, with a limit for unacknowledged messages.
pub(super) async fn client(url: &str, window: usize) -> anyhow::Result<Context> {
    Ok(ContextBuilder::new().max_ack_inflight(window * 2).build(async_nats::connect(url).await?))
}

#[async_trait]
impl Client for Context {
    async fn send(&self, publication: &Publication) -> anyhow::Result<Confirm> {
        let mut headers = HeaderMap::new();
        wire::for_each(publication, "/bench", |name, value| headers.insert(name, value));
        let message = PublishMessage::build()
            .payload(publication.message.payload.clone())
            .headers(headers)
            .message_id(publication.message.id.to_string());
        let ack = self.send_publish(publication.address.to_string(), message).await?.into_future();
        Ok(Box::pin(async {
            ack.await?;
            Ok(())
        }))
    }
}
