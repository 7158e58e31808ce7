//! One server and its files, with blocking calls.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::{NatsVersion, Settings};
use crate::scratch::Scratch;
use crate::{http, marked};

const DEBIAN: &str = "/usr/sbin/nats-server";
const STARTS_MAX: usize = 10;
const READY_DEADLINE: Duration = Duration::from_secs(30);
/// Succeeds when JetStream has recovered its data and, in a cluster, has found the other nodes.
pub(super) const HEALTHY: &str = "/healthz";
/// Succeeds as soon as JetStream runs.
pub(super) const RUNNING: &str = "/healthz?js-enabled-only=true";
const POLL: Duration = Duration::from_millis(10);

pub(super) struct Node {
    scratch: Scratch,
    version: NatsVersion,
    ports: Ports,
    /// The health check that must succeed before a start counts as successful.
    ready: &'static str,
    process: Mutex<Option<Child>>,
}

#[derive(Clone, Copy)]
pub(super) struct Ports {
    pub(super) client: u16,
    pub(super) monitor: u16,
}

impl Node {
    /// Creates a server on free ports and starts it.
    pub(super) fn launch(version: NatsVersion, settings: &Settings) -> Self {
        for _ in 0..STARTS_MAX {
            let node = Self::create(version, settings, HEALTHY);
            if node.try_start() {
                return node;
            }
            // Another process may have taken a port first.
            assert!(node.lost_a_port(), "NATS does not start:\n{}", node.log());
        }
        panic!("NATS finds no free ports");
    }

    /// Creates a server on free ports without starting it.
    pub(super) fn create(version: NatsVersion, settings: &Settings, ready: &'static str) -> Self {
        let scratch = Scratch::for_marked();
        let ports = Ports { client: scratch.reserve_port(), monitor: scratch.reserve_port() };
        let node = Self { scratch, version, ports, ready, process: Mutex::new(None) };
        settings.write(node.directory(), ports);
        node
    }

    pub(super) fn lost_a_port(&self) -> bool {
        self.log().contains("address already in use")
    }

    pub(super) fn version(&self) -> NatsVersion {
        self.version
    }

    pub(super) fn port(&self) -> u16 {
        self.ports.client
    }

    pub(super) fn monitor_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.monitor)
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.directory().join("log")).unwrap_or_default()
    }

    /// Starts the server again with the same ports and files.
    pub(super) fn start(&self) {
        assert!(self.try_start(), "NATS does not start:\n{}", self.log());
    }

    pub(super) fn try_start(&self) -> bool {
        self.spawn();
        self.becomes(self.ready)
    }

    fn spawn(&self) {
        let log = std::fs::File::options().create(true).append(true).open(self.directory().join("log"));
        let log = log.expect("the directory can be written");
        let mut command = Command::new(program(self.version));
        command.arg("-c").arg(self.directory().join("nats.conf")).current_dir(self.directory());
        command.env(marked::VARIABLE, self.directory());
        command.stdout(log.try_clone().expect("a file has another handle")).stderr(log);
        // The server gets its own process group: an interrupt of the test must not end the server first.
        let child = command.stdin(Stdio::null()).process_group(0).spawn().expect("`nats-server` runs");
        *self.process.lock().expect("no holder panics") = Some(child);
    }

    /// Waits until this health check succeeds. Returns `false` if the server ends or the deadline passes.
    pub(super) fn becomes(&self, path: &str) -> bool {
        let deadline = Instant::now() + READY_DEADLINE;
        while Instant::now() < deadline && !self.has_ended() {
            if http::is_well(&self.monitor_url(), path) {
                return true;
            }
            std::thread::sleep(POLL);
        }
        false
    }

    fn has_ended(&self) -> bool {
        let mut process = self.process.lock().expect("no holder panics");
        process.as_mut().is_none_or(|child| child.try_wait().expect("the process is ours").is_some())
    }

    pub(super) fn kill9(&self) {
        self.end("KILL");
    }

    pub(super) fn stop(&self) {
        self.end("TERM");
    }

    pub(super) fn pause(&self) {
        marked::pause(self.directory());
    }

    pub(super) fn resume(&self) {
        marked::signal(self.directory(), "CONT");
    }

    fn end(&self, signal: &str) {
        marked::signal(self.directory(), signal);
        let child = self.process.lock().expect("no holder panics").take();
        child.expect("the server is running").wait().expect("the process is ours");
    }

    pub(super) fn directory(&self) -> &Path {
        self.scratch.path()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The watchdog would kill it a moment later, but cannot collect the zombie.
        if let Ok(Some(mut child)) = self.process.lock().map(|mut process| process.take()) {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn program(version: NatsVersion) -> PathBuf {
    let variable = version.bin_variable();
    if let Some(program) = std::env::var_os(variable) {
        return program.into();
    }
    assert!(
        version == NatsVersion::V2_9 && Path::new(DEBIAN).exists(),
        "no program of NATS {}: run `cargo xtask test`, or `cargo xtask services up` and export what it prints, or set `{variable}`",
        version.number()
    );
    DEBIAN.into()
}
