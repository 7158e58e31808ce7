use std::path::PathBuf;
use std::sync::Arc;

use super::node::Node;
use super::{Settings, Vhost};
use crate::unblocked::unblocked;

/// A server for a single test, which the test may stop, kill, pause and put into an alarm state.
///
/// It takes seconds to start. Tests should share one where possible, and use [`Server`](super::Server) if they do not
/// disturb it. The server stops, and its files are deleted, when the value is dropped, the test panics or the test
/// process is killed.
pub struct Private {
    node: Arc<Node>,
}

impl Private {
    /// Starts a server with RabbitMQ's default settings: no plugins, not even the management API.
    pub async fn start() -> Self {
        Self::start_with(Settings::new()).await
    }

    /// Starts a server with these settings.
    pub async fn start_with(settings: Settings) -> Self {
        Self::of(unblocked(move || Node::launch(&settings)).await)
    }

    pub(super) fn of(node: Node) -> Self {
        Self { node: Arc::new(node) }
    }

    /// The URL of the virtual host `/`, with the user `guest`. It stays the same after every restart.
    pub fn amqp_url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}", self.node.ports().amqp)
    }

    /// The URL of the management API, with the user `guest`. Panics unless the server was started with
    /// [`Settings::management`].
    pub fn management_url(&self) -> String {
        self.node.management_url()
    }

    /// The URL with TLS, with the user `guest`. Panics unless the server was started with [`Settings::tls`].
    pub fn amqps_url(&self) -> String {
        assert!(self.node.settings().has_tls(), "this server was started without `Settings::tls`");
        format!("amqps://guest:guest@localhost:{}", self.node.ports().tls)
    }

    /// The loopback port for AMQP without TLS.
    pub fn port(&self) -> u16 {
        self.node.ports().amqp
    }

    /// Creates a virtual host that exists as long as the server's files.
    pub async fn vhost(&self) -> Vhost {
        let management = self.node.settings().has_management().then(|| self.management_url());
        let vhost = Vhost::new(&self.amqp_url(), management, false);
        let name = vhost.name().to_owned();
        self.blocking(move |node| node.add_vhost(&name)).await;
        vhost
    }

    /// The directory of its files.
    pub fn directory(&self) -> PathBuf {
        self.node.directory().to_owned()
    }

    /// The log of the server since its creation.
    pub fn log(&self) -> String {
        self.node.log()
    }

    /// Runs `rabbitmqctl` and returns its output. Panics if it fails.
    pub async fn ctl(&self, arguments: &[&str]) -> String {
        let arguments: Vec<_> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let node = Arc::clone(&self.node);
        unblocked(move || node.ctl(&arguments.iter().map(String::as_str).collect::<Vec<_>>())).await
    }

    /// Turns the memory alarm on or off by changing its limit. Returns when the alarm has changed.
    pub async fn memory_alarm(&self, on: bool) {
        let limit = if on { "0.0000001" } else { "0.4" };
        self.alarm("memory", on, &format!("vm_memory_monitor:set_vm_memory_high_watermark({limit})")).await;
    }

    /// Turns the disk alarm on or off by changing its limit. Returns when the alarm has changed.
    pub async fn disk_alarm(&self, on: bool) {
        let limit = if on { "1000000GB" } else { "1MB" };
        self.alarm("disk", on, &format!("rabbit_disk_monitor:set_disk_free_limit(\"{limit}\")")).await;
    }

    /// Sets the limit and waits for the effect in one call, because each call starts an Erlang runtime.
    async fn alarm(&self, resource: &str, on: bool, set: &str) {
        let alarms = "rabbit_alarm:get_alarms()";
        let is_on =
            format!("lists:any(fun({{{{resource_limit, {resource}, _}}, _}}) -> true; (_) -> false end, {alarms})");
        let wait = format!(
            "Wait = fun Again(0) -> error({alarms}); \
             Again(N) -> case {is_on} of {on} -> ok; _ -> timer:sleep(20), Again(N - 1) end end"
        );
        self.ctl(&["eval", &format!("{set}, {wait}, Wait(1500).")]).await;
    }

    /// Kills all processes of the server, like a crash. Returns when they have ended.
    pub async fn kill9(&self) {
        self.blocking(Node::kill9).await;
    }

    /// Shuts the server down cleanly.
    pub async fn stop(&self) {
        self.blocking(Node::stop).await;
    }

    /// Starts a stopped or killed server again with the same ports and files. Returns when it accepts connections.
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

    async fn blocking(&self, job: impl FnOnce(&Node) + Send + 'static) {
        let node = Arc::clone(&self.node);
        unblocked(move || job(&node)).await;
    }
}
