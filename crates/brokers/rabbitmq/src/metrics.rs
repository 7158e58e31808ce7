//! Samples metrics from the management API. Without it, only the lengths of the topology's own queues are sampled.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::broker::sample::{BrokerMonitor, BrokerSample, NodeCount};
use relevo_core::failure::Failure;
use serde_json::Value;
use tokio::time::timeout;

use crate::classify::Error;
use crate::config::Config;
use crate::management::{ManagementClient, QueueInfo};
use crate::topology::{Declarations, TopologyConnection};

/// The time limit of one sample. All URLs must be tried within it, because an abandoned sample begins again with the
/// first one.
const SAMPLE_TIMEOUT: Duration = Duration::from_millis(2500);

/// Dead-letter queues, with the number of messages in each.
type QueueCounts = Vec<(String, u64)>;

/// Counts the nodes of the cluster, and the messages in dead-letter queues.
pub struct Monitor {
    config: Config,
    declarations: Declarations,
    management: Option<ManagementClient>,
    /// The connection for counting without the management API.
    connection: Mutex<Option<TopologyConnection>>,
}

impl Monitor {
    /// Validates the configuration. It sends no request to the broker.
    pub fn new(mut config: Config) -> Result<Self, Error> {
        config.validate()?;
        let urls = config.urls.len().max(config.management_urls.len());
        let share = SAMPLE_TIMEOUT / u32::try_from(urls).unwrap_or(u32::MAX).max(1);
        config.connect_timeout = config.connect_timeout.min(share);
        let (management, declarations) = (ManagementClient::new(&config)?, config.topology.declarations());
        Ok(Self { config, declarations, management, connection: Mutex::new(None) })
    }

    async fn sample_over_http(&self, management: &ManagementClient) -> Result<BrokerSample, Error> {
        let nodes = management.nodes().await?.map(|nodes| NodeCount {
            running: nodes.iter().filter(|node| node.running).count() as u64,
            total: nodes.len() as u64,
        });
        let queues = management.queues().await?;
        let dead_letter_queues = dead_letter_counts(&queues, &self.declarations, self.dead_letter_queues());
        Ok(BrokerSample { nodes, dead_letter_queues })
    }

    /// Without the management API, nodes and queues outside the topology are unknown. The connection stays open for the
    /// next sample.
    async fn sample_over_amqp(&self) -> Result<BrokerSample, Error> {
        let names = self.dead_letter_queues();
        if names.is_empty() {
            return Ok(BrokerSample::default());
        }
        let open = self.connection.lock().take().filter(TopologyConnection::is_connected);
        let connection = match open {
            Some(connection) => connection,
            None => TopologyConnection::open_named(&self.config, "relevo sampling").await?,
        };
        let dead_letter_queues = count_messages(&connection, names).await?;
        *self.connection.lock() = Some(connection);
        Ok(BrokerSample { nodes: None, dead_letter_queues })
    }

    /// The dead-letter queues of the topology.
    fn dead_letter_queues(&self) -> BTreeSet<String> {
        self.config.topology.queues.iter().filter_map(|queue| queue.dead_letter_queue.clone()).collect()
    }
}

/// Counts the messages of these queues. A missing queue is left out.
async fn count_messages(connection: &TopologyConnection, names: BTreeSet<String>) -> Result<QueueCounts, Error> {
    let mut counts = QueueCounts::new();
    for name in names {
        if let Some(ready) = connection.message_count(&name).await? {
            counts.push((name, ready));
        }
    }
    Ok(counts)
}

#[async_trait]
impl BrokerMonitor for Monitor {
    async fn sample(&self) -> Result<BrokerSample, Failure> {
        let sample = async {
            match &self.management {
                Some(management) => self.sample_over_http(management).await,
                None => self.sample_over_amqp().await,
            }
        };
        Ok(timeout(SAMPLE_TIMEOUT, sample).await.unwrap_or(Err(Error::NoResponse(SAMPLE_TIMEOUT)))?)
    }
}

/// The maximum number of reported queues outside the topology: other users of the virtual host may have any number.
const OTHER_QUEUES_MAX: usize = 100;

