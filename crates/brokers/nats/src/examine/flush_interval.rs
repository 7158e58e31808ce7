//! How often the server flushes its files to disk. Only the monitoring port reports it.

use std::time::Duration;

use relevo_core::finding::{Findings, Severity};
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::Config;
use crate::server_state::ServerState;

/// A limit far above the size of a response from the monitoring port.
const RESPONSE_BYTES_MAX: u64 = 1 << 20;
/// The interval of servers before 2.10, and the default of later ones.
const DEFAULT_INTERVAL: Duration = Duration::from_mins(2);

/// When an acknowledged message is safe from a power failure.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FlushInterval {
    /// Before it is acknowledged.
    Always,
    /// After this time at most.
    Every(Duration),
    /// The interval is unknown, for this reason.
    Unknown(String),
}

#[derive(Deserialize)]
struct Jsz {
    config: Settings,
}

#[derive(Deserialize)]
struct Settings {
    sync_interval: Option<u64>,
    #[serde(default)]
    sync_always: bool,
}

impl FlushInterval {
    /// Reads the interval if possible.
    pub(crate) async fn query(config: &Config, server: &ServerState) -> Self {
        if server.version < (2, 10) {
            return Self::Every(DEFAULT_INTERVAL);
        }
        let Some(url) = &config.monitoring_url else {
            return Self::Unknown("no `monitor_url` is configured".to_owned());
        };
        match timeout(config.connect_timeout, get(url)).await {
            Ok(Ok(Settings { sync_always: true, .. })) => Self::Always,
            Ok(Ok(Settings { sync_interval: Some(nanos), .. })) => Self::Every(Duration::from_nanos(nanos)),
            Ok(Ok(_)) => Self::Unknown("the response of the monitoring port does not contain it".to_owned()),
            Ok(Err(error)) => Self::Unknown(format!("the request to the monitoring port failed: {error}")),
            Err(_) => Self::Unknown("the monitoring port does not respond".to_owned()),
        }
    }

    /// Reports the interval for one stream.
    pub(super) fn report(&self, name: &str, replicas: usize, findings: &mut Findings) {
        let fix = "set `sync_interval: always` in the server's `jetstream` block; atomic batches reduce its cost";
        match self {
            Self::Always => findings.passed("sync-interval", name.to_owned()),
            Self::Every(interval) => {
                let problem = format!(
                    "{name}: the server flushes to disk every {interval:?}; a power failure loses messages that were \
                     acknowledged since{}",
                    if replicas > 1 { ", if it affects most replicas at once" } else { "" }
                );
                let severity = if replicas > 1 { Severity::Note } else { Severity::Warning };
                findings.problem(severity, "sync-interval", problem, fix.to_owned());
            }
            Self::Unknown(reason) => {
                let problem = format!("{name}: the interval at which the server flushes to disk is unknown: {reason}");
                let fix = format!(
                    "check `sync_interval` in the server's configuration (default: 2 minutes), or set `monitor_url`; \
                     {fix}"
                );
                findings.problem(Severity::Note, "sync-interval", problem, fix);
            }
        }
    }
}

/// Sends a minimal HTTP request to the monitoring port.
async fn get(url: &str) -> std::io::Result<Settings> {
    let invalid = |reason: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, reason.to_owned());
    let address =
        url.strip_prefix("http://").ok_or_else(|| invalid("`monitor_url` must have the form `http://host:8222`"))?;
    let (address, path) = address.split_once('/').unwrap_or((address, ""));
    let slash = if path.is_empty() || path.ends_with('/') { "" } else { "/" };
    let mut stream = TcpStream::connect(address).await?;
    // With HTTP/1.0 the response ends with the connection and is never chunked.
    let request = format!("GET /{path}{slash}jsz?config=true HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    stream.take(RESPONSE_BYTES_MAX).read_to_end(&mut response).await?;
    let response = String::from_utf8_lossy(&response);
    let (head, body) = response.split_once("\r\n\r\n").ok_or_else(|| invalid("the response is not HTTP"))?;
    if head.split(' ').nth(1) != Some("200") {
        return Err(invalid(head.lines().next().unwrap_or_default()));
    }
    let jsz: Jsz = serde_json::from_str(body).map_err(|_| invalid("the response is not from JetStream"))?;
    Ok(jsz.config)
}
