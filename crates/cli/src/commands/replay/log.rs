//! The log that is read: the outbox's own, or a broker's that keeps one. Only this file knows which brokers do.

use anyhow::{Context as _, Result, anyhow};
use relevo_broker_embedded::{self as embedded, BrokerFile};
use relevo_broker_nats::{self as nats, ReplayLog};
use relevo_core::replay_source::{OutboxRouting, ReplaySource, ReplaySourceError};

use super::spec::{Log, Spec};
use crate::config::{self, Broker, Destination, Loaded, Sources};
use crate::exit::{away, not_found, usage};
use crate::outbox::Place;
use crate::run::embedded_config;

/// Opens what a replay reads.
pub(super) async fn open(spec: &Spec, place: &Place, sources: &Sources) -> Result<Box<dyn ReplaySource>> {
    let destination = match &spec.at {
        Some((outbox, destination)) => Some(find(sources, Some(outbox), Some(destination))?.2),
        None => None,
    };
    match (spec.log, destination) {
        (Log::Outbox, destination) => place.log(destination.map_or_else(OutboxRouting::default, sending)).await,
        (Log::Broker, Some(destination)) => {
            let group = spec.group.as_deref().unwrap_or_default();
            broker(&destination.broker, group).await
        }
        (Log::Broker, None) => Err(usage("no configuration names the broker; hint: name the file with `-c FILE`")),
    }
}

/// How a destination's relay sends messages.
fn sending(destination: Destination) -> OutboxRouting {
    let source = match &destination.broker {
        Broker::Embedded { path, .. } => embedded::Config::new(path).source,
        Broker::Rabbitmq(config) => config.source.clone(),
        Broker::Nats(config) => config.source.clone(),
    };
    OutboxRouting { routes: destination.relay.routes, source }
}

/// The destination of the configuration that was named, or the only one that fits, with its names.
pub(super) fn find(
    sources: &Sources,
    outbox: Option<&str>,
    destination: Option<&str>,
) -> Result<(String, String, Destination)> {
    let Loaded { config, warnings, .. } = config::told(sources.load())?;
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

async fn broker(broker: &Broker, group: &str) -> Result<Box<dyn ReplaySource>> {
    match broker {
        Broker::Rabbitmq(_) => Err(usage(
            "RabbitMQ keeps no log: a queue forgets what was acknowledged; hint: replay from the outbox's own log, with `--log \
             outbox`",
        )),
        Broker::Embedded { path, allow_network_file_system } => {
            if !path.exists() {
                return Err(not_found(format!("there is no embedded broker at `{}`", path.display())));
            }
            let at = || format!("the embedded broker `{}`", path.display());
            let opened = BrokerFile::open(embedded_config(path, *allow_network_file_system)).await.with_context(at)?;
            match opened.replay_log(group).await {
                Ok(log) => Ok(Box::new(log)),
                Err(embedded::Error::GroupNotFound(_)) => {
                    let names: Vec<String> = opened.groups().await?.into_iter().map(|group| group.name).collect();
                    Err(no_group(group, &names))
                }
                Err(error) => Err(anyhow::Error::new(error)).with_context(at),
            }
        }
        Broker::Nats(config) => {
            let groups = &config.topology.groups;
            let found: Option<&nats::Group> = groups.iter().find(|it| it.name == group);
            let Some(found) = found else {
                let names: Vec<String> = groups.iter().map(|group| group.name.clone()).collect();
                return Err(no_group(group, &names));
            };
            Ok(Box::new(ReplayLog::open(config, found).await.map_err(failed)?))
        }
    }
}

fn no_group(group: &str, known: &[String]) -> anyhow::Error {
    let hint =
        if known.is_empty() { "there is none".to_owned() } else { format!("there are `{}`", known.join("`, `")) };
    not_found(format!("the broker has no group `{group}`; hint: name the consumer's with `--group`: {hint}"))
}

/// A log's error as the error of a command.
pub(super) fn failed(error: ReplaySourceError) -> anyhow::Error {
    match error {
        ReplaySourceError::Unreachable(cause) => {
            let told = anyhow!(cause).context("the log cannot be reached");
            away(format!("{told:#}; hint: check that the broker runs, and that it may be reached from here"))
        }
        ReplaySourceError::Unsupported(why) => usage(why),
        ReplaySourceError::Store(error) => error.into(),
        ReplaySourceError::Failed(_) => anyhow::Error::new(error),
    }
}