/// The dead-letter queues: those of the topology, and those that another queue dead-letters to directly, limited to the
/// first ones by name. The target of a queue with a message TTL does not count, because that queue is a delay. Nor does
/// a target that dead-letters further, or that the topology consumes.
fn dead_letter_counts(queues: &[QueueInfo], declared: &Declarations, mut names: BTreeSet<String>) -> QueueCounts {
    let mut found = BTreeSet::new();
    let text = |queue: &QueueInfo, name: &str| queue.arguments.get(name).and_then(Value::as_str).map(str::to_owned);
    let existing: BTreeMap<&str, &QueueInfo> = queues.iter().map(|queue| (queue.name.as_str(), queue)).collect();
    let is_consumed = |name: &str| declared.queues.iter().any(|queue| queue.consumed && queue.name == name);
    for queue in queues.iter().filter(|queue| !queue.arguments.contains_key("x-message-ttl")) {
        let is_direct = text(queue, "x-dead-letter-exchange").is_some_and(|exchange| exchange.is_empty());
        let Some(target) = text(queue, "x-dead-letter-routing-key").filter(|_| is_direct) else { continue };
        let passes_on = |queue: &&QueueInfo| queue.arguments.contains_key("x-dead-letter-exchange");
        if !is_consumed(&target) && !names.contains(&target) && !existing.get(target.as_str()).is_some_and(passes_on) {
            found.insert(target);
        }
    }
    names.extend(found.into_iter().take(OTHER_QUEUES_MAX));
    names
        .into_iter()
        .filter_map(|name| existing.get(name.as_str()).map(|queue| (name.clone(), queue.messages)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::topology::{Queue, Topology};

    fn queue(name: &str, messages: u64, arguments: Value) -> QueueInfo {
        let arguments = serde_json::from_value(arguments).expect("an object");
        QueueInfo { name: name.to_owned(), messages, arguments, ..QueueInfo::default() }
    }

    #[test]
    fn dead_letter_queues_are_counted_and_retry_queues_are_not() {
        let to = |key: &str| json!({ "x-dead-letter-exchange": "", "x-dead-letter-routing-key": key });
        let mut delay = to("billing");
        delay["x-message-ttl"] = json!(2000);
        let queues = [
            queue("billing", 5, to("billing.dead")),
            queue("billing.dead", 3, json!({})),
            queue("billing.retry.2000", 7, delay),
            queue("other", 1, to("failed")),
            queue("failed", 2, json!({})),
            queue("plain", 9, json!({})),
        ];
        let topology = Topology { queues: vec![Queue::new("billing")], ..Topology::default() };
        let found = dead_letter_counts(&queues, &topology.declarations(), BTreeSet::from(["billing.dead".to_owned()]));
        assert_eq!(found, [("billing.dead".to_owned(), 3), ("failed".to_owned(), 2)]);
    }

    #[test]
    fn other_queues_are_reported_up_to_a_limit_and_those_of_the_topology_always() {
        let to = |key: String| json!({ "x-dead-letter-exchange": "", "x-dead-letter-routing-key": key });
        let pair =
            |n| [queue(&format!("q{n:04}"), 0, to(format!("d{n:04}"))), queue(&format!("d{n:04}"), 1, json!({}))];
        let mut queues: Vec<QueueInfo> = (0..1000).flat_map(pair).collect();
        queues.push(queue("ours.dead", 5, json!({})));
        let counts =
            dead_letter_counts(&queues, &Topology::default().declarations(), BTreeSet::from(["ours.dead".to_owned()]));
        assert_eq!(counts.len(), OTHER_QUEUES_MAX + 1);
        assert!(
            counts.contains(&("ours.dead".to_owned(), 5)) && counts.contains(&("d0000".to_owned(), 1)),
            "{counts:?}"
        );
    }

    #[test]
    fn a_missing_queue_is_not_reported() {
        let declared = Topology::default().declarations();
        assert!(dead_letter_counts(&[], &declared, BTreeSet::from(["billing.dead".to_owned()])).is_empty());
    }
}
