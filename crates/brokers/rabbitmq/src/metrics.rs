//! Samples metrics from the management API. Without it, only the lengths of the topology's own queues are sampled.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::Mutex;
use relevo_core::broker::sample::{BrokerMonitor, BrokerSample, NodeCount};
use relevo_core::failure::Failure;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::classify::Error;
use crate::config::Config;
use crate::management::{ManagementClient, QueueInfo};
use crate::topology::{Admin, Declarations, TopologyConnection};

/// The time limit of a management request, and of connecting to the broker for a sample.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(2500);
/// The time limit for counting all queues over an open connection.
const COUNT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time limit for connecting to one node. A running node accepts a connection sooner.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the last counts are reported while queues cannot be counted, so that a slow API does not end an alert.
/// Afterwards no counts are reported: an old number looks valid.
const KEPT: Duration = Duration::from_mins(2);

/// Dead-letter queues, with the number of messages in each.
type QueueCounts = Vec<(String, u64)>;

/// Values from earlier samples.
#[derive(Default)]
pub(crate) struct Remembered {
    /// The number of nodes in the cluster; zero until it is known.
    nodes: AtomicU64,
    /// Whether the last sample failed, so that only changes are logged.
    silent: AtomicBool,
    /// The time and the result of the last count.
    dead: Mutex<Option<(Instant, QueueCounts)>>,
    /// The connection for counting without the management API.
    counting: Mutex<Option<TopologyConnection>>,
}

impl Remembered {
    fn keep(&self, dead: &[(String, u64)], now: Instant) {
        *self.dead.lock() = Some((now, dead.to_vec()));
    }

    /// The last counts; empty if they are too old, and `None` if the queues were never counted.
    fn dead(&self, now: Instant) -> Option<QueueCounts> {
        let dead = self.dead.lock();
        let (at, counted) = dead.as_ref()?;
        Some(if now.duration_since(*at) < KEPT { counted.clone() } else { QueueCounts::new() })
    }
}

impl Admin {
    async fn try_sample(&self) -> Result<BrokerSample, Error> {
        let Some(management) = &self.management else { return self.sample_over_amqp().await };
        let Remembered { nodes, silent, .. } = &self.remembered;
        let late = |_| Err(Error::ManagementUnreachable(format!("it has not answered within {RESPONSE_TIMEOUT:?}")));
        match timeout(RESPONSE_TIMEOUT, self.sample_over_http(management)).await.unwrap_or_else(late) {
            Ok(vitals) => {
                nodes.store(vitals.nodes.map_or(0, |nodes| nodes.total), Ordering::Relaxed);
                self.remembered.keep(&vitals.dead_letter_queues, Instant::now());
                if silent.swap(false, Ordering::Relaxed) {
                    info!("the management API answers again");
                }
                Ok(vitals)
            }
            Err(error) => {
                let (nodes, dead) = (self.nodes_by_connection().await, self.remembered.dead(Instant::now()));
                if nodes.is_none() && dead.is_none() {
                    return Err(error);
                }
                if !silent.swap(true, Ordering::Relaxed) {
                    warn!(
                        %error,
                        "the management API does not answer: nodes are counted that take connections, queues are told as they were"
                    );
                }
                Ok(BrokerSample { nodes, dead_letter_queues: dead.unwrap_or_default() })
            }
        }
    }

    /// Without the management API, nodes and queues outside the topology are unknown.
    async fn sample_over_amqp(&self) -> Result<BrokerSample, Error> {
        let names = self.dead_letter_queues();
        if names.is_empty() {
            return Ok(BrokerSample::default());
        }
        let dead = match self.count_dead_letters(&names).await {
            Ok(dead) => {
                self.remembered.keep(&dead, Instant::now());
                if self.remembered.silent.swap(false, Ordering::Relaxed) {
                    info!("dead-letter queues can be counted again");
                }
                dead
            }
            Err(error) => {
                let Some(dead) = self.remembered.dead(Instant::now()) else { return Err(error) };
                if !self.remembered.silent.swap(true, Ordering::Relaxed) {
                    warn!(%error, "dead-letter queues cannot be counted: they are told as they were");
                }
                dead
            }
        };
        Ok(BrokerSample { nodes: None, dead_letter_queues: dead })
    }

    /// Counts over a connection that stays open while it works.
    async fn count_dead_letters(&self, names: &BTreeSet<String>) -> Result<QueueCounts, Error> {
        let kept = self.remembered.counting.lock().take().filter(TopologyConnection::is_connected);
        let maker = match kept {
            Some(maker) => maker,
            None => TopologyConnection::open_named(&self.quick(), "relevo sampling").await?,
        };
        let late = |_| Err(Error::NoResponse(COUNT_TIMEOUT));
        let counted = timeout(COUNT_TIMEOUT, count_messages(&maker, names)).await.unwrap_or_else(late)?;
        *self.remembered.counting.lock() = Some(maker);
        Ok(counted)
    }

