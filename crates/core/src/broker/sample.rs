//! Called by monitoring: figures of a broker.

use async_trait::async_trait;

use crate::failure::Failure;

/// The state of a broker, as far as it reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerSample {
    /// The nodes of its cluster. `None` if the broker does not report them.
    pub nodes: Option<NodeCount>,
    /// Its dead-letter queues by name, with the number of messages in each.
    pub dead_letter_queues: Vec<(String, u64)>,
}

/// The nodes of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCount {
    /// Running nodes.
    pub running: u64,
    /// Known nodes, running or not.
    pub total: u64,
}

/// Samples a broker. Publishing does not depend on it.
#[async_trait]
pub trait BrokerMonitor: Send + Sync {
    /// Samples the broker. Values that the broker does not report are omitted.
    async fn sample(&self) -> Result<BrokerSample, Failure>;
}
