//! The state of an account, read once.

use std::collections::BTreeMap;

use async_nats::jetstream::{consumer, stream};
use async_nats::{Client, ServerInfo};
use futures_util::TryStreamExt as _;

use crate::classify::{Error, api_error};
use crate::config::Config;
use crate::connection::jetstream;

/// The streams and consumers of an account at one moment.
#[derive(Debug, Default)]
pub(crate) struct ServerState {
    pub(crate) streams: BTreeMap<String, stream::Info>,
    /// By stream and consumer name.
    pub(crate) consumers: BTreeMap<(String, String), consumer::Info>,
    /// The major and minor version of the connected server.
    pub(crate) version: (u32, u32),
    pub(crate) server: ServerInfo,
}

impl ServerState {
    /// Reads all streams, and the consumers of the relevant ones.
    pub(crate) async fn read(
        client: &Client,
        config: &Config,
        is_relevant: impl Fn(&stream::Config) -> bool,
    ) -> Result<Self, Error> {
        let context = jetstream(client, config);
        let server = client.server_info();
        let streams: Vec<stream::Info> =
            context.streams().try_collect().await.map_err(|error| api_error("list the streams", error))?;
        let mut consumers = BTreeMap::new();
        for info in streams.iter().filter(|info| is_relevant(&info.config)) {
            let name = &info.config.name;
            let stream = context.get_stream_no_info(name).await;
            let stream = stream.map_err(|error| api_error("get the stream", error))?;
            let found: Vec<consumer::Info> =
                stream.consumers().try_collect().await.map_err(|error| api_error("list the consumers", error))?;
            consumers.extend(found.into_iter().map(|consumer| ((name.clone(), consumer.name.clone()), consumer)));
        }
        let streams = streams.into_iter().map(|info| (info.config.name.clone(), info)).collect();
        Ok(Self { streams, consumers, version: version(&server.version), server })
    }
}

/// The major and minor version; zeros if the text is not a version.
fn version(text: &str) -> (u32, u32) {
    let mut numbers = text.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