    /// A configuration whose attempts to connect, over all URLs, fit into one sample. An abandoned attempt cannot be
    /// cancelled.
    fn quick(&self) -> Config {
        let urls = u32::try_from(self.config.urls.len()).unwrap_or(u32::MAX).max(1);
        let connect_deadline = self.config.connect_timeout.min(RESPONSE_TIMEOUT / urls);
        Config { connect_timeout: connect_deadline, ..self.config.clone() }
    }

    /// The dead-letter queues of the topology.
    fn dead_letter_queues(&self) -> BTreeSet<String> {
        self.config.topology.queues.iter().filter_map(|queue| queue.dead_letter_queue.clone()).collect()
    }

    /// Counts running nodes by connecting to them. The management API fails with its node, but the other nodes must
    /// still be counted. `None` if there are fewer addresses than nodes, as with a load balancer: the nodes cannot be
    /// distinguished.
    async fn nodes_by_connection(&self) -> Option<NodeCount> {
        let (known, places) = (self.remembered.nodes.load(Ordering::Relaxed), self.places());
        if known == 0 || (places.len() as u64) < known {
            return None;
        }
        Some(NodeCount { running: taking_connections(places).await.min(known), total: known })
    }

    async fn sample_over_http(&self, management: &ManagementClient) -> Result<BrokerSample, Error> {
        let nodes = management.nodes().await?.map(|nodes| NodeCount {
            running: nodes.iter().filter(|node| node.running).count() as u64,
            total: nodes.len() as u64,
        });
        let dead = dead_letter_counts(&management.queues().await?, &self.declarations, self.dead_letter_queues());
        Ok(BrokerSample { nodes, dead_letter_queues: dead })
    }

    /// The addresses of the nodes, from `urls`.
    fn places(&self) -> BTreeSet<(String, u16)> {
        let endpoints = self.config.endpoints().unwrap_or_default();
        endpoints.into_iter().map(|endpoint| (endpoint.authority.host, endpoint.authority.port)).collect()
    }
}

/// Counts the messages of these queues. A missing queue is left out, and closes only its own channel.
async fn count_messages(maker: &TopologyConnection, names: &BTreeSet<String>) -> Result<QueueCounts, Error> {
    let mut counted = QueueCounts::new();
    for name in names {
        if let Some(ready) = maker.message_count(name).await? {
            counted.push((name.clone(), ready));
        }
    }
    Ok(counted)
}

/// The number of nodes that accept a connection. Without the management API this is the only evidence that a node runs.
async fn taking_connections(places: BTreeSet<(String, u16)>) -> u64 {
    let attempts = places.into_iter().map(|place| timeout(CONNECT_TIMEOUT, TcpStream::connect(place)));
    join_all(attempts).await.iter().filter(|attempt| matches!(attempt, Ok(Ok(_)))).count() as u64
}

#[async_trait]
impl BrokerMonitor for Admin {
    async fn sample(&self) -> Result<BrokerSample, Failure> {
        Ok(self.try_sample().await?)
    }
}

/// The maximum number of reported queues outside the topology: other users of the virtual host may have any number.
const OTHER_QUEUES_MAX: usize = 100;

