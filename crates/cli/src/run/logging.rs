//! Log lines, on stderr.

use std::io::{self, IsTerminal as _};

use anyhow::{Context as _, Result};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{Format, Log};

/// From now on lines are written: text for a person at a terminal, JSON for whoever collects them.
pub(crate) fn start(log: &Log) -> Result<()> {
    let json = match log.format {
        Format::Auto => !io::stderr().is_terminal(),
        Format::Text => false,
        Format::Json => true,
    };
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let layer = if json {
        // The fields stand beside the message, where collectors look for them.
        layer.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
    } else {
        layer.with_ansi(false).boxed()
    };
    let lines = tracing_subscriber::registry().with(layer.with_filter(quiet(&log.level)));
    lines.try_init().context("log lines were begun twice")
}

/// Libraries that tell in lines of their own, often as errors, what our adapters tell and mend.
const TALKATIVE: [&str; 2] = ["lapin", "async_nats"];
/// It shows messages with their payload, which no log line does.
const INDISCREET: &str = "lapin::returned_messages";

/// The levels that were asked for; of talkative libraries only if they were named.
pub(crate) fn quiet(asked: &Targets) -> Targets {
    let named = |library: &&str| asked.iter().any(|(target, _)| target.starts_with(*library));
    let silent = TALKATIVE.into_iter().filter(|library| !named(library)).map(|library| (library, LevelFilter::OFF));
    asked.clone().with_targets(silent).with_target(INDISCREET, LevelFilter::OFF)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_library_is_heard_only_if_it_is_named_and_never_with_payloads() {
        let plain = quiet(&"trace".parse().expect("levels"));
        assert!(plain.would_enable("relevo_relay", &Level::TRACE));
        assert!(!plain.would_enable("lapin::io_loop", &Level::ERROR));
        assert!(!plain.would_enable("async_nats", &Level::INFO));
        let named = quiet(&"info,lapin=debug,lapin::returned_messages=warn".parse().expect("levels"));
        assert!(named.would_enable("lapin::io_loop", &Level::DEBUG));
        assert!(!named.would_enable(INDISCREET, &Level::WARN));
    }
}
