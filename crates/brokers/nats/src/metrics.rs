//! Samples metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::{Context, ErrorCode, stream};
use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::Mutex;
use relevo_core::broker::sample::{BrokerMonitor, BrokerSample, NodeCount};
use relevo_core::failure::Failure;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::classify::Error;
use crate::config::Config;
use crate::connection::{self, jetstream};

/// Replicas respond to their leader about once a second. The server reports a killed one as offline only after a
/// minute.
const SILENT_AFTER: Duration = Duration::from_secs(10);

/// All streams are requested at the same time. A stream without a response by then has no node that can respond. The
/// caller waits for all of them, so this limits the whole sample.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Samples over its own connection, which stays open.
pub struct Monitor {
    config: Config,
    client: OnceCell<async_nats::Client>,
    /// The last known number of nodes with a replica, by stream.
    node_counts: Mutex<BTreeMap<String, u64>>,
}

/// The stream does not respond.
struct NoResponse;

/// The information of a stream; `None` if the stream does not exist.
type StreamResponse = Result<Option<stream::Info>, NoResponse>;

impl Monitor {
    /// Creates the monitor. It sends no request to the server.
    pub fn new(config: Config) -> Result<Self, Error> {
        connection::servers(&config)?;
        Ok(Self { config, client: OnceCell::new(), node_counts: Mutex::default() })
    }

    async fn try_sample(&self) -> Result<BrokerSample, Error> {
        // The client reconnects to the server by itself.
        let client = self.client.get_or_try_init(|| connection::connect(&self.config)).await?;
        let topology = &self.config.topology;
        let groups = topology.groups.iter();
        if client.connection_state() != State::Connected {
            let nodes = self
                .node_counts
                .lock()
                .values()
                .map(|&total| NodeCount { running: 0, total })
                .min_by_key(missing_nodes);
            return Ok(BrokerSample { nodes, dead_letter_queues: Vec::new() });
        }
        let context = jetstream(client, &self.config);
        let mut streams: BTreeSet<String> = groups.map(|group| group.stream.clone()).collect();
        streams.extend(topology.streams.iter().map(|stream| stream.name.clone()));
        let responses = join_all(streams.iter().map(|name| stream_info(&context, name))).await;
        let nodes = streams.iter().zip(&responses).filter_map(|(name, response)| self.nodes_of(name, response));
        Ok(BrokerSample { nodes: nodes.min_by_key(missing_nodes), dead_letter_queues: Vec::new() })
    }

    /// The nodes of a stream. A replicated stream responds while most of its nodes run. If it does not respond, only
    /// the server of this connection is known to run.
    fn nodes_of(&self, name: &str, response: &StreamResponse) -> Option<NodeCount> {
        let mut counts = self.node_counts.lock();
        match response {
            Ok(info) => {
                let cluster = info.as_ref().and_then(|info| info.cluster.as_ref());
                let nodes = cluster.map(|cluster| nodes(cluster, counts.get(name).copied()));
                match nodes {
                    Some(nodes) => counts.insert(name.to_owned(), nodes.total),
                    None => counts.remove(name),
                };
                nodes
            }
            Err(NoResponse) => {
                counts.get(name).filter(|total| **total > 1).map(|&total| NodeCount { running: 1, total })
            }
        }
    }
}

async fn stream_info(context: &Context, name: &str) -> StreamResponse {
    match timeout(RESPONSE_TIMEOUT, context.get_stream(name)).await {
        Ok(Ok(stream)) => Ok(Some(stream.cached_info().clone())),
        Ok(Err(error)) => match error.kind() {
            GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(None),
            GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => Ok(None),
            GetStreamErrorKind::JetStream(_) | GetStreamErrorKind::Request => Err(NoResponse),
        },
        Err(_) => Err(NoResponse),
    }
}

/// The nodes that have a replica of the stream. A single server counts as one, or is not reported. A leader lists the
/// other nodes. Without a leader any node responds; it may or may not list itself.
fn nodes(cluster: &stream::ClusterInfo, known: Option<u64>) -> NodeCount {
    let online = cluster.replicas.iter().filter(|peer| is_running(peer)).count() as u64;
    let listed = cluster.replicas.len() as u64;
    match cluster.leader {
        Some(_) => NodeCount { running: 1 + online, total: 1 + listed },
        None => NodeCount { running: online.max(1), total: listed.max(known.unwrap_or(1)) },
    }
}

/// A new leader that never reached a dead replica reports zero.
fn is_running(peer: &stream::PeerInfo) -> bool {
    !peer.offline && (peer.current || !peer.active.is_zero()) && peer.active < SILENT_AFTER
}

/// Selects the stream that has lost the most nodes; among equals, the one with the fewest running nodes.
fn missing_nodes(nodes: &NodeCount) -> (i64, u64) {
    (nodes.running.cast_signed() - nodes.total.cast_signed(), nodes.running)
}

#[async_trait]
impl BrokerMonitor for Monitor {
    async fn sample(&self) -> Result<BrokerSample, Failure> {
        Ok(self.try_sample().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_is_silent_or_never_reported_is_not_running() {
        let of = |current, active, offline| {
            let active = Duration::from_secs(active);
            is_running(&stream::PeerInfo { current, active, offline, ..stream::PeerInfo::default() })
        };
        assert!(of(true, 0, false) && of(true, 1, false) && of(false, 1, false), "a replica that catches up runs");
        assert!(!of(false, 0, false) && !of(true, 11, false) && !of(true, 1, true));
    }

    #[test]
    fn without_a_leader_each_node_is_counted_once() {
        let of = |leader: Option<&str>, replicas: &[bool], known| {
            let peer = |runs: &bool| stream::PeerInfo { current: *runs, offline: !runs, ..stream::PeerInfo::default() };
            let replicas: Vec<stream::PeerInfo> = replicas.iter().map(peer).collect();
            let cluster =
                stream::ClusterInfo { leader: leader.map(str::to_owned), replicas, ..stream::ClusterInfo::default() };
            let NodeCount { running, total: known } = nodes(&cluster, known);
            (running, known)
        };
        assert_eq!(of(Some("a"), &[true, false], Some(5)), (2, 3), "a leader lists all others");
        assert_eq!(of(None, &[true, false, false], Some(3)), (1, 3), "it lists itself");
        assert_eq!(of(None, &[false, false], Some(3)), (1, 3), "it does not list itself");
        assert_eq!(of(Some("a"), &[], None), (1, 1));
    }

    #[test]
    fn the_stream_with_most_missing_nodes_is_reported() {
        let of = |running, known| NodeCount { running, total: known };
        let all = [of(3, 3), of(1, 1), of(2, 3), of(5, 5)];
        assert_eq!(all.into_iter().min_by_key(missing_nodes), Some(of(2, 3)));
        assert_eq!([of(3, 3), of(1, 1)].into_iter().min_by_key(missing_nodes), Some(of(1, 1)));
    }
}
