//! Servers whose processes are identified by an environment variable: the directory that holds the server's files.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::scratch::Scratch;

/// `watchdog.sh` uses the same name.
const VARIABLE: &str = "RELEVO_SERVER_DIRECTORY";
const STARTS_MAX: usize = 5;
const READY_DEADLINE: Duration = Duration::from_mins(2);
const END_DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// How to run one kind of server.
pub(crate) trait Kind {
    /// Writes the settings with free ports and returns how to start the server.
    fn prepare(&self, directory: &Path) -> Result<Prepared>;
}

pub(crate) struct Prepared {
    pub(crate) command: Command,
    /// Loopback ports, each with the response that shows that the server is ready.
    pub(crate) probes: Vec<Probe>,
    /// The URLs for clients.
    pub(crate) urls: Vec<String>,
}

/// The server is ready when it answers the bytes of `request` with bytes that start with `response`.
pub(crate) struct Probe {
    pub(crate) port: u16,
    pub(crate) request: Vec<u8>,
    pub(crate) response: &'static [u8],
}

/// A server that stops, and whose files are deleted, when the value is dropped or this program is killed.
pub(crate) struct Temporary {
    scratch: Option<Scratch>,
    process: Child,
    pub(crate) urls: Vec<String>,
}

impl Temporary {
    pub(crate) fn start(kind: &dyn Kind) -> Result<Self> {
        let scratch = Scratch::for_marked()?;
        let Started { process, urls } = Directory { path: scratch.path().to_owned() }.start(kind)?;
        Ok(Self { scratch: Some(scratch), process, urls })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // The watchdog kills the server. `wait` collects the zombie, because the process that would adopt it may never
        // do so.
        drop(self.scratch.take());
        self.process.wait().ok();
    }
}

/// A server that has just been started.
pub(crate) struct Started {
    process: Child,
    /// The URLs for clients.
    pub(crate) urls: Vec<String>,
}

/// A directory that holds a server's files and its log.
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
}

fn port_of(url: &str) -> Option<u16> {
    url.rsplit(':').next()?.parse().ok()
}

impl Directory {
    /// Starts a new server in an empty directory, on free ports.
    pub(crate) fn start(&self, kind: &dyn Kind) -> Result<Started> {
        let mut log = String::new();
        for _ in 0..STARTS_MAX {
            let prepared = kind.prepare(&self.path)?;
            if let Some(process) = self.try_start(prepared.command, &prepared.probes)? {
                std::fs::write(self.path.join("urls"), prepared.urls.join("\n"))?;
                return Ok(Started { process, urls: prepared.urls });
            }
            // Another process may have taken a port first. The next attempt starts with an empty directory: a RabbitMQ
            // that finds files assumes that an older version wrote them, and leaves newer features disabled.
            self.stop()?;
            log = self.output();
            for entry in std::fs::read_dir(&self.path)? {
                let path = entry?.path();
                if path.is_dir() { std::fs::remove_dir_all(path)? } else { std::fs::remove_file(path)? }
            }
        }
        bail!("a server does not start:\n{log}")
    }

    fn try_start(&self, mut command: Command, probes: &[Probe]) -> Result<Option<Child>> {
        let output = std::fs::File::create(self.path.join("output"))?;
        command.env(VARIABLE, &self.path).current_dir(&self.path);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
        let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let deadline = Instant::now() + READY_DEADLINE;
        while child.try_wait()?.is_none() && Instant::now() < deadline {
            if probes.iter().all(Probe::succeeds) {
                return Ok(Some(child));
            }
            std::thread::sleep(POLL);
        }
        Ok(None)
    }

    /// The first process and the URLs of the server that runs in this directory.
    pub(crate) fn running(&self) -> Option<(u32, Vec<String>)> {
        let urls = std::fs::read_to_string(self.path.join("urls")).ok()?;
        let process = self.processes().into_iter().min()?;
        // Some processes may have survived the others, for example RabbitMQ's name server.
        let answers =
            |url: &str| port_of(url).is_some_and(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        urls.lines().all(answers).then(|| (process, urls.lines().map(str::to_owned).collect()))
    }

    /// Kills the server at once. Its data is not needed any more.
    pub(crate) fn stop(&self) -> Result<()> {
        let deadline = Instant::now() + END_DEADLINE;
        loop {
            let pids = self.processes();
            if pids.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "a server in `{}` does not end", self.path.display());
            let mut kill = Command::new("sh");
            kill.args(["-c", "kill -s KILL \"$@\"", "kill"]).args(pids.iter().map(u32::to_string));
            // A process may have ended since it was listed.
            kill.stderr(Stdio::null()).status().context("cannot run `sh`")?;
            std::thread::sleep(POLL);
        }
    }

    fn processes(&self) -> Vec<u32> {
        let mark = format!("{VARIABLE}={}", self.path.display());
        let entries = std::fs::read_dir("/proc").into_iter().flatten();
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        })
        .collect()
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.path.join("output")).unwrap_or_default()
    }
}

impl Probe {
    /// A `GET` request that must be answered with status 200.
    pub(crate) fn http(port: u16, path: &str, headers: &str) -> Self {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n").into_bytes();
        Self { port, request, response: b"HTTP/1.1 200" }
    }

    fn succeeds(&self) -> bool {
        let receive = || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(&self.request)?;
            let mut received = vec![0; self.response.len()];
            stream.read_exact(&mut received)?;
            std::io::Result::Ok(received)
        };
        receive().is_ok_and(|received| received == self.response)
    }
}
