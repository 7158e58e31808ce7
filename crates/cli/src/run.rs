//! `relevo run`: reads the configuration and starts the host.

mod reload;

use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use relevo_admin::Token;
use relevo_host::{AdminConfig, Host, HostConfig, OutboxConfig, Signals, logging};
use tracing::info;

use self::reload::{reload, warn_of};
use crate::config::{self, Config, Outbox, Sources};

/// How the daemon runs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  relevo run\n  relevo run -c /etc/relevo/relevo.toml --set log.level=debug")]
pub(crate) struct Run {
    #[command(flatten)]
    sources: Sources,
}

/// Runs until a signal stops it, or until a relay fails with an error that needs an operator.
pub(crate) async fn run(Run { sources }: Run) -> Result<()> {
    // From here on a signal does not end the process.
    let signals = Signals::new()?;
    let loaded = config::report_problems(sources.load())?;
    logging::start(&loaded.config.log.level, loaded.config.log.format)?;
    let host = Host::start(host_config(&loaded.config)).await?;
    warn_of(&loaded.warnings);
    info!(version = env!("CARGO_PKG_VERSION"), config = %loaded.file, name = %loaded.config.name, "started");
    host.on_reload(move |relays| reload(&loaded, &sources.load(), relays)).run(signals).await
}

fn host_config(config: &Config) -> HostConfig {
    let admin = &config.admin;
    HostConfig {
        service: config.service.clone(),
        version: env!("CARGO_PKG_VERSION"),
        name: config.name.clone(),
        admin: admin.listen.map(|listen| AdminConfig {
            listen,
            token: admin.token.as_ref().map(|token| Token::new(token.reveal())),
            sample_interval: admin.sample_interval,
            ready_requires_broker: admin.ready_requires_broker,
        }),
        traces: config.traces.clone(),
        outboxes: config.outboxes.iter().map(outbox_config).collect(),
        consumers: Vec::new(),
    }
}

fn outbox_config(outbox: &Outbox) -> OutboxConfig {
    let Outbox { name, store, destinations, .. } = outbox;
    OutboxConfig { name: name.clone(), store: Arc::clone(store), destinations: destinations.clone() }
}
