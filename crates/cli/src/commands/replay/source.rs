//! The log that a replay reads: of the outbox, or of a broker that retains messages.

use anyhow::{Result, anyhow};
use relevo_core::replay_source::{OutboxRouting, ReplaySource, ReplaySourceError};

use super::selection::{Selection, SourceKind};
use crate::config::{self, Destination, Loaded, Sources};
use crate::connect::OutboxLocation;
use crate::exit::{not_found, unreachable_server, usage};

/// Opens what a replay reads.
pub(super) async fn open(
    selection: &Selection,
    place: &OutboxLocation,
    sources: &Sources,
) -> Result<Box<dyn ReplaySource>> {
    let destination = match &selection.at {
        Some((outbox, destination)) => Some(find(sources, Some(outbox), Some(destination))?.2),
        None => None,
    };
    match (selection.source, destination) {
        (SourceKind::Outbox, destination) => place.log(destination.map_or_else(OutboxRouting::default, sending)).await,
        (SourceKind::Broker, Some(destination)) => {
            let group = selection.group.as_deref().unwrap_or_default();
            destination.broker.adapter.replay_source(group).await.map_err(failed)
        }
        (SourceKind::Broker, None) => {
            Err(usage("no configuration names the broker; hint: name the file with `-c FILE`"))
        }
    }
}

/// How a destination's relay sends messages.
fn sending(destination: Destination) -> OutboxRouting {
    let source = destination.broker.adapter.source().to_owned();
    OutboxRouting { routes: destination.relay.routes, source }
}

/// The destination of the configuration that was named, or the only one that fits, with its names.
pub(super) fn find(
    sources: &Sources,
    outbox: Option<&str>,
    destination: Option<&str>,
) -> Result<(String, String, Destination)> {
    let Loaded { config, warnings, .. } = config::report_problems(sources.load())?;
    config::warn(&warnings);
    let is = |wanted: Option<&str>, has: &str| wanted.is_none_or(|wanted| wanted == has);
    let mut fitting: Vec<(String, String, Destination)> = config
        .outboxes
        .into_iter()
        .filter(|it| is(outbox, &it.name))
        .flat_map(|it| it.destinations.into_iter().map(move |to| (it.name.clone(), to.name.clone(), to)))
        .filter(|(_, name, _)| is(destination, name))
        .collect();
    match fitting.len() {
        0 => Err(not_found("the configuration has no such destination")),
        1 => Ok(fitting.remove(0)),
        _ => {
            let names: Vec<_> = fitting.iter().map(|(outbox, name, _)| format!("`{outbox}`/`{name}`")).collect();
            let names = names.join(", ");
            Err(usage(format!(
                "the configuration has several destinations; hint: choose with `--outbox` and `--destination`: {names}"
            )))
        }
    }
}

/// A log's error as the error of a command.
pub(super) fn failed(error: ReplaySourceError) -> anyhow::Error {
    match error {
        ReplaySourceError::Unreachable(cause) => {
            let error = anyhow!(cause).context("the log cannot be reached");
            unreachable_server(format!(
                "{error:#}; hint: check that the broker runs, and that it may be reached from here"
            ))
        }
        ReplaySourceError::Unsupported(why) => usage(why),
        ReplaySourceError::NotFound(what) => not_found(what),
        ReplaySourceError::Store(error) => error.into(),
        ReplaySourceError::Failed(_) => anyhow::Error::new(error),
    }
}
