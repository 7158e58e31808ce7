//! Creates missing streams and groups, for `relevo topology` and `relevo doctor`.

use async_nats::jetstream::consumer::{self, Info};
use async_nats::jetstream::context::{
    ConsumerInfoError, ConsumerInfoErrorKind, CreateStreamErrorKind, GetStreamErrorKind,
};
use async_nats::jetstream::{Context, ErrorCode, stream};
use async_trait::async_trait;
use relevo_core::broker::admin::{BrokerAdmin, ExamineContext, TopologyItem, TopologyStatus};
use relevo_core::failure::Failure;
use relevo_core::finding::{Finding, Severity};

use super::{BUCKET, Group};
use crate::classify::{Error, api};
use crate::config::Config;
use crate::connection::{self, jetstream};
use crate::consume::lane_store::stream_name;
use crate::examine;
use crate::server_state::ServerState;

/// Creates the configured topology and checks the server.
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
        let looked_at = |stream: &stream::Config| {
            topology.groups.iter().any(|group| group.stream == stream.name)
                || topology.streams.iter().any(|wanted| wanted.name == stream.name)
                || examine::is_published_to(&self.config, addresses, stream)
        };
        ServerState::read(&client, &self.config, looked_at).await
    }

    async fn try_apply(&self) -> Result<Vec<TopologyItem>, Error> {
        let seen = self.server_state(&[]).await?;
        let before = self.config.topology.compare(&seen);
        let differs = |piece: &TopologyItem| matches!(piece.status, TopologyStatus::Different(_));
        let missing = |piece: &TopologyItem| piece.status == TopologyStatus::Missing;
        if before.iter().any(differs) || !before.iter().any(missing) {
            return Ok(before);
        }
        self.create_streams(&seen).await?;
        for group in &self.config.topology.groups {
            declare_group(&self.config, group).await?;
        }
        // An old server accepts settings that it does not know, so the result is read back.
        let mut after = self.config.topology.compare(&self.server_state(&[]).await?);
        for (piece, before) in after.iter_mut().zip(&before) {
            if missing(before) && piece.status == TopologyStatus::Unchanged {
                piece.status = TopologyStatus::Created;
            }
        }
        Ok(after)
    }

    async fn create_streams(&self, seen: &ServerState) -> Result<(), Error> {
        let client = connection::connect(&self.config).await?;
        let context = jetstream(&client, &self.config);
        let is_new = |name: &str| !seen.streams.contains_key(name);
        for stream in self.config.topology.streams.iter().filter(|stream| is_new(&stream.name)) {
            match context.create_stream(stream.config(seen.version)).await {
                Ok(_) => {}
                // Another process created it first with other settings: the comparison that follows reports them.
                Err(error) if already_exists(&error.kind()) => {}
                Err(error) => return Err(api("making a stream", error)),
            }
        }
        Ok(())
    }
}

fn not_examined(error: &Error) -> Finding {
    Finding {
        severity: Severity::Note,
        subject: "not-looked-at".to_owned(),
        detail: format!("streams and consumers were not looked at: {error} without an answer"),
        fix: Some(
            "give this login the right to publish to `$JS.API.STREAM.LIST` and `$JS.API.CONSUMER.LIST.*`, and to \
             subscribe to `_INBOX.>`"
                .to_owned(),
        ),
    }
}

fn already_exists(kind: &CreateStreamErrorKind) -> bool {
    matches!(kind, CreateStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NAME_EXIST)
}

#[async_trait]
impl BrokerAdmin for Admin {
    async fn plan(&self) -> Result<Vec<TopologyItem>, Failure> {
        Ok(self.config.topology.compare(&self.server_state(&[]).await?))
    }

    async fn apply(&self) -> Result<Vec<TopologyItem>, Failure> {
        Ok(self.try_apply().await?)
    }

    async fn examine(&self, expectations: &ExamineContext) -> Result<Vec<Finding>, Failure> {
        let seen = match self.server_state(&expectations.addresses).await {
            Ok(seen) => seen,
            // The connection works, but the API does not respond. Usually a permission is missing, which the server
            // does not report.
            Err(error @ Error::Api { .. }) => return Ok(vec![not_examined(&error)]),
            Err(error) => return Err(error.into()),
        };
        let sync = examine::FlushInterval::query(&self.config, &seen).await;
        Ok(examine::examine(&self.config, expectations, &seen, &sync))
    }
}

