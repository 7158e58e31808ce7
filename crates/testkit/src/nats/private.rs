use std::path::PathBuf;
use std::sync::Arc;

use super::node::{HEALTHY, Node};
use super::{NatsVersion, Settings};
use crate::unblocked::unblocked;

/// A server of one test's own, which the test may stop, kill and pause.
///
/// It ends, and its files go, when the value is dropped, and also when the test panics or its process is killed.
pub struct Private {
    node: Arc<Node>,
}

impl Private {
    /// Starts one.
    pub async fn start(version: NatsVersion, settings: Settings) -> Self {
        Self::of(unblocked(move || Node::launch(version, &settings)).await)
    }

    pub(super) fn of(node: Node) -> Self {
        Self { node: Arc::new(node) }
    }

    /// Its version.
    pub fn version(&self) -> NatsVersion {
        self.node.version()
    }

    /// The port on loopback; the same after every restart.
    pub fn port(&self) -> u16 {
        self.node.port()
    }

    /// The URL for clients, without a login.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.node.port())
    }

    /// The URL for clients that speak TLS, without a login.
    pub fn tls_url(&self) -> String {
        format!("tls://localhost:{}", self.node.port())
    }

    /// The URL of its monitor, which asks for no login: `{}/healthz`, `{}/jsz?streams=1`.
    pub fn monitor_url(&self) -> String {
        self.node.monitor_url()
    }

    /// Where its files are.
    pub fn directory(&self) -> PathBuf {
        self.node.directory().to_owned()
    }

    /// What the server has logged since it was made.
    pub fn log(&self) -> String {
        self.node.log()
    }

    /// Ends the server at once, as a crash would; returns when it is gone.
    pub async fn kill9(&self) {
        self.blocking(Node::kill9).await;
    }

    /// Ends the server in good order.
    pub async fn stop(&self) {
        self.blocking(Node::stop).await;
    }

    /// Starts a stopped or killed server again on the same ports and files; returns when it is healthy, and in
    /// a cluster already when it runs.
    pub async fn start_again(&self) {
        self.blocking(Node::start).await;
    }

    /// Stops the server's time: it keeps its connections and answers nothing.
    pub async fn pause(&self) {
        self.blocking(Node::pause).await;
    }

    /// Lets a paused server go on.
    pub async fn resume(&self) {
        self.blocking(Node::resume).await;
    }

    /// Waits until JetStream is healthy, which a node of a cluster is only once it has found the others.
    pub async fn healthy(&self) {
        self.blocking(|node| assert!(node.becomes(HEALTHY), "NATS does not become healthy:\n{}", node.log())).await;
    }

    async fn blocking(&self, job: impl FnOnce(&Node) + Send + 'static) {
        let node = Arc::clone(&self.node);
        unblocked(move || job(&node)).await;
    }
}
