//! A process of a run, and its faults.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};

/// Time limit for a process to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// After this time, a new process handles signals.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// A process that can be restarted with the same arguments after it has ended.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    log: PathBuf,
    child: Option<Child>,
    started: Instant,
    /// The process is suspended until then.
    continues_at: Option<Instant>,
}

impl Process {
    /// Starts the process with its own log file in `directory`.
    pub(crate) fn start(
        name: impl Into<String>,
        directory: &Path,
        program: &Path,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<Self> {
        let name = name.into();
        let mut process = Self {
            log: directory.join(format!("{name}.log")),
            name,
            program: program.to_owned(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            child: None,
            started: Instant::now(),
            continues_at: None,
        };
        process.start_again()?;
        Ok(process)
    }

    /// Starts it again after it has ended.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        let log = std::fs::File::options().create(true).append(true).open(&self.log)?;
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("`{}` cannot be started", self.program.display()))?;
        self.child = Some(child);
        self.started = Instant::now();
        Ok(())
    }

    /// Whether it runs and is not suspended.
    pub(crate) fn is_running(&self) -> bool {
        self.child.is_some() && self.continues_at.is_none()
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.child.is_none()
    }

    /// Returns an error if the process ended by itself, which no injected fault may cause.
    pub(crate) fn expect_alive(&mut self) -> Result<()> {
        let Some(child) = &mut self.child else { return Ok(()) };
        if let Some(status) = child.try_wait()? {
            bail!("{} ended by itself with {status}; its log ends with:\n{}", self.name, self.tail());
        }
        Ok(())
    }

    /// Kills the process with SIGKILL.
    pub(crate) async fn kill9(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().await?;
        }
        self.continues_at = None;
        Ok(())
    }

    /// Suspends the process until `until`.
    pub(crate) fn freeze(&mut self, until: Instant) -> Result<()> {
        self.signal(Signal::STOP)?;
        self.continues_at = Some(until);
        Ok(())
    }

    /// Resumes the process if its suspension is over.
    pub(crate) fn thaw(&mut self, now: Instant) -> Result<()> {
        if self.continues_at.is_some_and(|at| at <= now) {
            self.signal(Signal::CONT)?;
            self.continues_at = None;
        }
        Ok(())
    }

    /// Stops the process with SIGTERM. Returns an error if it does not stop cleanly and in time.
    pub(crate) async fn leave(&mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let status = timeout(STOP_TIMEOUT, child.wait()).await;
        let status = status.with_context(|| format!("{} did not stop", self.name))??;
        // The signal may end a process that has just started and does not handle signals yet.
        let not_ready = status.signal() == Some(Signal::TERM.as_raw()) && self.started.elapsed() < START_TIMEOUT;
        ensure!(
            status.success() || not_ready,
            "{} stopped with {status}; its log ends with:\n{}",
            self.name,
            self.tail()
        );
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.child.as_ref().and_then(Child::id);
        if let Some(pid) = id.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
            kill_process(pid, signal)?;
        }
        Ok(())
    }

    fn tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}
