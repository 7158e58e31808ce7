//! Compares the configured topology with the server.

use std::time::Duration;

use async_nats::jetstream::consumer::{self, IntoConsumerConfig as _};
use async_nats::jetstream::stream::{self, DiscardPolicy, RetentionPolicy, StorageType};
use relevo_core::broker::admin::{Difference, TopologyItem, TopologyStatus};

use super::apply::bucket_config;
use super::validate::overlap;
use super::{BUCKET, Discard, Group, Retention, Storage, Stream, Topology};
use crate::consume::lane_store;
use crate::server_state::ServerState;

/// The first server version with atomic batches.
pub(crate) const ATOMIC_FROM: (u32, u32) = (2, 12);

impl Topology {
    /// The state of every part, in the order of creation.
    pub(crate) fn compare(&self, server: &ServerState) -> Vec<TopologyItem> {
        let mut items: Vec<TopologyItem> = self.streams.iter().map(|stream| stream.compare(server)).collect();
        if !self.groups.is_empty() {
            items.push(bucket_item(server));
        }
        for group in &self.groups {
            let creates_stream = self.streams.iter().any(|stream| stream.name == group.stream);
            items.extend((0..group.lane_count()).map(|lane| consumer_item(group, lane, server, creates_stream)));
        }
        items
    }
}

impl Stream {
    pub(super) fn compare(&self, server: &ServerState) -> TopologyItem {
        let status = match server.streams.get(&self.name) {
            None => missing_stream(&self.name, &self.subjects, server),
            Some(info) => stream_differences(&self.config(server.version), &info.config).into(),
        };
        TopologyItem { name: format!("stream `{}`", self.name), status }
    }

    /// The stream configuration to request. Settings that the server version does not support are left out.
    pub(crate) fn config(&self, version: (u32, u32)) -> stream::Config {
        let limit = |limit: Option<u64>| limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
        stream::Config {
            name: self.name.clone(),
            subjects: self.subjects.clone(),
            storage: match self.storage {
                Storage::File => StorageType::File,
                Storage::Memory => StorageType::Memory,
            },
            num_replicas: self.replicas,
            retention: match self.retention {
                Retention::Limits => RetentionPolicy::Limits,
                Retention::Interest => RetentionPolicy::Interest,
                Retention::WorkQueue => RetentionPolicy::WorkQueue,
            },
            max_age: self.max_age.unwrap_or(Duration::ZERO),
            max_bytes: limit(self.max_bytes),
            max_messages: limit(self.max_messages),
            max_messages_per_subject: -1,
            max_message_size: self.max_message_bytes.map_or(-1, |max| i32::try_from(max).unwrap_or(i32::MAX)),
            discard: match self.discard {
                Discard::New => DiscardPolicy::New,
                Discard::Old => DiscardPolicy::Old,
            },
            duplicate_window: self.duplicate_window,
            allow_atomic_publish: self.allow_atomic_publish && version >= ATOMIC_FROM,
            ..stream::Config::default()
        }
    }
}

/// The state of a missing stream, whose subjects another stream may store.
fn missing_stream(name: &str, subjects: &[String], server: &ServerState) -> TopologyStatus {
    let overlaps = |info: &&stream::Info| {
        let theirs = &info.config.subjects;
        info.config.name != name && theirs.iter().any(|their| subjects.iter().any(|own| overlap(own, their)))
    };
    let Some(other) = server.streams.values().find(overlaps) else { return TopologyStatus::Missing };
    let actual = format!("stored by stream `{}` as {}", other.config.name, other.config.subjects.join(", "));
    TopologyStatus::Different(Difference::between("subjects", &subjects.join(", "), &actual).into_iter().collect())
}

/// The bucket of lanes. Its replica count and duplicate window may differ, because they do not affect its purpose.
fn bucket_item(server: &ServerState) -> TopologyItem {
    let status = match server.streams.get(&lane_store::stream_name()) {
        None => TopologyStatus::Missing,
        Some(stream::Info { config: actual, .. }) => {
            let expected = stream::Config {
                duplicate_window: actual.duplicate_window,
                allow_atomic_publish: actual.allow_atomic_publish,
                ..bucket_config(actual.num_replicas)
            };
            stream_differences(&expected, actual).into()
        }
    };
    TopologyItem { name: format!("bucket `{BUCKET}`"), status }
}

