//! Servers whose processes are known by a mark in their environment: the directory that holds their files.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::scratch::Scratch;

/// `watchdog.sh` knows it too.
const VARIABLE: &str = "RELEVO_SERVER_DIRECTORY";
const STARTS_MAX: usize = 5;
const READY_DEADLINE: Duration = Duration::from_mins(2);
const END_DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// How one kind of server is run.
pub(crate) trait Kind {
    /// Writes its settings, with ports found free, and says how to start it.
    fn prepare(&self, directory: &Path) -> Result<Prepared>;
}

pub(crate) struct Prepared {
    pub(crate) command: Command,
    /// Loopback ports with what must be answered there.
    pub(crate) probes: Vec<Probe>,
    /// What clients are told.
    pub(crate) urls: Vec<String>,
}

/// The server is ready when this is sent to a port and the answer begins so.
pub(crate) struct Probe {
    pub(crate) port: u16,
    pub(crate) says: Vec<u8>,
    pub(crate) hears: &'static [u8],
}

/// A server that ends, and whose files go, when the value is dropped and also when this program is killed.
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
        // Its watchdog ends the server; whoever adopts this program's children may never collect a zombie.
        drop(self.scratch.take());
        self.process.wait().ok();
    }
}

/// A server that has just been started.
pub(crate) struct Started {
    process: Child,
    /// What clients are told.
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
        let mut said = String::new();
        for _ in 0..STARTS_MAX {
            let prepared = kind.prepare(&self.path)?;
            if let Some(process) = self.try_start(prepared.command, &prepared.probes)? {
                std::fs::write(self.path.join("urls"), prepared.urls.join("\n"))?;
                return Ok(Started { process, urls: prepared.urls });
            }
            // Somebody else may have been quicker to a port. What was begun is not gone on with: a RabbitMQ that finds
            // files takes them for an older version's, and leaves its newer features off.
            self.stop()?;
            said = self.output();
            for entry in std::fs::read_dir(&self.path)? {
                let path = entry?.path();
                if path.is_dir() { std::fs::remove_dir_all(path)? } else { std::fs::remove_file(path)? }
            }
        }
        bail!("a server does not start:\n{said}")
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

    /// The first process and the URLs of the server that runs here.
    pub(crate) fn running(&self) -> Option<(u32, Vec<String>)> {
        let urls = std::fs::read_to_string(self.path.join("urls")).ok()?;
        let process = self.processes().into_iter().min()?;
        // A part of it may have survived the rest: RabbitMQ's name server does.
        let answers =
            |url: &str| port_of(url).is_some_and(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        urls.lines().all(answers).then(|| (process, urls.lines().map(str::to_owned).collect()))
    }

    /// Ends it at once: nobody's data is in it.
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
            // One may have ended by itself since the listing.
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
    /// A `GET` that is answered with 200.
    pub(crate) fn http(port: u16, path: &str, headers: &str) -> Self {
        let says = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n").into_bytes();
        Self { port, says, hears: b"HTTP/1.1 200" }
    }

    fn succeeds(&self) -> bool {
        let ask = || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(&self.says)?;
            let mut heard = vec![0; self.hears.len()];
            stream.read_exact(&mut heard)?;
            std::io::Result::Ok(heard)
        };
        ask().is_ok_and(|heard| heard == self.hears)
    }
}
