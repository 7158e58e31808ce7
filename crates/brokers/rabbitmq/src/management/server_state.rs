//! The state of a virtual host, read once from the management API. Responses have only the fields that are used.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::ManagementClient;
use crate::classify::Error;

/// A virtual host and its cluster at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerState {
    pub(crate) queues: BTreeMap<String, QueueInfo>,
    pub(crate) exchanges: BTreeMap<String, ExchangeInfo>,
    pub(crate) bindings: Vec<BindingInfo>,
    pub(crate) policies: BTreeMap<String, PolicyInfo>,
    /// `None` without permission.
    pub(crate) operator_policies: Option<Vec<PolicyInfo>>,
    /// The nodes of the cluster and whether each runs; `None` without permission.
    pub(crate) nodes: Option<BTreeMap<String, bool>>,
    /// The enabled feature flags; `None` without permission.
    pub(crate) flags: Option<BTreeSet<String>>,
    /// Such as `3.10.8`.
    pub(crate) version: String,
}

impl ManagementClient {
    /// Reads everything.
    pub(crate) async fn server_state(&self) -> Result<ServerState, Error> {
        let flags = self.flags().await?;
        let enabled = |flag: &FeatureFlagInfo| flag.state == "enabled";
        let nodes = self.nodes().await?;
        Ok(ServerState {
            queues: self.queues().await?.into_iter().map(|queue| (queue.name.clone(), queue)).collect(),
            exchanges: self.exchanges().await?.into_iter().map(|one| (one.name.clone(), one)).collect(),
            bindings: self.bindings().await?,
            policies: self.policies().await?.into_iter().map(|policy| (policy.name.clone(), policy)).collect(),
            operator_policies: self.operator_policies().await?,
            nodes: nodes.map(|nodes| nodes.into_iter().map(|node| (node.name, node.running)).collect()),
            flags: flags.map(|flags| flags.into_iter().filter(enabled).map(|flag| flag.name).collect()),
            version: self.version().await?,
        })
    }
}

impl ServerState {
    /// The effective setting of a queue, such as `message-ttl`, from the argument `x-message-ttl` or from a policy.
    ///
    /// As on the broker, the smaller of two limits applies; for text, the argument applies.
    pub(crate) fn setting<'a>(&'a self, queue: &'a QueueInfo, name: &str) -> Option<&'a Value> {
        match self.argument_and_policy(queue, name) {
            (Some(argument), Some(policy)) => match (argument.as_i64(), policy.as_i64()) {
                (Some(a), Some(b)) if b < a => Some(policy),
                _ => Some(argument),
            },
            (argument, policy) => argument.or(policy),
        }
    }

    /// The argument of a queue, and the value of its policy.
    pub(crate) fn argument_and_policy<'a>(
        &'a self,
        queue: &'a QueueInfo,
        name: &str,
    ) -> (Option<&'a Value>, Option<&'a Value>) {
        let argument = queue.arguments.get(&format!("x-{name}"));
        let policy = queue.policy.as_ref().and_then(|policy| self.policies.get(policy));
        (argument, policy.and_then(|policy| policy.definition.get(name)))
    }

    /// The effective setting as text.
    pub(crate) fn text_setting<'a>(&'a self, queue: &'a QueueInfo, name: &str) -> Option<&'a str> {
        self.setting(queue, name).and_then(Value::as_str)
    }

    /// The alternate exchange of an exchange.
    pub(crate) fn alternate_exchange<'a>(&'a self, exchange: &'a ExchangeInfo) -> Option<&'a str> {
        let policy = exchange.policy.as_ref().and_then(|policy| self.policies.get(policy));
        let policy = policy.and_then(|policy| policy.definition.get("alternate-exchange"));
        exchange.arguments.get("alternate-exchange").or(policy).and_then(Value::as_str)
    }

    /// The number of nodes, if it is visible to the user.
    pub(crate) fn node_count(&self) -> Option<usize> {
        self.nodes.as_ref().map(BTreeMap::len)
    }

    /// Whether a feature flag is known to be disabled.
    pub(crate) fn lacks_feature_flag(&self, flag: &str) -> bool {
        self.flags.as_ref().is_some_and(|flags| !flags.contains(flag))
    }
}

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
