use std::time::{Duration, Instant};

use super::epmd::Epmd;
use super::node::Node;
use super::{Private, Settings};
use crate::unblocked::unblocked;

const NAMES: [&str; 3] = ["one@localhost", "two@localhost", "three@localhost"];
const READY_DEADLINE: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(100);

/// A cluster of three nodes. A test can kill, pause and restart each of them.
///
/// It takes three times as long to start as a [`Private`], so a test program should have at most one.
pub struct Cluster {
    nodes: [Private; 3],
    // The last field, so that the nodes stop before it.
    _epmd: Epmd,
}

impl Cluster {
    /// Starts a cluster with RabbitMQ's default settings.
    pub async fn of_three() -> Self {
        Self::of_three_with(Settings::new()).await
    }

    /// Starts a cluster with these settings on all nodes.
    pub async fn of_three_with(settings: Settings) -> Self {
        unblocked(move || {
            let epmd = Epmd::start();
            let one = Node::launch_as(NAMES[0], Some(epmd.port()), &settings);
            // The other nodes discover the first one while they start. This saves the `rabbitmqctl` calls that would
            // join them.
            let joining = settings
                .clone()
                .config("cluster_formation.peer_discovery_backend = classic_config")
                .config(&format!("cluster_formation.classic_config.nodes.1 = {}", NAMES[0]));
            let [two, three] = std::thread::scope(|scope| {
                let start = |name| {
                    scope.spawn({
                        let (joining, port) = (&joining, epmd.port());
                        move || Node::launch_as(name, Some(port), joining)
                    })
                };
                [start(NAMES[1]), start(NAMES[2])].map(|thread| thread.join().expect("the node starts"))
            });
            wait_until_joined(&one);
            one.add_users();
            Self { nodes: [one, two, three].map(Private::of), _epmd: epmd }
        })
        .await
    }

    /// The nodes. A node that restarts while no other runs waits for another: see [`Cluster::start_all_again`].
    pub fn nodes(&self) -> &[Private; 3] {
        &self.nodes
    }

    /// Restarts all three nodes after all were stopped: no node is ready before it has found another.
    pub async fn start_all_again(&self) {
        let [one, two, three] = &self.nodes;
        tokio::join!(one.start_again(), two.start_again(), three.start_again());
    }

    /// The URL of each node, with the user `guest`.
    pub fn amqp_urls(&self) -> [String; 3] {
        self.nodes.each_ref().map(Private::amqp_url)
    }
}

fn wait_until_joined(node: &Node) {
    let deadline = Instant::now() + READY_DEADLINE;
    while node.ctl(&["eval", "length(rabbit_nodes:all_running())."]).trim() != "3" {
        assert!(Instant::now() < deadline, "the nodes do not find each other:\n{}", node.log());
        std::thread::sleep(POLL);
    }
}
