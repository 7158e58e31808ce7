//! Log lines, on stderr.

use std::io::{self, IsTerminal as _};

use anyhow::{Context as _, Result};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Which lines: `info`, or as `ticketflow=debug,warn`.
const LEVELS: &str = "TICKETFLOW_LOG";

/// From now on lines are written: text for a person at a terminal, JSON for whoever collects them. Short commands only warn.
pub(crate) fn start(serves: bool) -> Result<()> {
    let asked = std::env::var(LEVELS).unwrap_or_else(|_| if serves { "info" } else { "warn" }.to_owned());
    let levels: Targets = asked.parse().with_context(|| format!("`{LEVELS}` is wrong"))?;
    // What this library tells, the engine tells too, without payloads.
    let levels = levels.with_target("lapin", LevelFilter::OFF).with_target("sqlx::query", LevelFilter::ERROR);
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let layer = if io::stderr().is_terminal() {
        layer.with_ansi(false).boxed()
    } else {
        layer.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
    };
    tracing_subscriber::registry().with(layer.with_filter(levels)).try_init().context("log lines were begun twice")
}
