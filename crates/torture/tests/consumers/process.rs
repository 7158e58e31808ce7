//! A member as a process, and its faults.

use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::harness::until;

const TIMEOUT: Duration = Duration::from_secs(40);

/// The process is killed when the value is dropped.
pub(crate) struct Process {
    child: Child,
    printed: Lines<BufReader<ChildStdout>>,
    printed_lines: Vec<String>,
    stdin: Option<ChildStdin>,
    log: PathBuf,
}

impl Process {
    /// Starts a process with its own log file. Returns when it runs.
    pub(crate) async fn start(arguments: &[&str], log: PathBuf) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ledger"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).expect("a directory"))
            .kill_on_drop(true)
            .spawn()
            .expect("the binary runs");
        let printed = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let stdin = child.stdin.take();
        let mut process = Self { child, printed, printed_lines: Vec::new(), stdin, log };
        process.until_prints("ready").await;
        process
    }

    /// Waits until it prints this line.
    pub(crate) async fn until_prints(&mut self, line: &str) {
        let printed = async {
            while let Some(printed) = self.printed.next_line().await.expect("its output") {
                if printed == line {
                    return true;
                }
                self.printed_lines.push(printed);
            }
            false
        };
        let in_time = timeout(TIMEOUT, printed).await.unwrap_or(false);
        assert!(in_time, "it did not print `{line}`; its log:\n{}", self.log_text());
    }

    /// The rest of an earlier line with this prefix.
    pub(crate) fn printed_line(&self, prefix: &str) -> &str {
        self.printed_lines.iter().find_map(|line| line.strip_prefix(prefix)).expect("it printed the line")
    }

    /// Lets a waiting message continue.
    pub(crate) async fn proceed(&mut self) {
        self.stdin.as_mut().expect("it is piped").write_all(b"\n").await.expect("it listens");
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        timeout(TIMEOUT, self.child.wait()).await.expect("it ends").expect("a child")
    }

    /// Kills the process with SIGKILL.
    pub(crate) async fn kill9(&mut self) {
        self.child.kill().await.expect("a child");
    }

    /// Suspends the process, and returns when it no longer runs.
    pub(crate) async fn freeze(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.child.id().expect("it runs"));
        // The name, in parentheses, precedes the state.
        let is_stopped = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "));
        until("it is suspended", async || is_stopped()).await;
    }

    /// Resumes the process.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Stops the process with SIGTERM, and waits until it has ended cleanly.
    pub(crate) async fn leave(&mut self) {
        self.signal(Signal::TERM);
        let status = self.ended().await;
        assert!(status.success(), "it stopped with {status}; its log:\n{}", self.log_text());
    }

    /// Its log.
    fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        kill_process(id.expect("it runs"), signal).expect("a child");
    }
}
