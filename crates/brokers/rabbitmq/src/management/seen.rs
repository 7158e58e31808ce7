//! Responses of the management API, with only the fields that are used.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A queue on the broker.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct QueueInfo {
    pub(crate) name: String,
    pub(crate) durable: bool,
    #[serde(default, deserialize_with = "flag")]
    pub(crate) auto_delete: bool,
    /// The broker returns `null` for queue types that cannot be exclusive.
    #[serde(default, deserialize_with = "flag")]
    pub(crate) exclusive: bool,
    #[serde(default)]
    pub(crate) arguments: BTreeMap<String, Value>,
    #[serde(rename = "type", default = "classic")]
    pub(crate) kind: String,
    /// The name of the effective policy.
    #[serde(default)]
    pub(crate) policy: Option<String>,
    /// The nodes with a replica of a quorum queue.
    #[serde(default)]
    pub(crate) members: Vec<String>,
    /// The number of messages. The broker omits it for an unreachable queue.
    #[serde(default)]
    pub(crate) messages: u64,
}

/// An exchange on the broker.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ExchangeInfo {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) durable: bool,
    pub(crate) auto_delete: bool,
    pub(crate) internal: bool,
    #[serde(default)]
    pub(crate) arguments: BTreeMap<String, Value>,
    #[serde(default)]
    pub(crate) policy: Option<String>,
}

/// A binding on the broker.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct BindingInfo {
    pub(crate) source: String,
    pub(crate) destination: String,
    /// `queue` or `exchange`.
    pub(crate) destination_type: String,
    pub(crate) routing_key: String,
    #[serde(default)]
    pub(crate) arguments: BTreeMap<String, Value>,
}

/// A policy on the broker.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct PolicyInfo {
    pub(crate) name: String,
    pub(crate) pattern: String,
    #[serde(rename = "apply-to")]
    pub(crate) apply_to: String,
    #[serde(default)]
    pub(crate) definition: BTreeMap<String, Value>,
    #[serde(default)]
    pub(crate) priority: i64,
}

/// A node of the cluster.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct NodeInfo {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) running: bool,
}

/// A feature flag.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct FeatureFlagInfo {
    pub(crate) name: String,
    pub(crate) state: String,
}

#[derive(Deserialize)]
pub(super) struct Overview {
    pub(super) rabbitmq_version: String,
}

fn classic() -> String {
    "classic".to_owned()
}

fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<bool>::deserialize(deserializer)?.unwrap_or_default())
}
