//! NATS JetStream.

use std::time::Instant;

use async_nats::header::HeaderMap;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, stream};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use relevo_broker_nats::{Config, NatsBroker};
use relevo_core::{Publication, wire};

const STREAM: &str = "bench";

pub(super) async fn open(url: &str) -> anyhow::Result<NatsBroker> {
    Ok(NatsBroker::open(Config { stream: Some(STREAM.to_owned()), ..Config::new(url) }).await?)
}

pub(super) async fn empty(url: &str) -> anyhow::Result<()> {
    let context = jetstream::new(async_nats::connect(url).await?);
    // It is not there the first time.
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

pub(super) async fn alone(url: &str, batch: &[Publication], window: usize) -> anyhow::Result<f64> {
    let client = async_nats::connect(url).await?;
    let context = ContextBuilder::new().max_ack_inflight(window * 2).build(client);
    let began = Instant::now();
    let mut acks = FuturesUnordered::new();
    for publication in batch {
        if acks.len() >= window
            && let Some(ack) = acks.next().await
        {
            ack?;
        }
        let mut headers = HeaderMap::new();
        wire::for_each(publication, "/bench", |name, value| headers.insert(name, value));
        let message = PublishMessage::build()
            .payload(publication.message.payload.clone())
            .headers(headers)
            .message_id(publication.message.id.to_string());
        acks.push(context.send_publish(publication.address.to_string(), message).await?.into_future());
    }
    while let Some(ack) = acks.next().await {
        ack?;
    }
    Ok(f64::from(u32::try_from(batch.len())?) / began.elapsed().as_secs_f64())
}