/// A durable consumer. Its stream must exist, unless the topology creates it first.
fn consumer_item(group: &Group, lane: u16, server: &ServerState, creates_stream: bool) -> TopologyItem {
    let name = group.durable(lane);
    let status = match server.consumers.get(&(group.stream.clone(), name.clone())) {
        None if !creates_stream && !server.streams.contains_key(&group.stream) => {
            let actual = "missing on the server and in the topology";
            Difference::between("stream", group.stream.as_str(), actual).into_iter().collect::<Vec<_>>().into()
        }
        None => TopologyStatus::Missing,
        Some(info) => {
            let mut differences = consumer_differences(group, lane, &info.config);
            differences.extend(replica_difference(info.config.num_replicas));
            differences.into()
        }
    };
    TopologyItem { name: format!("consumer `{name}` of stream `{}`", group.stream), status }
}

fn stream_differences(expected: &stream::Config, actual: &stream::Config) -> Vec<Difference> {
    let limit = |limit: i64| if limit <= 0 { "none".to_owned() } else { limit.to_string() };
    let time = |time: Duration| if time.is_zero() { "none".to_owned() } else { format!("{time:?}") };
    let mirror = |config: &stream::Config| config.mirror.as_ref().map_or("none".to_owned(), |one| one.name.clone());
    let settings = |config: &stream::Config| {
        [
            ("subjects", list_subjects(&config.subjects)),
            ("storage", format!("{:?}", config.storage)),
            ("num_replicas", config.num_replicas.to_string()),
            ("retention", format!("{:?}", config.retention)),
            ("max_age", time(config.max_age)),
            ("max_bytes", limit(config.max_bytes)),
            ("max_msgs", limit(config.max_messages)),
            ("max_msgs_per_subject", limit(config.max_messages_per_subject)),
            ("max_msg_size", limit(config.max_message_size.into())),
            ("discard", format!("{:?}", config.discard)),
            ("duplicate_window", time(config.duplicate_window)),
            ("no_ack", config.no_ack.to_string()),
            ("sealed", config.sealed.to_string()),
            ("mirror", mirror(config)),
            ("allow_atomic_publish", config.allow_atomic_publish.to_string()),
        ]
    };
    differences(settings(expected), settings(actual))
}

/// The differences that change what a consumer receives. The start position is not compared: its creator chooses it.
pub(super) fn consumer_differences(group: &Group, lane: u16, actual: &consumer::Config) -> Vec<Difference> {
    let settings = |config: &consumer::Config| {
        let filters = if config.filter_subject.is_empty() {
            list_subjects(&config.filter_subjects)
        } else {
            config.filter_subject.clone()
        };
        [
            ("subjects", filters),
            ("ack_policy", format!("{:?}", config.ack_policy)),
            ("ack_wait", format!("{:?}", config.ack_wait)),
            ("max_ack_pending", config.max_ack_pending.to_string()),
            ("max_deliver", config.max_deliver.to_string()),
            ("deliver_subject", config.deliver_subject.clone().unwrap_or_else(|| "none".to_owned())),
            ("headers_only", config.headers_only.to_string()),
            ("inactive_threshold", format!("{:?}", config.inactive_threshold)),
            ("mem_storage", config.memory_storage.to_string()),
        ]
    };
    differences(settings(&group.consumer_config(lane).into_consumer_config()), settings(actual))
}

/// A replica count of its own, which makes a consumer less safe than its stream.
fn replica_difference(replicas: usize) -> Option<Difference> {
    let actual = if replicas == 0 { "that of the stream".to_owned() } else { replicas.to_string() };
    Difference::between("num_replicas", "that of the stream", &actual)
}

fn differences<const N: usize>(expected: [(&str, String); N], actual: [(&str, String); N]) -> Vec<Difference> {
    let pairs = expected.into_iter().zip(actual);
    pairs.filter_map(|((name, expected), (_, actual))| Difference::between(name, &expected, &actual)).collect()
}

fn list_subjects(subjects: &[String]) -> String {
    let mut subjects = subjects.to_vec();
    subjects.sort_unstable();
    if subjects.is_empty() { "all".to_owned() } else { subjects.join(", ") }
}
