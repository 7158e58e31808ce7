//! The sections of the process: its name, its log, its admin port, its traces.

use std::net::SocketAddr;
use std::time::Duration;

use relevo_config::{Checks, DurationText, KeyPath, Problem, Reader, Secret, Section};
use relevo_host::instance_name;
use relevo_host::logging::LogFormat;
use relevo_observe::traces::{self, Exporter, Ratio};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::Targets;

/// A shorter token can be guessed.
const TOKEN_MIN: usize = 16;

#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) level: Targets,
    pub(crate) format: LogFormat,
}

#[derive(Clone, Debug)]
pub(crate) struct Admin {
    /// `None` opens no port.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) token: Option<Secret>,
    pub(crate) sample_interval: Duration,
    /// An outage of a broker makes the process unready.
    pub(crate) ready_requires_broker: bool,
}

/// What this process is called.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ProcessSection {
    /// The label `service` of every metric.
    service: String,
    /// The owner of leases, as operators see it. The default is the name of the host and the process id.
    #[schemars(extend("examples" = ["relay-1"]))]
    name: Option<String>,
}

/// The log, which goes to stderr.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct LogSection {
    /// `error`, `warn`, `info`, `debug` or `trace`, also for one part alone: `info,relevo_relay=debug`. `RELEVO_LOG` is a
    /// short name for its variable.
    level: String,
    /// `auto` writes text to a terminal and JSON lines otherwise.
    format: LogFormat,
}

/// The port for probes, metrics and status.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct AdminSection {
    /// The address and port; port 0 selects a free one and logs it; `off` opens none. An address other than loopback
    /// requires a token.
    listen: String,
    /// The token that clients send as `Authorization: Bearer …`, at least 16 characters. The probes answer without it, but
    /// without details.
    #[schemars(extend("x-example-file" = "/run/credentials/relevo/admin-token"))]
    token: Option<Secret>,
    /// How often databases and brokers are sampled for metrics: backlog, ages, consumers, nodes. From 100 ms to 30 s: after
    /// a minute a sample counts as missing.
    #[serde(with = "DurationText")]
    sample_interval: Duration,
    /// Return 503 from `/readyz` while a broker is unreachable. Off by default: the relay retries and loses nothing.
    ready_requires_broker: bool,
}

/// The export of spans with OTLP over HTTP. See docs/guides/traces.md.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct TracesSection {
    /// The collector; `/v1/traces` is appended. Without it no span is exported.
    #[schemars(extend("examples" = ["http://127.0.0.1:4318"]))]
    endpoint: Option<String>,
    /// The share of the messages without a trace context that is exported, by their ids: from 0 to 1, with at most six
    /// decimals. A message with a trace context is exported if that is sampled.
    sample_ratio: f64,
    /// The maximum number of spans that wait for the collector. More are dropped and counted.
    queue_max: usize,
}

impl Default for ProcessSection {
    fn default() -> Self {
        Self { service: "relevo".to_owned(), name: None }
    }
}

impl Default for LogSection {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::Auto }
    }
}

impl Default for AdminSection {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9464".to_owned(),
            token: None,
            sample_interval: Duration::from_secs(5),
            ready_requires_broker: false,
        }
    }
}

impl Default for TracesSection {
    fn default() -> Self {
        Self { endpoint: None, sample_ratio: 0.01, queue_max: 16_384 }
    }
}

impl Section for ProcessSection {}

impl Section for LogSection {
    fn validate(&self, checks: &mut Checks<'_>) {
        if targets(&self.level).is_none() {
            let problem = Problem::new("`level` is not a level, or a list of levels");
            let hint = "`error`, `warn`, `info`, `debug` or `trace`, or `info,relevo_relay=debug`";
            checks.report("level", problem.hint(hint));
        }
    }
}

impl Section for AdminSection {
    fn validate(&self, checks: &mut Checks<'_>) {
        if self.token.as_ref().is_some_and(|token| token.reveal().len() < TOKEN_MIN) {
            checks.report("token", Problem::new(format!("the admin token has fewer than {TOKEN_MIN} characters")));
        }
        match self.listen.parse::<SocketAddr>() {
            _ if self.listen == "off" => {}
            Ok(address) if !address.ip().is_loopback() && self.token.is_none() => {
                let problem = Problem::new("`listen` is an address that other machines can reach, without a token");
                checks.report("listen", problem.hint("listen on `127.0.0.1`, or set `token_file` or `token_env`"));
            }
            Ok(_) => {}
            Err(_) => {
                let problem = Problem::new("`listen` must be an address and a port, or `off`");
                checks.report("listen", problem.hint("`127.0.0.1:9464`"));
            }
        }
        if !(100..=30_000).contains(&self.sample_interval.as_millis()) {
            checks.report("sample_interval", Problem::new("`sample_interval` must be from 100ms to 30s"));
        }
    }
}

impl Section for TracesSection {
    fn validate(&self, checks: &mut Checks<'_>) {
        if self.sample_ratio.to_string().parse::<Ratio>().is_err() {
            let reason = "`sample_ratio` must be a number from 0 to 1, with at most six decimals";
            checks.report("sample_ratio", Problem::new(reason));
        }
        if self.queue_max == 0 {
            checks.report("queue_max", Problem::new("`queue_max` must be at least 1"));
        }
        // The endpoint is not printed: it may contain a password.
        if let Some(endpoint) = &self.endpoint
            && let Err(error) = Exporter::new(traces::Config::new(endpoint.clone(), "relevo"))
        {
            let reason = match error {
                traces::ConfigError::Endpoint(_) => "`endpoint` is not the URL of a collector".to_owned(),
                other => other.to_string(),
            };
            checks.report("endpoint", Problem::new(reason).hint("`http://127.0.0.1:4318`"));
        }
    }
}

type Process = (String, String, Log, Admin, Option<traces::Config>);

/// Reads these sections. `None` after a problem.
pub(super) fn read(reader: &mut Reader) -> Option<Process> {
    let process = reader.read::<ProcessSection>(&KeyPath::default());
    let log = reader.read::<LogSection>(&KeyPath::of(&["log"]));
    let admin = reader.read::<AdminSection>(&KeyPath::of(&["admin"]));
    let traces = reader.read::<TracesSection>(&KeyPath::of(&["traces"]));
    let (ProcessSection { service, name }, log, admin, traces) = (process?, log?, admin?, traces?);
    let log = Log { level: targets(&log.level)?, format: log.format };
    let AdminSection { listen, token, sample_interval, ready_requires_broker } = admin;
    let admin = Admin { listen: listen.parse().ok(), token, sample_interval, ready_requires_broker };
    let sample = traces.sample_ratio.to_string().parse().ok()?;
    let exporter =
        |endpoint| traces::Config { sample, queue_max: traces.queue_max, ..traces::Config::new(endpoint, &*service) };
    let traces = traces.endpoint.map(exporter);
    let name = name.unwrap_or_else(instance_name);
    Some((service, name, log, admin, traces))
}

/// Levels for everything or for one part of the program. An unknown word would be taken for a part.
fn targets(text: &str) -> Option<Targets> {
    let is_level = |word: &str| {
        let known = ["off", "error", "warn", "info", "debug", "trace"];
        known.iter().any(|level| level.eq_ignore_ascii_case(word.trim()))
    };
    let is_part = |word: &str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':' | b'-');
        !word.is_empty() && word.bytes().all(known)
    };
    let is_filter = text.split(',').all(|directive| match directive.split_once('=') {
        Some((part, level)) => is_part(part.trim()) && is_level(level),
        None => is_level(directive),
    });
    if is_filter { text.replace(' ', "").parse().ok() } else { None }
}
