//! The state of a virtual host, read once.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Management, SeenBinding, SeenExchange, SeenPolicy, SeenQueue};
use crate::classify::Error;

/// A virtual host and its cluster at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) queues: BTreeMap<String, SeenQueue>,
    pub(crate) exchanges: BTreeMap<String, SeenExchange>,
    pub(crate) bindings: Vec<SeenBinding>,
    pub(crate) policies: BTreeMap<String, SeenPolicy>,
    /// `None` without permission.
    pub(crate) operator_policies: Option<Vec<SeenPolicy>>,
    /// The nodes of the cluster and whether each runs; `None` without permission.
    pub(crate) nodes: Option<BTreeMap<String, bool>>,
    /// The enabled feature flags; `None` without permission.
    pub(crate) flags: Option<BTreeSet<String>>,
    /// Such as `3.10.8`.
    pub(crate) version: String,
}

impl Management {
    /// Reads everything.
    pub(crate) async fn snapshot(&self) -> Result<Snapshot, Error> {
        let flags = self.flags().await?;
        let enabled = |flag: &super::SeenFlag| flag.state == "enabled";
        let nodes = self.nodes().await?;
        Ok(Snapshot {
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

impl Snapshot {
    /// The effective setting of a queue, such as `message-ttl`, from the argument `x-message-ttl` or from a policy.
    ///
    /// As on the broker, the smaller of two limits applies; for text, the argument applies.
    pub(crate) fn setting<'a>(&'a self, queue: &'a SeenQueue, name: &str) -> Option<&'a Value> {
        match self.both(queue, name) {
            (Some(argument), Some(policy)) => match (argument.as_i64(), policy.as_i64()) {
                (Some(a), Some(b)) if b < a => Some(policy),
                _ => Some(argument),
            },
            (argument, policy) => argument.or(policy),
        }
    }

    /// The argument of a queue, and the value of its policy.
    pub(crate) fn both<'a>(&'a self, queue: &'a SeenQueue, name: &str) -> (Option<&'a Value>, Option<&'a Value>) {
        let argument = queue.arguments.get(&format!("x-{name}"));
        let policy = queue.policy.as_ref().and_then(|policy| self.policies.get(policy));
        (argument, policy.and_then(|policy| policy.definition.get(name)))
    }

    /// The effective setting as text.
    pub(crate) fn text<'a>(&'a self, queue: &'a SeenQueue, name: &str) -> Option<&'a str> {
        self.setting(queue, name).and_then(Value::as_str)
    }

    /// The alternate exchange of an exchange.
    pub(crate) fn alternate<'a>(&'a self, exchange: &'a SeenExchange) -> Option<&'a str> {
        let policy = exchange.policy.as_ref().and_then(|policy| self.policies.get(policy));
        let policy = policy.and_then(|policy| policy.definition.get("alternate-exchange"));
        exchange.arguments.get("alternate-exchange").or(policy).and_then(Value::as_str)
    }

    /// The number of nodes, if it is visible to the user.
    pub(crate) fn node_count(&self) -> Option<usize> {
        self.nodes.as_ref().map(BTreeMap::len)
    }

    /// Whether a feature flag is known to be disabled.
    pub(crate) fn lacks(&self, flag: &str) -> bool {
        self.flags.as_ref().is_some_and(|flags| !flags.contains(flag))
    }
}