/// The dead-letter queues: those of the topology, and those that another queue dead-letters to directly, limited to the
/// first ones by name. The target of a queue with a message TTL does not count, because that queue is a delay. Nor does
/// a target that dead-letters further, or that the topology consumes.
fn dead_letter_counts(queues: &[QueueInfo], declared: &Declarations, mut dead: BTreeSet<String>) -> Vec<(String, u64)> {
    let mut found = BTreeSet::new();
    let text = |queue: &QueueInfo, name: &str| queue.arguments.get(name).and_then(Value::as_str).map(str::to_owned);
    let seen: BTreeMap<&str, &QueueInfo> = queues.iter().map(|queue| (queue.name.as_str(), queue)).collect();
    let is_work = |name: &str| declared.queues.iter().any(|queue| queue.consumed && queue.name == name);
    for queue in queues.iter().filter(|queue| !queue.arguments.contains_key("x-message-ttl")) {
        let straight = text(queue, "x-dead-letter-exchange").is_some_and(|exchange| exchange.is_empty());
        let Some(target) = text(queue, "x-dead-letter-routing-key").filter(|_| straight) else { continue };
        let passes_on = |it: &&QueueInfo| it.arguments.contains_key("x-dead-letter-exchange");
        if !is_work(&target) && !dead.contains(&target) && !seen.get(target.as_str()).is_some_and(passes_on) {
            found.insert(target);
        }
    }
    dead.extend(found.into_iter().take(OTHER_QUEUES_MAX));
    dead.into_iter().filter_map(|name| seen.get(name.as_str()).map(|queue| (name.clone(), queue.messages))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;
    use crate::topology::{Queue, Topology};

    fn queue(name: &str, messages: u64, arguments: Value) -> QueueInfo {
        let arguments = serde_json::from_value(arguments).expect("an object");
        QueueInfo { name: name.to_owned(), messages, arguments, ..QueueInfo::default() }
    }

    #[test]
    fn dead_letter_queues_are_counted_and_retry_queues_are_not() {
        let to = |key: &str| json!({ "x-dead-letter-exchange": "", "x-dead-letter-routing-key": key });
        let mut pause = to("billing");
        pause["x-message-ttl"] = json!(2000);
        let queues = [
            queue("billing", 5, to("billing.dead")),
            queue("billing.dead", 3, json!({})),
            queue("billing.retry.2000", 7, pause),
            queue("other", 1, to("graveyard")),
            queue("graveyard", 2, json!({})),
            queue("plain", 9, json!({})),
        ];
        let topology = Topology { queues: vec![Queue::new("billing")], ..Topology::default() };
        let found = dead_letter_counts(&queues, &topology.declarations(), BTreeSet::from(["billing.dead".to_owned()]));
        assert_eq!(found, [("billing.dead".to_owned(), 3), ("graveyard".to_owned(), 2)]);
    }

    #[test]
    fn other_queues_are_reported_up_to_a_limit_and_those_of_the_topology_always() {
        let to = |key: String| json!({ "x-dead-letter-exchange": "", "x-dead-letter-routing-key": key });
        let pair =
            |n| [queue(&format!("q{n:04}"), 0, to(format!("d{n:04}"))), queue(&format!("d{n:04}"), 1, json!({}))];
        let mut queues: Vec<QueueInfo> = (0..1000).flat_map(pair).collect();
        queues.push(queue("ours.dead", 5, json!({})));
        let told =
            dead_letter_counts(&queues, &Topology::default().declarations(), BTreeSet::from(["ours.dead".to_owned()]));
        assert_eq!(told.len(), OTHER_QUEUES_MAX + 1);
        assert!(told.contains(&("ours.dead".to_owned(), 5)) && told.contains(&("d0000".to_owned(), 1)), "{told:?}");
    }

    /// A cluster of three nodes whose size is known and whose management API is down.
    fn cluster_at(urls: Vec<String>) -> Admin {
        let management_url = Some("http://127.0.0.1:1".to_owned());
        let admin = Admin::new(Config { urls, management_url, ..Config::new("") }).expect("a configuration");
        admin.remembered.nodes.store(3, Ordering::Relaxed);
        admin
    }

    #[tokio::test]
    async fn nodes_are_counted_by_their_connections_only_where_each_has_a_place() {
        let listening = [TcpListener::bind("127.0.0.1:0").await, TcpListener::bind("127.0.0.1:0").await];
        let place = |node: &std::io::Result<TcpListener>| node.as_ref().expect("a port").local_addr().expect("bound");
        let [first, second] = listening.each_ref().map(|node| format!("amqp://{}", place(node)));
        let urls = vec![first.clone(), second.clone(), "amqp://127.0.0.1:1".to_owned()];
        let told = cluster_at(urls).try_sample().await.expect("all three are named");
        assert_eq!(told.nodes, Some(NodeCount { running: 2, total: 3 }));
        for fewer in [vec![first.clone()], vec![first.clone(), format!("{first}/%2f"), second]] {
            let error = cluster_at(fewer).try_sample().await.expect_err("nodes that are not named may run as well");
            assert!(matches!(error, Error::ManagementUnreachable(_)), "{error}");
        }
    }

    #[tokio::test]
    async fn queues_are_told_as_they_were_for_a_while_when_nobody_can_count_them() {
        let admin = cluster_at(vec!["amqp://127.0.0.1:1".to_owned()]);
        let (counted, now) = (vec![("billing.dead".to_owned(), 3)], Instant::now());
        assert_eq!(admin.remembered.dead(now), None, "they were never counted");
        admin.remembered.keep(&counted, now);
        let told = admin.try_sample().await.expect("the queues are known");
        assert_eq!(told, BrokerSample { nodes: None, dead_letter_queues: counted.clone() });
        assert_eq!(admin.remembered.dead(now + KEPT - CONNECT_TIMEOUT), Some(counted));
        assert_eq!(admin.remembered.dead(now + KEPT), Some(Vec::new()), "no number is better than an old one");
    }

    #[test]
    fn a_missing_queue_is_not_reported() {
        let declared = Topology::default().declarations();
        assert!(dead_letter_counts(&[], &declared, BTreeSet::from(["billing.dead".to_owned()])).is_empty());
    }
}
