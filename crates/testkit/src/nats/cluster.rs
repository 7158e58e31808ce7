use super::node::{Node, RUNNING};
use super::{NatsVersion, Private, Settings};
use crate::port::ReservedPort;
use crate::unblocked::unblocked;

const STARTS_MAX: usize = 5;

/// A JetStream cluster of three servers of the newest version. A test can kill, pause and restart each of them.
pub struct Cluster {
    nodes: [Private; 3],
    _routes: [ReservedPort; 3],
}

impl Cluster {
    /// Starts a cluster with the default settings of NATS.
    pub async fn of_three() -> Self {
        Self::of_three_with(Settings::new()).await
    }

    /// Starts a cluster with these settings on all nodes.
    pub async fn of_three_with(settings: Settings) -> Self {
        let (nodes, routes) = unblocked(move || launch(&settings)).await;
        let cluster = Self { nodes: nodes.map(Private::of), _routes: routes };
        cluster.healthy().await;
        cluster
    }

    /// The nodes. Restarting a node only waits until it runs: see [`Cluster::healthy`].
    pub fn nodes(&self) -> &[Private; 3] {
        &self.nodes
    }

    /// The URL of each node.
    pub fn urls(&self) -> [String; 3] {
        self.nodes.each_ref().map(Private::url)
    }

    /// Waits until all three nodes are healthy: they have a leader, and each has caught up.
    pub async fn healthy(&self) {
        for node in &self.nodes {
            node.healthy().await;
        }
    }
}

fn launch(settings: &Settings) -> ([Node; 3], [ReservedPort; 3]) {
    for _ in 0..STARTS_MAX {
        let reserved = [(); 3].map(|()| ReservedPort::new());
        let ports = reserved.each_ref().map(ReservedPort::number);
        let routes = ports.map(|port| format!("nats://127.0.0.1:{port}")).join(", ");
        let nodes = ports.map(|port| {
            let block = format!("cluster {{ name: relevo, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}");
            Node::create(NatsVersion::V2_15, &settings.clone().config(&block), RUNNING)
        });
        let started = nodes.each_ref().map(Node::try_start);
        if started == [true; 3] {
            return (nodes, reserved);
        }
        // Another process may have taken a port first.
        let failed = nodes.iter().zip(started).filter(|(_, started)| !started);
        for (node, _) in failed {
            assert!(node.lost_a_port(), "NATS does not start:\n{}", node.log());
        }
    }
    panic!("NATS finds no free ports");
}
