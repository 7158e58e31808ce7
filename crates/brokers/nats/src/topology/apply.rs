//! Creates missing streams and groups, and verifies a group before it is used.

use async_nats::jetstream::consumer::Info;
use async_nats::jetstream::context::{
    ConsumerInfoError, ConsumerInfoErrorKind, CreateStreamErrorKind, GetStreamErrorKind,
};
use async_nats::jetstream::{Context, ErrorCode, stream};
use async_trait::async_trait;
use relevo_core::broker::admin::{BrokerAdmin, ExamineContext, TopologyItem, TopologyStatus};
use relevo_core::failure::Failure;
use relevo_core::finding::{Finding, Severity};

use super::compare::consumer_differences;
use super::{BUCKET, Group, Stream};
use crate::classify::{Error, api_error};
use crate::config::Config;
use crate::connection::{self, jetstream};
use crate::consume::lane_store::stream_name;
use crate::examine;
use crate::server_state::ServerState;

/// Creates the configured topology and checks the server, for `relevo topology` and `relevo doctor`.
pub struct Admin {
    config: Config,
}

impl Admin {
    /// Validates the configuration and its topology. It sends no request to the server.
    pub fn new(config: Config) -> Result<Self, Error> {
        config.validate()?;
        config.topology.validate()?;
        Ok(Self { config })
    }

    async fn server_state(&self, addresses: &[String]) -> Result<ServerState, Error> {
        let client = connection::connect(&self.config).await?;
        let topology = &self.config.topology;
        let is_relevant = |stream: &stream::Config| {
            topology.groups.iter().any(|group| group.stream == stream.name)
                || topology.streams.iter().any(|configured| configured.name == stream.name)
                || self.config.stream.as_ref() == Some(&stream.name)
                || examine::is_published_to(&self.config, addresses, stream)
        };
        ServerState::read(&client, &self.config, is_relevant).await
    }

    /// The stream that only `stream` of the configuration names. It is created if it is missing, and any existing stream of
    /// this name is accepted.
    fn implied_stream(&self) -> Option<Stream> {
        self.config.topology.implied_stream(self.config.stream.as_deref()?)
    }

    fn compare(&self, server: &ServerState) -> Vec<TopologyItem> {
        let implied = self.implied_stream().map(|stream| match server.streams.get(&stream.name) {
            Some(_) => TopologyItem { name: format!("stream `{}`", stream.name), status: TopologyStatus::Unchanged },
            None => stream.compare(server),
        });
        implied.into_iter().chain(self.config.topology.compare(server)).collect()
    }

    async fn try_apply(&self) -> Result<Vec<TopologyItem>, Error> {
        let server = self.server_state(&[]).await?;
        let before = self.compare(&server);
        let is_different = |item: &TopologyItem| matches!(item.status, TopologyStatus::Different(_));
        let is_missing = |item: &TopologyItem| item.status == TopologyStatus::Missing;
        if before.iter().any(is_different) || !before.iter().any(is_missing) {
            return Ok(before);
        }
        self.create_streams(&server).await?;
        for group in &self.config.topology.groups {
            declare_group(&self.config, group).await?;
        }
        // An old server accepts settings that it does not know, so the result is read back.
        let mut after = self.compare(&self.server_state(&[]).await?);
        for (item, before) in after.iter_mut().zip(&before) {
            if is_missing(before) && item.status == TopologyStatus::Unchanged {
                item.status = TopologyStatus::Created;
            }
        }
        Ok(after)
    }

    async fn create_streams(&self, server: &ServerState) -> Result<(), Error> {
        let client = connection::connect(&self.config).await?;
        let context = jetstream(&client, &self.config);
        let is_new = |name: &str| !server.streams.contains_key(name);
        let implied = self.implied_stream();
        let streams = implied.iter().chain(&self.config.topology.streams);
        for stream in streams.filter(|stream| is_new(&stream.name)) {
            match context.create_stream(stream.config(server.version)).await {
                Ok(_) => {}
                // Another process created it first with other settings: the comparison that follows reports them.
                Err(error) if is_name_taken(&error.kind()) => {}
                Err(error) => return Err(api_error("create the stream", error)),
            }
        }
        Ok(())
    }
}

fn not_examined(error: &Error) -> Finding {
    Finding {
        severity: Severity::Note,
        subject: "not-examined".to_owned(),
        detail: format!("streams and consumers were not examined: {error}, because the server does not respond"),
        fix: Some(
            "grant this login permission to publish to `$JS.API.STREAM.LIST` and `$JS.API.CONSUMER.LIST.*`, and to \
             subscribe to `_INBOX.>`"
                .to_owned(),
        ),
    }
}

fn is_name_taken(kind: &CreateStreamErrorKind) -> bool {
    matches!(kind, CreateStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NAME_EXIST)
}

#[async_trait]
impl BrokerAdmin for Admin {
    async fn plan(&self) -> Result<Vec<TopologyItem>, Failure> {
        Ok(self.compare(&self.server_state(&[]).await?))
    }

