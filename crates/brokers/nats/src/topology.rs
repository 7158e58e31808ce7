//! The configured topology: streams and consumer groups, as plain data.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, ReplayPolicy, pull};
use relevo_config::{DurationText, KeyPath, Problem, Reader, Section, SizeText, reference};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) mod apply;
mod compare;
pub(crate) mod validate;

pub(crate) use compare::ATOMIC_FROM;

/// The configured topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The streams, created first and in this order.
    pub streams: Vec<Stream>,
    /// The groups, each with its durable consumers.
    pub groups: Vec<Group>,
}

/// A stream. By default it keeps every confirmed message until an operator deletes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Stream {
    /// The name. The default is the name of the table.
    #[schemars(extend("examples" = ["ORDERS"]))]
    pub name: String,
    /// The subjects that it stores, with the NATS wildcards `*` and `>`. At least one.
    #[schemars(extend("examples" = [["orders.>"]], "x-required" = true))]
    pub subjects: Vec<String>,
    /// Where messages are stored.
    pub storage: Storage,
    /// The number of replicas in a cluster.
    pub replicas: usize,
    /// When messages are deleted.
    pub retention: Retention,
    /// The maximum age of a message.
    #[serde(with = "DurationText")]
    #[schemars(extend("examples" = ["7d"]))]
    pub max_age: Option<Duration>,
    /// The maximum size in bytes.
    #[serde(with = "SizeText")]
    #[schemars(extend("examples" = ["10GiB"]))]
    pub max_bytes: Option<u64>,
    /// The maximum number of messages.
    #[schemars(extend("examples" = [10_000_000]))]
    pub max_messages: Option<u64>,
    /// The maximum size of a message.
    #[serde(with = "SizeText")]
    #[schemars(extend("examples" = ["1MiB"]))]
    pub max_message_bytes: Option<u32>,
    /// What happens when the stream is full.
    pub discard: Discard,
    /// How long the server detects duplicates.
    #[serde(with = "DurationText")]
    pub duplicate_window: Duration,
    /// Whether atomic batches are enabled, if the server supports them (2.12 and later).
    pub allow_atomic_publish: bool,
}

impl Stream {
    /// A stream with file storage, one replica, no limits and a duplicate window of ten minutes.
    pub fn new<S: Into<String>>(name: impl Into<String>, subjects: impl IntoIterator<Item = S>) -> Self {
        let subjects = subjects.into_iter().map(Into::into).collect();
        Self { name: name.into(), subjects, ..Self::default() }
    }
}

impl Default for Stream {
    /// Without a name and subjects.
    fn default() -> Self {
        Self {
            name: String::new(),
            subjects: Vec::new(),
            storage: Storage::File,
            replicas: 1,
            retention: Retention::Limits,
            max_age: None,
            max_bytes: None,
            max_messages: None,
            max_message_bytes: None,
            discard: Discard::New,
            duplicate_window: Duration::from_mins(10),
            allow_atomic_publish: true,
        }
    }
}

/// Where a stream stores its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// In files.
    #[default]
    File,
    /// In memory: lost when the server stops.
    Memory,
}

/// When a stream deletes messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Retention {
    /// Only by the limits of age and size.
    #[default]
    Limits,
    /// Also when every consumer has acknowledged the message. Without consumers nothing is stored.
    Interest,
    /// Also when its one consumer has acknowledged the message.
    WorkQueue,
}

/// What a full stream does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Discard {
    /// Refuses new messages.
    #[default]
    New,
    /// Drops the oldest messages, consumed or not.
    Old,
}

/// The bucket in which consumers lease their lanes and record unacknowledged messages.
pub(crate) const BUCKET: &str = "relevo-lanes";

/// A group of consumers that share the messages of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Group {
    /// The name, by default that of the table. The durable consumers are named `name-0`, `name-1` … with lanes, and
    /// `name` without.
    #[schemars(extend("examples" = ["billing"]))]
    pub name: String,
    /// The stream that the group reads.
    #[schemars(extend("examples" = ["ORDERS"], "x-required" = true))]
    pub stream: String,
    /// The subjects of the stream to read, without the lane token. Empty means all. More than one needs a server from
    /// 2.10 on.
    pub subjects: Vec<String>,
    /// The number of lanes that publishers use in the subject.
    #[schemars(extend("examples" = [8]))]
    pub lanes: Option<u16>,
    /// How long the server waits for an acknowledgement or a progress signal before it redelivers a message.
    #[serde(with = "DurationText")]
    pub ack_wait: Duration,
    /// The maximum number of unacknowledged messages per lane.
    /// It must be at least a consumer's prefetch, and at most 10 000.
    pub max_ack_pending: usize,
}

impl Group {
    /// A group without lanes that reads all messages of a stream whose subject matches.
    pub fn new<S: Into<String>>(
        name: impl Into<String>,
        stream: impl Into<String>,
        subjects: impl IntoIterator<Item = S>,
    ) -> Self {
        let subjects = subjects.into_iter().map(Into::into).collect();
        Self { name: name.into(), stream: stream.into(), subjects, ..Self::default() }
    }

