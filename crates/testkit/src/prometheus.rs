//! Prometheus and Alertmanager for a single test.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::installed::program;
use crate::scratch::Scratch;
use crate::{http, marked};

const STARTS_MAX: usize = 10;
const READY_DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// The program that checks and tests rules: `RELEVO_TEST_PROMTOOL_BIN`, or Debian's.
pub fn promtool() -> PathBuf {
    program("RELEVO_TEST_PROMTOOL_BIN", "/usr/bin/promtool")
}

/// A Prometheus. It stops, and its files are deleted, when the value is dropped, the test panics or the test is killed.
pub struct Prometheus(Watcher);

impl Prometheus {
    /// Starts it with this `prometheus.yml` and further files, each as name and text. Panics if it rejects them.
    pub fn start(config: &str, files: &[(&str, &str)]) -> Self {
        let program = program("RELEVO_TEST_PROMETHEUS_BIN", "/usr/bin/prometheus");
        Self(Watcher::start("prometheus.yml", config, files, |port, config| {
            let mut command = Command::new(&program);
            command.arg(format!("--config.file={}", config.display()));
            command.args(["--storage.tsdb.path=data", &format!("--web.listen-address=127.0.0.1:{port}")]);
            command
        }))
    }

    /// The response to an instant query, as JSON: `/api/v1/query`.
    pub fn query(&self, expression: &str) -> String {
        self.0.get(&format!("/api/v1/query?query={}", encoded(expression)))
    }

    /// All rules with their state and health, as JSON: `/api/v1/rules`.
    pub fn rules(&self) -> String {
        self.0.get("/api/v1/rules")
    }

    /// The scrape targets and their state, as JSON: `/api/v1/targets`.
    pub fn targets(&self) -> String {
        self.0.get("/api/v1/targets")
    }

    /// The log of Prometheus.
    pub fn log(&self) -> String {
        self.0.log()
    }
}

/// An Alertmanager. It stops in the same cases as [`Prometheus`].
pub struct Alertmanager(Watcher);

impl Alertmanager {
    /// Starts it with a receiver that sends no notifications.
    pub fn start() -> Self {
        let program = program("RELEVO_TEST_ALERTMANAGER_BIN", "/usr/bin/prometheus-alertmanager");
        let config = "route: { receiver: none }\nreceivers: [{ name: none }]\n";
        Self(Watcher::start("alertmanager.yml", config, &[], |port, config| {
            let mut command = Command::new(&program);
            command.arg(format!("--config.file={}", config.display()));
            // There is no cluster of Alertmanagers, so it needs no cluster port.
            command.args(["--storage.path=data", "--cluster.listen-address="]);
            command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
            command
        }))
    }

    /// Host and port, as the configuration of Prometheus expects them.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.0.port)
    }

    /// The firing alerts, as JSON: `/api/v2/alerts`.
    pub fn alerts(&self) -> String {
        self.0.get("/api/v2/alerts?active=true")
    }
}

struct Watcher {
    scratch: Scratch,
    port: u16,
    process: Child,
}

impl Watcher {
    fn start(name: &str, config: &str, files: &[(&str, &str)], command: impl Fn(u16, &Path) -> Command) -> Self {
        for _ in 0..STARTS_MAX {
            let scratch = Scratch::for_marked();
            let port = scratch.reserve_port();
            for (name, text) in files.iter().chain([&(name, config)]) {
                std::fs::write(scratch.path().join(name), text).expect("the directory can be written");
            }
            let log = std::fs::File::create(scratch.path().join("log")).expect("the directory can be written");
            let mut command = command(port, &scratch.path().join(name));
            command.current_dir(scratch.path()).env(marked::VARIABLE, scratch.path());
            command.stdout(log.try_clone().expect("a file has another handle")).stderr(log).stdin(Stdio::null());
            // The server gets its own process group: an interrupt of the test must not end the server first.
            let process = command.process_group(0).spawn().expect("the program runs");
            let mut watcher = Self { scratch, port, process };
            if watcher.becomes_ready() {
                return watcher;
            }
            // Another process may have taken the port first.
            assert!(watcher.log().contains("address already in use"), "it does not start:\n{}", watcher.log());
        }
        panic!("it finds no free port");
    }

    fn becomes_ready(&mut self) -> bool {
        let deadline = Instant::now() + READY_DEADLINE;
        while Instant::now() < deadline && self.process.try_wait().expect("the process is ours").is_none() {
            if http::is_well(&self.url(), "/-/ready") {
                return true;
            }
            std::thread::sleep(POLL);
        }
        false
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn get(&self, path: &str) -> String {
        let response = http::request(&self.url(), "GET", path, "");
        response.unwrap_or_else(|error| panic!("no response to `{path}`: {error}\n{}", self.log())).1
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // The watchdog would kill it a moment later, but cannot collect the zombie.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Escapes a query for a URL: all bytes except letters and digits.
fn encoded(text: &str) -> String {
    let escape = |byte: u8| match byte {
        letter if letter.is_ascii_alphanumeric() => char::from(letter).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(escape).collect()
}
