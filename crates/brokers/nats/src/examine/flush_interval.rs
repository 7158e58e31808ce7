//! How often the server flushes its files to disk. Only the monitoring port reports it.

use std::time::Duration;

use relevo_core::finding::Findings;
use relevo_core::finding::Severity;
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
    pub(crate) async fn query(config: &Config, seen: &ServerState) -> Self {
        if seen.version < (2, 10) {
            return Self::Every(DEFAULT_INTERVAL);
        }
        let Some(url) = &config.monitoring_url else {
            return Self::Unknown("no `monitor_url` is configured".to_owned());
        };
        match timeout(config.connect_timeout, get(url)).await {
            Ok(Ok(Settings { sync_always: true, .. })) => Self::Always,
            Ok(Ok(Settings { sync_interval: Some(nanos), .. })) => Self::Every(Duration::from_nanos(nanos)),
            Ok(Ok(_)) => Self::Unknown("the monitoring port does not tell".to_owned()),
            Ok(Err(error)) => Self::Unknown(format!("the monitoring port cannot be asked: {error}")),
            Err(_) => Self::Unknown("the monitoring port does not answer".to_owned()),
        }
    }

    /// Reports the interval for one stream.
    pub(super) fn report(&self, name: &str, replicas: usize, report: &mut Findings) {
        let fix = "set `sync_interval: always` in the server's `jetstream` block; atomic batches make up for its price";
        match self {
            Self::Always => report.passed("sync-interval", name.to_owned()),
            Self::Every(interval) => {
                let what = format!(
                    "{name}: the server writes to the disk every {interval:?}; a loss of power loses what it acknowledged \
                     since{}",
                    if replicas > 1 { ", if it hits most replicas at once" } else { "" }
                );
                let severity = if replicas > 1 { Severity::Note } else { Severity::Warning };
                report.problem(severity, "sync-interval", what, fix.to_owned());
            }
            Self::Unknown(why) => {
                let what = format!("{name}: how often the server writes to the disk is not known: {why}");
                let fix = format!(
                    "look for `sync_interval` in the server's configuration (it is 2 minutes unless set), or set \
                     `monitor_url`; {fix}"
                );
                report.problem(Severity::Note, "sync-interval", what, fix);
            }
        }
    }
}

/// Sends a minimal HTTP request to the monitoring port.
async fn get(url: &str) -> std::io::Result<Settings> {
    let unexpected = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
    let address =
        url.strip_prefix("http://").ok_or_else(|| unexpected("`monitor_url` is not like `http://host:8222`"))?;
    let (address, path) = address.split_once('/').unwrap_or((address, ""));
    let slash = if path.is_empty() || path.ends_with('/') { "" } else { "/" };
    let mut stream = TcpStream::connect(address).await?;
    // With HTTP/1.0 the response ends with the connection and is never chunked.
    let request = format!("GET /{path}{slash}jsz?config=true HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(RESPONSE_BYTES_MAX).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| unexpected("no HTTP"))?;
    if head.split(' ').nth(1) != Some("200") {
        return Err(unexpected(head.lines().next().unwrap_or_default()));
    }
    let jsz: Jsz = serde_json::from_str(body).map_err(|_| unexpected("no answer of JetStream"))?;
    Ok(jsz.config)
}