    /// The number of lanes: one for a group without lanes.
    pub(crate) fn lane_count(&self) -> u16 {
        self.lanes.unwrap_or(1)
    }

    /// The name of a lane's durable consumer.
    pub(crate) fn durable(&self, lane: u16) -> String {
        if self.lanes.is_some() { format!("{}-{lane}", self.name) } else { self.name.clone() }
    }

    /// The subjects that a lane's consumer reads. Empty means all.
    pub(crate) fn filters(&self, lane: u16) -> Vec<String> {
        let with_lane = |subject: &String| match self.lanes {
            Some(_) => format!("{subject}.{lane}"),
            None => subject.clone(),
        };
        self.subjects.iter().map(with_lane).collect()
    }

    /// The configuration of a lane's durable consumer.
    pub(crate) fn consumer_config(&self, lane: u16) -> pull::Config {
        let filters = self.filters(lane);
        let (filter_subject, filter_subjects) = match <[String; 1]>::try_from(filters) {
            Ok([one]) => (one, Vec::new()),
            Err(filters) => (String::new(), filters),
        };
        pull::Config {
            durable_name: Some(self.durable(lane)),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.ack_wait,
            // Without a limit: the inbox dead-letters messages that cannot be handled, the server would drop them.
            max_deliver: -1,
            filter_subject,
            filter_subjects,
            replay_policy: ReplayPolicy::Instant,
            max_ack_pending: i64::try_from(self.max_ack_pending).unwrap_or(i64::MAX),
            ..pull::Config::default()
        }
    }
}

impl Default for Group {
    /// Without a name and a stream.
    fn default() -> Self {
        Self {
            name: String::new(),
            stream: String::new(),
            subjects: Vec::new(),
            lanes: None,
            ack_wait: Duration::from_secs(30),
            max_ack_pending: 1_000,
        }
    }
}

impl Section for Stream {}

impl Section for Group {}

impl Topology {
    /// Reads the tables `streams` and `groups` of a broker.
    pub(crate) fn read(reader: &mut Reader, at: &KeyPath) -> Option<Self> {
        let before = reader.problem_count();
        let mut topology = Self::default();
        for (name, at) in reader.tables(&at.name("streams")) {
            let Some(mut stream) = reader.read::<Stream>(&at) else { continue };
            stream.name = named(stream.name, name);
            if let Err(error) = stream.validate() {
                reader.problem(&at, Problem::new(error.to_string()));
            }
            topology.streams.push(stream);
        }
        for (name, at) in reader.tables(&at.name("groups")) {
            let Some(mut group) = reader.read::<Group>(&at) else { continue };
            group.name = named(group.name, name);
            if group.stream.is_empty() {
                reader.problem(&at, Problem::new(format!("`{at}` has no `stream`")));
            } else if let Err(error) = group.validate() {
                reader.problem(&at, Problem::new(error.to_string()));
            }
            topology.groups.push(group);
        }
        (reader.problem_count() == before).then_some(topology)
    }

    /// The stream to create for a name that no table declares. `None` if one does.
    pub(crate) fn implied_stream(&self, name: &str) -> Option<Stream> {
        let is_declared = self.streams.iter().any(|stream| stream.name == name);
        (!is_declared).then(|| Stream::new(name, [format!("{name}.>")]))
    }

    /// Adds these tables to the schema of a broker.
    pub(crate) fn add_schema(schema: serde_json::Value) -> serde_json::Value {
        let streams = reference::named("A stream that is created if it is missing.", reference::schema_of::<Stream>());
        let about = "A group of consumers that is created if it is missing: its durable pull consumers.";
        let groups = reference::named(about, reference::schema_of::<Group>());
        reference::with(reference::with(schema, "streams", streams), "groups", groups)
    }
}

fn named(name: String, table: String) -> String {
    if name.is_empty() { table } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lane_has_a_durable_consumer_with_the_lane_as_last_token() {
        let group = Group { lanes: Some(4), ..Group::new("billing", "ORDERS", ["orders", "invoices.*"]) };
        assert_eq!(group.durable(3), "billing-3");
        assert_eq!(group.filters(3), ["orders.3", "invoices.*.3"]);
        assert_eq!(group.consumer_config(3).filter_subjects, ["orders.3", "invoices.*.3"]);
    }

    #[test]
    fn a_group_without_lanes_is_one_durable_consumer_of_its_name() {
        let group = Group::new("billing", "ORDERS", ["orders"]);
        assert_eq!((group.lane_count(), group.durable(0)), (1, "billing".to_owned()));
        let config = group.consumer_config(0);
        // A single subject uses the field that every server version supports.
        assert_eq!((config.filter_subject.as_str(), config.filter_subjects.len()), ("orders", 0));
        assert_eq!(config.ack_policy, AckPolicy::Explicit);
    }
}
