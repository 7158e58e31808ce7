//! What is sampled for those who watch.

use async_nats::jetstream::stream;
use async_trait::async_trait;
use relevo_core::failure::Failure;
use relevo_core::sample::{BrokerVitals, Nodes, SampleBroker};
use tokio::sync::OnceCell;

use crate::classify::Error;
use crate::config::Config;
use crate::link;
use crate::snapshot::context;

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

/// The nodes that have a copy of the stream; `None` for a server without a cluster.
fn nodes(info: &stream::Info) -> Option<Nodes> {
    let cluster = info.cluster.as_ref()?;
    let leader = u64::from(cluster.leader.is_some());
    let online = cluster.replicas.iter().filter(|peer| !peer.offline).count() as u64;
    Some(Nodes { running: leader + online, known: (1 + cluster.replicas.len()) as u64 })
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
    fn the_stream_that_has_lost_most_counts() {
        let of = |running, known| Nodes { running, known };
        let all = [of(3, 3), of(1, 1), of(2, 3), of(5, 5)];
        assert_eq!(all.into_iter().min_by_key(spare), Some(of(2, 3)));
        assert_eq!([of(3, 3), of(1, 1)].into_iter().min_by_key(spare), Some(of(1, 1)));
    }
}