    async fn apply(&self) -> Result<Vec<TopologyItem>, Failure> {
        Ok(self.try_apply().await?)
    }

    async fn examine(&self, context: &ExamineContext) -> Result<Vec<Finding>, Failure> {
        let server = match self.server_state(&context.addresses).await {
            Ok(server) => server,
            // The connection works, but the API does not respond. Usually a permission is missing, which the server
            // does not report.
            Err(error @ Error::Api { .. }) => return Ok(vec![not_examined(&error)]),
            Err(error) => return Err(error.into()),
        };
        let flush_interval = examine::FlushInterval::query(&self.config, &server).await;
        Ok(examine::examine(&self.config, context, &server, &flush_interval))
    }
}

/// Creates the parts of a group: a durable consumer per lane, and the bucket of lanes. Existing parts are not changed.
/// A consumer with different settings is an error that lists them.
///
/// The response of the server is checked, because an old server accepts settings that it does not know and ignores
/// them.
pub async fn declare_group(config: &Config, group: &Group) -> Result<(), Error> {
    group.validate()?;
    let client = connection::connect(config).await?;
    let context = jetstream(&client, config);
    let stream = match context.get_stream(&group.stream).await {
        Ok(stream) => stream,
        Err(error) if is_stream_not_found(&error.kind()) => return Err(Error::GroupNotFound(group.name.clone())),
        Err(error) => return Err(api_error("get the stream", error)),
    };
    if !has_stream(&context, &stream_name()).await? {
        let bucket = bucket_config(stream.cached_info().config.num_replicas);
        context.create_stream(bucket).await.map_err(|error| api_error("create the bucket of lanes", error))?;
    }
    for lane in 0..group.lane_count() {
        let name = group.durable(lane);
        match stream.consumer_info(&name).await {
            Ok(info) => verify_consumer(group, lane, &info)?,
            Err(error) if is_consumer_not_found(&error) => {
                let created = stream.create_consumer(group.consumer_config(lane)).await;
                let created = created.map_err(|error| api_error("create a durable consumer", error))?;
                if let Err(error) = verify_consumer(group, lane, created.cached_info()) {
                    // This call created it, and it would deliver the wrong messages.
                    let deleted = stream.delete_consumer(&name).await;
                    deleted.map_err(|error| api_error("delete a durable consumer", error))?;
                    return Err(error);
                }
            }
            Err(error) => return Err(api_error("get a durable consumer", error)),
        }
    }
    Ok(())
}

/// The configuration of a key-value bucket, as the library creates it. The library cannot create one on server 2.9: it
/// first requests the account information, and cannot parse that server's response.
pub(crate) fn bucket_config(replicas: usize) -> stream::Config {
    stream::Config {
        name: stream_name(),
        description: Some("lanes of Relevo's consumers".to_owned()),
        subjects: vec![format!("$KV.{BUCKET}.>")],
        max_messages_per_subject: 1,
        discard: stream::DiscardPolicy::New,
        storage: stream::StorageType::File,
        num_replicas: replicas,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        ..stream::Config::default()
    }
}

/// Verifies that every part exists with the requested settings.
pub(crate) async fn verify_group(context: &Context, group: &Group) -> Result<(), Error> {
    let missing = || Error::GroupNotFound(group.name.clone());
    for name in [group.stream.clone(), stream_name()] {
        if !has_stream(context, &name).await? {
            return Err(missing());
        }
    }
    let stream = context.get_stream_no_info(&group.stream).await;
    let stream = stream.map_err(|error| api_error("get the stream", error))?;
    for lane in 0..group.lane_count() {
        match stream.consumer_info(group.durable(lane)).await {
            Ok(info) => verify_consumer(group, lane, &info)?,
            Err(error) if is_consumer_not_found(&error) => return Err(missing()),
            Err(error) => return Err(api_error("get a durable consumer", error)),
        }
    }
    Ok(())
}

/// Fails if a durable consumer would not deliver what the group needs.
fn verify_consumer(group: &Group, lane: u16, info: &Info) -> Result<(), Error> {
    let differences = consumer_differences(group, lane, &info.config);
    if differences.is_empty() {
        return Ok(());
    }
    let differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
    Err(Error::Mismatch { object: format!("durable consumer `{}`", info.name), difference: differences.join("; ") })
}

/// Whether an error means that the consumer does not exist.
pub(crate) fn is_consumer_not_found(error: &ConsumerInfoError) -> bool {
    matches!(error.kind(), ConsumerInfoErrorKind::NotFound | ConsumerInfoErrorKind::StreamNotFound)
}

async fn has_stream(context: &Context, name: &str) -> Result<bool, Error> {
    match context.get_stream(name).await {
        Ok(_) => Ok(true),
        Err(error) if is_stream_not_found(&error.kind()) => Ok(false),
        Err(error) => Err(api_error("get the stream", error)),
    }
}

/// Whether an error means that the stream does not exist.
pub(crate) fn is_stream_not_found(kind: &GetStreamErrorKind) -> bool {
    matches!(kind, GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}
