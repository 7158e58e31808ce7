//! Creates a group on the server and verifies it.

use async_nats::Client;
use async_nats::jetstream::consumer::{self, Info};
use async_nats::jetstream::context::{ConsumerInfoError, ConsumerInfoErrorKind, ContextBuilder, GetStreamErrorKind};
use async_nats::jetstream::{Context, ErrorCode, stream};

use crate::classify::{Error, api};
use crate::config::Config;
use crate::connection;
use crate::group::{BUCKET, Group};
use crate::lanes::stream_name;

/// Creates the parts of a group: a durable consumer per lane, and the bucket of lanes. Existing parts are not changed.
/// A consumer that differs is an error that says how.
///
/// The response of the server is checked, because an old server accepts settings that it does not know and ignores
/// them.
pub async fn declare_group(config: &Config, group: &Group) -> Result<(), Error> {
    group.validate()?;
    let client = connection::connect(config).await?;
    let context = context(&client, config);
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

/// The context of every API call.
pub(crate) fn context(client: &Client, config: &Config) -> Context {
    ContextBuilder::new().timeout(config.confirm_timeout).build(client.clone())
}

/// Verifies that every part exists with the requested settings.
pub(super) async fn verify_group(context: &Context, group: &Group) -> Result<(), Error> {
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
pub(super) fn is_consumer_not_found(error: &ConsumerInfoError) -> bool {
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
