//! What is sampled for those who watch.

use std::time::Duration;

use async_nats::jetstream::stream;
use async_trait::async_trait;
use relevo_core::failure::Failure;
use relevo_core::sample::{BrokerVitals, Nodes, SampleBroker};
use tokio::sync::OnceCell;

use crate::classify::Error;
use crate::config::Config;
use crate::link;
use crate::snapshot::context;

/// Copies answer their leader about once a second. One that was killed counts as offline only after more than a minute.
const SILENT_AFTER: Duration = Duration::from_secs(10);

/// Asks over a connection of its own, which it keeps.
pub struct NatsSampler {
    config: Config,
    client: OnceCell<async_nats::Client>,
}

impl NatsSampler {
    /// Nothing is asked of the server yet.
    pub fn new(config: Config) -> Result<Self, Error> {
        link::servers(&config)?;
        Ok(Self { config, client: OnceCell::new() })
    }

    async fn sampled(&self) -> Result<BrokerVitals, Error> {
        // The client comes back to a server that was away by itself.
        let client = self.client.get_or_try_init(|| link::connect(&self.config)).await?;
        let context = context(client, &self.config);
        let topology = &self.config.topology;
        let groups = topology.groups.iter();
        let mut names: Vec<String> = groups.clone().map(|group| group.stream.clone()).collect();
        names.extend(topology.streams.iter().map(|stream| stream.name.clone()));
        names.sort();
        names.dedup();
        let mut vitals = BrokerVitals::default();
        for name in names {
            // One that is not there, or that we may not look at, is not told.
            let Ok(stream) = context.get_stream(name).await else { continue };
            vitals.nodes = [vitals.nodes, nodes(stream.cached_info())].into_iter().flatten().min_by_key(spare);
        }
        for group in groups {
            let Ok(stream) = context.get_stream(group.dead_stream()).await else { continue };
            vitals.dead.push((group.dead_stream(), stream.cached_info().state.messages));
        }
        vitals.dead.sort();
        vitals.dead.dedup();
        Ok(vitals)
    }
}

/// The nodes that have a copy of the stream; a server alone is one, or does not tell.
fn nodes(info: &stream::Info) -> Option<Nodes> {
    let cluster = info.cluster.as_ref()?;
    let leader = u64::from(cluster.leader.is_some());
    let online = cluster.replicas.iter().filter(|peer| runs(peer)).count() as u64;
    Some(Nodes { running: leader + online, known: (1 + cluster.replicas.len()) as u64 })
}

/// A leader that is new has not heard of a dead copy at all, and says zero.
fn runs(peer: &stream::PeerInfo) -> bool {
    !peer.offline && (peer.current || !peer.active.is_zero()) && peer.active < SILENT_AFTER
}

/// Of several streams the one that has lost most of its nodes counts, and among equals the one with fewest.
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
    fn the_stream_that_has_lost_most_counts() {
        let of = |running, known| Nodes { running, known };
        let all = [of(3, 3), of(1, 1), of(2, 3), of(5, 5)];
        assert_eq!(all.into_iter().min_by_key(spare), Some(of(2, 3)));
        assert_eq!([of(3, 3), of(1, 1)].into_iter().min_by_key(spare), Some(of(1, 1)));
    }
}
