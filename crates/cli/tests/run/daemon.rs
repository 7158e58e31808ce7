//! The daemon of one test: its log, its exit code and its admin port.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long an expected event may take on a busy machine. After a sample that took 4 s, the sampler pauses 40 s.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);
/// How often a condition is checked.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// A running `relevo run`; killed when it is dropped.
pub(crate) struct Daemon {
    child: Child,
    lines: Arc<Lines>,
}

#[derive(Default)]
struct Lines {
    all: Mutex<Vec<String>>,
    more: Condvar,
}

impl Daemon {
    /// Starts a daemon. Its log lines are JSON, because stderr is no terminal.
    pub(crate) fn start(config: &std::path::Path, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_relevo"));
        command.arg("run").arg("-c").arg(config).envs(variables.iter().copied());
        for inherited in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "RELEVO_LOG", "RELEVO_CONFIG"] {
            if !variables.iter().any(|(name, _)| *name == inherited) {
                command.env_remove(inherited);
            }
        }
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
        let lines = Arc::new(Lines::default());
        let (stderr, into) = (child.stderr.take().expect("it is piped"), Arc::clone(&lines));
        std::thread::spawn(move || collect(stderr, &into));
        Self { child, lines }
    }

    /// Waits for a line with this message, and returns it.
    pub(crate) fn line(&self, message: &str) -> Value {
        self.nth_line(message, 1)
    }

    /// Waits until a message has been logged `count` times, and returns the last of these lines.
    pub(crate) fn nth_line(&self, message: &str, count: usize) -> Value {
        let end = Instant::now() + DEADLINE;
        let mut all = self.lines.all.lock().expect("no panic");
        loop {
            let found = all.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            if let Some(line) = found.filter(|line| line["message"] == message).nth(count - 1) {
                return line;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "timed out waiting for `{message}`:\n{}", all.join("\n"));
            all = self.lines.more.wait_timeout(all, left).expect("no panic").0;
        }
    }

    /// The whole log so far.
    pub(crate) fn log(&self) -> String {
        self.lines.all.lock().expect("no panic").join("\n")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(sent.expect("`kill` runs").success());
    }

    /// Waits until the process ends, and returns its exit code.
    pub(crate) fn end(&mut self) -> Option<i32> {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status.code();
            }
            assert!(Instant::now() < end, "it does not end:\n{}", self.log());
            std::thread::sleep(POLL);
        }
    }

    /// Stops the daemon with SIGTERM, and requires exit code 0.
    pub(crate) fn stop(&mut self) {
        self.signal("TERM");
        assert_eq!(self.end(), Some(0), "{}", self.log());
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        let line = self.line("the admin port is open");
        line["address"].as_str().and_then(|text| text.parse().ok()).expect("an address")
    }

    /// Status and body of a request to the admin port.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.ask(path, "")
    }

    pub(crate) fn ask(&self, path: &str, headers: &str) -> (u16, String) {
        ask(self.admin(), path, headers)
    }

    /// The value of the first metric whose line begins with this text, if it is a whole number.
    pub(crate) fn metric(&self, begins: &str) -> Option<i64> {
        self.metric_text(begins)?.parse().ok()
    }

    /// Like [`Self::metric`], for a value that may have a fraction.
    pub(crate) fn value(&self, begins: &str) -> Option<f64> {
        self.metric_text(begins)?.parse().ok()
    }

    fn metric_text(&self, begins: &str) -> Option<String> {
        let (_, body) = self.get("/metrics");
        let line = body.lines().find(|line| line.starts_with(begins))?;
        line.rsplit(' ').next().map(str::to_owned)
    }

    /// Waits until the readiness probe answers 200.
    pub(crate) fn ready(&self) {
        until("it is ready", || self.get("/readyz").0 == 200);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process may have ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn collect(stderr: ChildStderr, lines: &Lines) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        lines.all.lock().expect("no panic").push(line);
        lines.more.notify_all();
    }
}

/// Status and body of a request to this address.
pub(crate) fn ask(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let request = format!("GET {path} HTTP/1.1\r\nhost: relevo\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head[9..12].parse().expect("a status"), body.to_owned())
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, holds: impl FnMut() -> bool) {
    until_within(DEADLINE, what, holds);
}

/// Like [`until`], with this deadline.
pub(crate) fn until_within(deadline: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + deadline;
    while !holds() {
        assert!(Instant::now() < end, "timed out: {what}");
        std::thread::sleep(POLL);
    }
}
