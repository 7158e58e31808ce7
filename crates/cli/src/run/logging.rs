//! Log lines, on stderr.

use std::io::{self, IsTerminal as _};

use anyhow::{Context as _, Result};
use tracing_subscriber::Layer as _;
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
    let lines = tracing_subscriber::registry().with(layer.with_filter(log.level.clone()));
    lines.try_init().context("log lines were begun twice")
}