/// Creates the parts of a group: a durable consumer per lane, and the bucket of lanes. Existing parts are not changed.
/// A consumer that differs is an error that says how.
///
/// The response of the server is checked, because an old server accepts settings that it does not know and ignores
/// them.
pub async fn declare_group(config: &Config, group: &Group) -> Result<(), Error> {
    group.validate()?;
    let client = connection::connect(config).await?;
    let context = jetstream(&client, config);
    let source = match context.get_stream(&group.stream).await {
        Ok(source) => source,
        Err(error) if is_stream_not_found(&error.kind()) => return Err(Error::GroupNotFound(group.name.clone())),
        Err(error) => return Err(api("looking for the stream", error)),
    };
    let replicas = source.cached_info().config.num_replicas;
    if !has_stream(&context, &stream_name()).await? {
        let bucket = bucket_config(replicas);
        context.create_stream(bucket).await.map_err(|error| api("making the bucket of lanes", error))?;
    }
    for lane in 0..group.lane_count() {
        let name = group.durable(lane);
        match source.consumer_info(&name).await {
            Ok(info) => compare_consumer(group, lane, &info)?,
            Err(error) if is_consumer_not_found(&error) => {
                let made = source.create_consumer(group.consumer_config(lane)).await;
                let made = made.map_err(|error| api("making a durable consumer", error))?;
                if let Err(error) = compare_consumer(group, lane, made.cached_info()) {
                    // This call created it, and it would deliver the wrong messages.
                    source.delete_consumer(&name).await.map_err(|error| api("removing it again", error))?;
                    return Err(error);
                }
            }
            Err(error) => return Err(api("looking for a durable consumer", error)),
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
    let stream =
        context.get_stream_no_info(&group.stream).await.map_err(|error| api("looking for the stream", error))?;
    for lane in 0..group.lane_count() {
        match stream.consumer_info(group.durable(lane)).await {
            Ok(info) => compare_consumer(group, lane, &info)?,
            Err(error) if is_consumer_not_found(&error) => return Err(missing()),
            Err(error) => return Err(api("looking for a durable consumer", error)),
        }
    }
    Ok(())
}

/// Whether an error means that the consumer does not exist.
pub(crate) fn is_consumer_not_found(error: &ConsumerInfoError) -> bool {
    matches!(error.kind(), ConsumerInfoErrorKind::NotFound | ConsumerInfoErrorKind::StreamNotFound)
}

async fn has_stream(context: &Context, name: &str) -> Result<bool, Error> {
    match context.get_stream(name).await {
        Ok(_) => Ok(true),
        Err(error) if is_stream_not_found(&error.kind()) => Ok(false),
        Err(error) => Err(api("looking for a stream", error)),
    }
}

pub(crate) fn is_stream_not_found(kind: &GetStreamErrorKind) -> bool {
    matches!(kind, GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

fn compare_consumer(group: &Group, lane: u16, info: &Info) -> Result<(), Error> {
    match difference(group, lane, &info.config) {
        Some(difference) => Err(Error::Mismatch { what: format!("the durable consumer `{}`", info.name), difference }),
        None => Ok(()),
    }
}

/// Describes how a durable consumer differs from the group's configuration. The start position is not compared: its
/// creator chooses it.
pub(crate) fn difference(group: &Group, lane: u16, is: &consumer::Config) -> Option<String> {
    let wanted = group.consumer_config(lane);
    let filters = |one: &str, many: &[String]| {
        let mut all: Vec<String> = if one.is_empty() { many.to_vec() } else { vec![one.to_owned()] };
        all.sort_unstable();
        format!("{all:?}")
    };
    let found = filters(&is.filter_subject, &is.filter_subjects);
    let parts = [
        ("subjects", found, filters(&wanted.filter_subject, &wanted.filter_subjects)),
        ("ack_policy", format!("{:?}", is.ack_policy), format!("{:?}", wanted.ack_policy)),
        ("ack_wait", format!("{:?}", is.ack_wait), format!("{:?}", wanted.ack_wait)),
        ("max_ack_pending", is.max_ack_pending.to_string(), wanted.max_ack_pending.to_string()),
        ("max_deliver", is.max_deliver.to_string(), wanted.max_deliver.to_string()),
        ("deliver_subject", format!("{:?}", is.deliver_subject), "None".to_owned()),
        ("headers_only", is.headers_only.to_string(), wanted.headers_only.to_string()),
        ("inactive_threshold", format!("{:?}", is.inactive_threshold), format!("{:?}", wanted.inactive_threshold)),
        ("mem_storage", is.memory_storage.to_string(), wanted.memory_storage.to_string()),
    ];
    let differing: Vec<String> = parts
        .into_iter()
        .filter(|(_, is, asked)| is != asked)
        .map(|(name, is, asked)| format!("{name} is {is}, asked for {asked}"))
        .collect();
    (!differing.is_empty()).then(|| differing.join("; "))
}
