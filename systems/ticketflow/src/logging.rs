//! Log lines, on stderr.

use std::io::{self, IsTerminal as _};

use anyhow::{Context as _, Result};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The log level: `info`, or per target, such as `ticketflow=debug,warn`.
const LEVELS: &str = "TICKETFLOW_LOG";

/// Starts logging: text on a terminal, JSON otherwise. Short commands log only warnings.
pub(crate) fn start(serves: bool) -> Result<()> {
    let asked = std::env::var(LEVELS).unwrap_or_else(|_| if serves { "info" } else { "warn" }.to_owned());
    let levels: Targets = asked.parse().with_context(|| format!("`{LEVELS}` is wrong"))?;
    // The engine logs the same events as this library, without payloads.
    let levels = levels.with_target("lapin", LevelFilter::OFF).with_target("sqlx::query", LevelFilter::ERROR);
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let layer = if io::stderr().is_terminal() {
        layer.with_ansi(false).boxed()
    } else {
        layer.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
    };
    tracing_subscriber::registry().with(layer.with_filter(levels)).try_init().context("log lines were begun twice")
}
