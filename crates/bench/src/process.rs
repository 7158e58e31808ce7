//! Programs under test, each as a separate process.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

const DEADLINE: Duration = Duration::from_mins(3);

/// A running program that listens on a loopback port.
pub(crate) struct Process {
    child: Child,
    port: u16,
}

impl Process {
    /// Starts the program, and waits until it returns status 200 at this path.
    pub(crate) async fn start(command: &mut Command, port: u16, path: &str) -> anyhow::Result<Self> {
        let child = command.stdin(Stdio::null()).kill_on_drop(true).spawn().context("it cannot be started")?;
        let mut process = Self { child, port };
        let start = Instant::now();
        while !process.get(path).await.is_ok_and(|response| response.starts_with("HTTP/1.1 200")) {
            if let Some(status) = process.child.try_wait()? {
                bail!("it ended with {status}");
            }
            ensure!(start.elapsed() < DEADLINE, "it is not ready in time");
            sleep(Duration::from_millis(2)).await;
        }
        Ok(process)
    }

    /// The port on which it listens.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// The sum of all series of a metric.
    pub(crate) async fn sum(&self, metric: &str) -> anyhow::Result<f64> {
        let metrics = self.get("/metrics").await?;
        let series = format!("{metric}{{");
        let lines = metrics.lines().filter(|line| line.starts_with(&series));
        lines.map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<f64>()?)).sum()
    }

    /// The whole response, including its headers.
    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        Ok(response)
    }

    /// User and system CPU time so far.
    pub(crate) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id()?))?;
        // The name, in parentheses, may contain any characters. The times are the 12th and 13th field after it.
        let (_, fields) = stat.rsplit_once(')').context("`/proc` has another form")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
        Ok(ticks / 100.0)
    }

    /// A line of `/proc/PID/status`, in megabytes.
    pub(crate) fn megabytes(&self, name: &str) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()?))?;
        let line = status.lines().find(|line| line.starts_with(name)).context("no such line in `/proc`")?;
        Ok(line.split_whitespace().nth(1).context("no number")?.parse::<f64>()? / 1024.0)
    }

    fn id(&self) -> anyhow::Result<u32> {
        self.child.id().context("it has ended")
    }

    /// Stops the process with SIGTERM, and waits until it has ended.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.id()?)?;
        let pid = rustix::process::Pid::from_raw(pid).context("a process has a number")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = tokio::time::timeout(DEADLINE, self.child.wait()).await??;
        ensure!(status.success(), "it stopped with {status}");
        Ok(())
    }
}

/// A port that is currently free.
pub(crate) async fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0)).await?.local_addr()?.port())
}

/// The run's own directory.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("relevo-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
