//! Log lines on stderr.

use std::io::{self, IsTerminal as _};

use anyhow::{Context as _, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// Text.
    Text,
    /// JSON.
    Json,
}

/// Starts writing log lines to stderr. A process calls it once.
pub fn start(level: &Targets, format: LogFormat) -> Result<()> {
    let json = match format {
        LogFormat::Auto => !io::stderr().is_terminal(),
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let layer = if json {
        // Log collectors expect the fields beside the message.
        layer.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
    } else {
        layer.with_ansi(false).boxed()
    };
    let lines = tracing_subscriber::registry().with(layer.with_filter(without_noisy_targets(level)));
    lines.try_init().context("logging was started twice")
}

/// Client libraries that log, often as errors, what the adapters report and retry.
const NOISY_TARGETS: [&str; 2] = ["lapin", "async_nats"];
/// It logs payloads.
const PAYLOAD_TARGET: &str = "lapin::returned_messages";

/// The requested levels. A noisy library logs only if its target is requested.
pub fn without_noisy_targets(requested: &Targets) -> Targets {
    let named = |library: &&str| requested.iter().any(|(target, _)| target.starts_with(*library));
    let silent = NOISY_TARGETS.into_iter().filter(|library| !named(library)).map(|library| (library, LevelFilter::OFF));
    requested.clone().with_targets(silent).with_target(PAYLOAD_TARGET, LevelFilter::OFF)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_noisy_library_logs_only_if_requested_and_never_payloads() {
        let plain = without_noisy_targets(&"trace".parse().expect("levels"));
        assert!(plain.would_enable("relevo_relay", &Level::TRACE));
        assert!(!plain.would_enable("lapin::io_loop", &Level::ERROR));
        assert!(!plain.would_enable("async_nats", &Level::INFO));
        let named = without_noisy_targets(&"info,lapin=debug,lapin::returned_messages=warn".parse().expect("levels"));
        assert!(named.would_enable("lapin::io_loop", &Level::DEBUG));
        assert!(!named.would_enable(PAYLOAD_TARGET, &Level::WARN));
    }
}
