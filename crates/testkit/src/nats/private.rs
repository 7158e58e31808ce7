use std::path::PathBuf;
use std::sync::Arc;

use super::node::{HEALTHY, Node};
use super::{NatsVersion, Settings};
use crate::unblocked::unblocked;

/// A server for a single test, which the test may stop, kill and pause.
///
/// It stops, and its files are deleted, when the value is dropped, the test panics or the test process is killed.
pub struct Private {
    node: Arc<Node>,
}

impl Private {
    /// Starts a server.
    pub async fn start(version: NatsVersion, settings: Settings) -> Self {
        Self::of(unblocked(move || Node::launch(version, &settings)).await)
    }

    pub(super) fn of(node: Node) -> Self {
        Self { node: Arc::new(node) }
    }

    /// The version of the server.
    pub fn version(&self) -> NatsVersion {
        self.node.version()
    }

    /// The port on loopback. It stays the same after every restart.
    pub fn port(&self) -> u16 {
        self.node.port()
    }

    /// The URL for clients, without credentials.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.node.port())
    }

    /// The URL for clients that use TLS, without credentials.
    pub fn tls_url(&self) -> String {
        format!("tls://localhost:{}", self.node.port())
    }

    /// The URL of its monitoring endpoint, which needs no credentials: `{}/healthz`, `{}/jsz?streams=1`.
    pub fn monitor_url(&self) -> String {
        self.node.monitor_url()
    }

    /// The directory of its files.
    pub fn directory(&self) -> PathBuf {
        self.node.directory().to_owned()
    }

    /// The log of the server since its creation.
    pub fn log(&self) -> String {
        self.node.log()
    }

    /// Kills the server, like a crash. Returns when the process has ended.
    pub async fn kill9(&self) {
        self.blocking(Node::kill9).await;
    }

    /// Shuts the server down cleanly.
    pub async fn stop(&self) {
        self.blocking(Node::stop).await;
    }

    /// Starts a stopped or killed server again with the same ports and files. Returns when the server is healthy; in a
    /// cluster, as soon as it runs.
    pub async fn start_again(&self) {
        self.blocking(Node::start).await;
    }

    /// Suspends the server: it keeps its connections but does not respond.
    pub async fn pause(&self) {
        self.blocking(Node::pause).await;
    }

    /// Resumes a suspended server.
    pub async fn resume(&self) {
        self.blocking(Node::resume).await;
    }

    /// Waits until JetStream is healthy. A node of a cluster must find the other nodes first.
    pub async fn healthy(&self) {
        self.blocking(|node| assert!(node.becomes(HEALTHY), "NATS does not become healthy:\n{}", node.log())).await;
    }

    async fn blocking(&self, job: impl FnOnce(&Node) + Send + 'static) {
        let node = Arc::clone(&self.node);
        unblocked(move || job(&node)).await;
    }
}
