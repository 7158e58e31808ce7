//! Compares the configured topology with the server.

use std::time::Duration;

use async_nats::jetstream::consumer;
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
    pub(crate) fn compare(&self, seen: &ServerState) -> Vec<TopologyItem> {
        let mut pieces: Vec<TopologyItem> = self.streams.iter().map(|stream| stream.compare(seen)).collect();
        if !self.groups.is_empty() {
            pieces.push(bucket_item(seen));
        }
        for group in &self.groups {
            let is_known = self.streams.iter().any(|stream| stream.name == group.stream);
            pieces.extend((0..group.lane_count()).map(|lane| consumer_item(group, lane, seen, is_known)));
        }
        pieces
    }
}

impl Stream {
    fn compare(&self, seen: &ServerState) -> TopologyItem {
        let wanted = self.config(seen.version);
        let state = match seen.streams.get(&self.name) {
            None => foreign_subjects(&self.name, &self.subjects, seen),
            Some(found) => of(differences(&wanted, &found.config)),
        };
        TopologyItem { name: format!("stream `{}`", self.name), status: state }
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
fn foreign_subjects(name: &str, wanted: &[String], seen: &ServerState) -> TopologyStatus {
    let has = |other: &&stream::Info| {
        let theirs = &other.config.subjects;
        other.config.name != name && theirs.iter().any(|their| wanted.iter().any(|ours| overlap(ours, their)))
    };
    match seen.streams.values().find(has) {
        None => TopologyStatus::Missing,
        Some(other) => {
            let found = format!("stored by stream `{}` as {}", other.config.name, other.config.subjects.join(", "));
            TopologyStatus::Different(vec![difference("subjects", &wanted.join(", "), &found)])
        }
    }
}

/// The bucket of lanes. Its replica count and duplicate window may differ, because they do not affect its purpose.
fn bucket_item(seen: &ServerState) -> TopologyItem {
    let state = match seen.streams.get(&lane_store::stream_name()) {
        None => TopologyStatus::Missing,
        Some(stream::Info { config: found, .. }) => {
            let wanted = stream::Config {
                duplicate_window: found.duplicate_window,
                allow_atomic_publish: found.allow_atomic_publish,
                ..bucket_config(found.num_replicas)
            };
            of(differences(&wanted, found))
        }
    };
    TopologyItem { name: format!("bucket `{BUCKET}`"), status: state }
}

/// A durable consumer. Its stream must exist, unless the topology creates it first.
fn consumer_item(group: &Group, lane: u16, seen: &ServerState, is_known: bool) -> TopologyItem {
    let name = group.durable(lane);
    let state = match seen.consumers.get(&(group.stream.clone(), name.clone())) {
        None if !is_known && !seen.streams.contains_key(&group.stream) => TopologyStatus::Different(vec![difference(
            "stream",
            &group.stream,
            "neither at the server nor in the topology",
        )]),
        None => TopologyStatus::Missing,
        Some(found) => of(consumer_differences(group, lane, &found.config)),
    };
    TopologyItem { name: format!("consumer `{name}` of stream `{}`", group.stream), status: state }
}

fn differences(wanted: &stream::Config, found: &stream::Config) -> Vec<Difference> {
    let no_limit = |limit: i64| if limit <= 0 { "none".to_owned() } else { limit.to_string() };
    let time = |time: Duration| if time.is_zero() { "none".to_owned() } else { format!("{time:?}") };
    let rows = [
        ("storage", format!("{:?}", wanted.storage), format!("{:?}", found.storage)),
        ("num_replicas", wanted.num_replicas.to_string(), found.num_replicas.to_string()),
        ("retention", format!("{:?}", wanted.retention), format!("{:?}", found.retention)),
        ("max_age", time(wanted.max_age), time(found.max_age)),
        ("max_bytes", no_limit(wanted.max_bytes), no_limit(found.max_bytes)),
        ("max_msgs", no_limit(wanted.max_messages), no_limit(found.max_messages)),
        ("max_msgs_per_subject", no_limit(wanted.max_messages_per_subject), no_limit(found.max_messages_per_subject)),
        ("max_msg_size", no_limit(wanted.max_message_size.into()), no_limit(found.max_message_size.into())),
        ("discard", format!("{:?}", wanted.discard), format!("{:?}", found.discard)),
        ("duplicate_window", time(wanted.duplicate_window), time(found.duplicate_window)),
        ("no_ack", wanted.no_ack.to_string(), found.no_ack.to_string()),
        ("sealed", wanted.sealed.to_string(), found.sealed.to_string()),
        ("mirror", "none".to_owned(), found.mirror.as_ref().map_or("none".to_owned(), |mirror| mirror.name.clone())),
        ("allow_atomic_publish", wanted.allow_atomic_publish.to_string(), found.allow_atomic_publish.to_string()),
    ];
    let first = subjects(&wanted.subjects, &found.subjects);
    first.into_iter().chain(rows.into_iter().filter_map(row)).collect()
}

/// The differences of a durable consumer. The start position is not compared: its creator chooses it.
fn consumer_differences(group: &Group, lane: u16, found: &consumer::Config) -> Vec<Difference> {
    let wanted = group.consumer_config(lane);
    let filters = |one: &str, many: &[String]| if one.is_empty() { many.to_vec() } else { vec![one.to_owned()] };
    let first = subjects(
        &filters(&wanted.filter_subject, &wanted.filter_subjects),
        &filters(&found.filter_subject, &found.filter_subjects),
    );
    let push = found.deliver_subject.clone().unwrap_or_else(|| "none".to_owned());
    let replicas = |own| if own == 0 { "those of the stream".to_owned() } else { format!("{own}") };
    let rows = [
        ("ack_policy", format!("{:?}", wanted.ack_policy), format!("{:?}", found.ack_policy)),
        ("ack_wait", format!("{:?}", wanted.ack_wait), format!("{:?}", found.ack_wait)),
        ("max_ack_pending", wanted.max_ack_pending.to_string(), found.max_ack_pending.to_string()),
        ("max_deliver", wanted.max_deliver.to_string(), found.max_deliver.to_string()),
        ("deliver_subject", "none".to_owned(), push),
        ("headers_only", wanted.headers_only.to_string(), found.headers_only.to_string()),
        ("inactive_threshold", format!("{:?}", wanted.inactive_threshold), format!("{:?}", found.inactive_threshold)),
        ("mem_storage", wanted.memory_storage.to_string(), found.memory_storage.to_string()),
        // Without a value of its own, the consumer uses that of its stream.
        ("num_replicas", "those of the stream".to_owned(), replicas(found.num_replicas)),
    ];
    first.into_iter().chain(rows.into_iter().filter_map(row)).collect()
}

fn subjects(wanted: &[String], found: &[String]) -> Option<Difference> {
    let listed = |subjects: &[String]| {
        let mut subjects = subjects.to_vec();
        subjects.sort_unstable();
        if subjects.is_empty() { "all".to_owned() } else { subjects.join(", ") }
    };
    row(("subjects", listed(wanted), listed(found)))
}

fn row((setting, wanted, found): (&str, String, String)) -> Option<Difference> {
    (wanted != found).then(|| difference(setting, &wanted, &found))
}

fn difference(setting: &str, wanted: &str, found: &str) -> Difference {
    Difference { setting: setting.to_owned(), expected: wanted.to_owned(), actual: found.to_owned() }
}

fn of(differences: Vec<Difference>) -> TopologyStatus {
    if differences.is_empty() { TopologyStatus::Unchanged } else { TopologyStatus::Different(differences) }
}
