//! Samples metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::{Context, ErrorCode, stream};
use async_trait::async_trait;
use futures_util::future::join_all;
use relevo_core::failure::Failure;
use relevo_core::sample::{BrokerVitals, Nodes, SampleBroker};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::classify::Error;
use crate::config::Config;
use crate::link;
use crate::snapshot::context;

/// Replicas respond to their leader about once a second. The server reports a killed one as offline only after a
/// minute.
const SILENT_AFTER: Duration = Duration::from_secs(10);

/// All streams are requested at the same time. A stream without a response by then has no node that can respond. The
/// caller waits for all of them, so this limits the whole sample.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// Samples over its own connection, which stays open.
pub struct NatsSampler {
    config: Config,
    client: OnceCell<async_nats::Client>,
    /// The last known number of nodes with a replica, by stream.
    known: Mutex<BTreeMap<String, u64>>,
}

/// The stream does not respond.
struct Silent;

/// The information of a stream; `None` if the stream does not exist.
type Answer = Result<Option<stream::Info>, Silent>;

impl NatsSampler {
    /// Creates the sampler. It sends no request to the server.
    pub fn new(config: Config) -> Result<Self, Error> {
        link::servers(&config)?;
        Ok(Self { config, client: OnceCell::new(), known: Mutex::default() })
    }

    async fn sampled(&self) -> Result<BrokerVitals, Error> {
        // The client reconnects to the server by itself.
        let client = self.client.get_or_try_init(|| link::connect(&self.config)).await?;
        let topology = &self.config.topology;
        let groups = topology.groups.iter();
        if client.connection_state() != State::Connected {
            let nodes = lock(&self.known).values().map(|&known| Nodes { running: 0, known }).min_by_key(spare);
            return Ok(BrokerVitals { nodes, dead: Vec::new() });
        }
        let context = context(client, &self.config);
        let mut streams: BTreeSet<String> = groups.map(|group| group.stream.clone()).collect();
        streams.extend(topology.streams.iter().map(|stream| stream.name.clone()));
        let answers = join_all(streams.iter().map(|name| told(&context, name))).await;
        let nodes = streams.iter().zip(&answers).filter_map(|(name, answer)| self.nodes_of(name, answer));
        Ok(BrokerVitals { nodes: nodes.min_by_key(spare), dead: Vec::new() })
    }

    /// The nodes of a stream. A replicated stream responds while most of its nodes run. If it does not respond, only
    /// the server of this connection is known to run.
    fn nodes_of(&self, name: &str, answer: &Answer) -> Option<Nodes> {
        let mut all = lock(&self.known);
        match answer {
            Ok(info) => {
                let cluster = info.as_ref().and_then(|info| info.cluster.as_ref());
                let nodes = cluster.map(|cluster| nodes(cluster, all.get(name).copied()));
                match nodes {
                    Some(nodes) => all.insert(name.to_owned(), nodes.known),
                    None => all.remove(name),
                };
                nodes
            }
            Err(Silent) => all.get(name).filter(|known| **known > 1).map(|&known| Nodes { running: 1, known }),
        }
    }
}

fn lock<T>(map: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds the lock, and each change leaves the map consistent.
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn told(context: &Context, name: &str) -> Answer {
    match timeout(ANSWER_DEADLINE, context.get_stream(name)).await {
        Ok(Ok(stream)) => Ok(Some(stream.cached_info().clone())),
        Ok(Err(error)) => match error.kind() {
            GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(None),
            GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => Ok(None),
            GetStreamErrorKind::JetStream(_) | GetStreamErrorKind::Request => Err(Silent),
        },
        Err(_) => Err(Silent),
    }
}

/// The nodes that have a replica of the stream. A single server counts as one, or is not reported. A leader lists the
/// other nodes. Without a leader any node responds; it may or may not list itself.
fn nodes(cluster: &stream::ClusterInfo, known: Option<u64>) -> Nodes {
    let online = cluster.replicas.iter().filter(|peer| runs(peer)).count() as u64;
    let listed = cluster.replicas.len() as u64;
    match cluster.leader {
        Some(_) => Nodes { running: 1 + online, known: 1 + listed },
        None => Nodes { running: online.max(1), known: listed.max(known.unwrap_or(1)) },
    }
}

/// A new leader that never reached a dead replica reports zero.
fn runs(peer: &stream::PeerInfo) -> bool {
    !peer.offline && (peer.current || !peer.active.is_zero()) && peer.active < SILENT_AFTER
}

/// Selects the stream that has lost the most nodes; among equals, the one with the fewest running nodes.
fn spare(nodes: &Nodes) -> (i64, u64) {
    (nodes.running.cast_signed() - nodes.known.cast_signed(), nodes.running)
}

#[async_trait]
impl SampleBroker for NatsSampler {
    async fn vitals(&self) -> Result<BrokerVitals, Failure> {
        Ok(self.sampled().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_is_silent_or_was_never_heard_does_not_run() {
        let of = |current, active, offline| {
            let active = Duration::from_secs(active);
            runs(&stream::PeerInfo { current, active, offline, ..stream::PeerInfo::default() })
        };
        assert!(of(true, 0, false) && of(true, 1, false) && of(false, 1, false), "one that catches up runs");
        assert!(!of(false, 0, false) && !of(true, 11, false) && !of(true, 1, true));
    }

    #[test]
    fn without_a_leader_no_node_is_counted_twice_and_none_is_forgotten() {
        let of = |leader: Option<&str>, replicas: &[bool], known| {
            let peer = |runs: &bool| stream::PeerInfo { current: *runs, offline: !runs, ..stream::PeerInfo::default() };
            let replicas: Vec<stream::PeerInfo> = replicas.iter().map(peer).collect();
            let cluster =
                stream::ClusterInfo { leader: leader.map(str::to_owned), replicas, ..stream::ClusterInfo::default() };
            let Nodes { running, known } = nodes(&cluster, known);
            (running, known)
        };
        assert_eq!(of(Some("a"), &[true, false], Some(5)), (2, 3), "a leader knows");
        assert_eq!(of(None, &[true, false, false], Some(3)), (1, 3), "it lists itself");
        assert_eq!(of(None, &[false, false], Some(3)), (1, 3), "it does not");
        assert_eq!(of(Some("a"), &[], None), (1, 1));
    }

    #[test]
    fn the_stream_that_has_lost_most_counts() {
        let of = |running, known| Nodes { running, known };
        let all = [of(3, 3), of(1, 1), of(2, 3), of(5, 5)];
        assert_eq!(all.into_iter().min_by_key(spare), Some(of(2, 3)));
        assert_eq!([of(3, 3), of(1, 1)].into_iter().min_by_key(spare), Some(of(1, 1)));
    }
}
