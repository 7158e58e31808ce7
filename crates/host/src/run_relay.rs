//! One relay, from opening its broker and its outbox until its last settlement.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use relevo_core::outbox::RelayStore;
use relevo_core::store::StoreError;
use relevo_core::{Broker, Class};
use relevo_observe::{Dependency, RelayMonitor, RelayPhase};
use relevo_relay::Relay;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, error_span, info, warn};

use crate::broker_check::wait_for_broker;
use crate::config::{DestinationConfig, OutboxConfig};
use crate::error_report::ErrorReport;
use crate::open_brokers::OpenBrokers;
use crate::waiting::{Pauses, with_progress};

/// The configuration does not fit a broker or an outbox. An operator must change one of them.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigurationError(pub(crate) String);

/// Publishes the messages of one outbox to one destination until `stop` is cancelled. Waits for unreachable servers; its
/// error needs an operator.
pub(crate) async fn run_relay(
    outbox: Arc<OutboxConfig>,
    destination: DestinationConfig,
    brokers: Arc<OpenBrokers>,
    monitor: Arc<RelayMonitor>,
    stop: CancellationToken,
) -> Result<()> {
    // Every log line names its relay.
    let span = error_span!("relay", outbox = %outbox.name, destination = %destination.name);
    let result = open_and_run(&outbox, &destination, &brokers, &monitor, stop).instrument(span).await;
    monitor.enter(RelayPhase::Stopped);
    result.with_context(|| format!("outbox `{}`, destination `{}`", outbox.name, destination.name))
}

async fn open_and_run(
    outbox: &OutboxConfig,
    destination: &DestinationConfig,
    brokers: &OpenBrokers,
    monitor: &RelayMonitor,
    stop: CancellationToken,
) -> Result<()> {
    let both = async {
        wait_for_broker(&outbox.name, destination, monitor).await?;
        let broker = open_broker(destination, brokers, monitor).await?;
        Ok::<_, anyhow::Error>((broker, open(outbox, destination, monitor).await?))
    };
    let (broker, store) = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        both = both => both?,
    };
    let relay = Relay::new(store, broker, destination.relay.clone())?;
    monitor.attach(&relay);
    info!(location = outbox.store.location(), "relay started");
    Ok(relay.run(stop).await?)
}

/// Opens the broker when it is reachable.
async fn open_broker(
    destination: &DestinationConfig,
    brokers: &OpenBrokers,
    monitor: &RelayMonitor,
) -> Result<Arc<dyn Broker>> {
    let mut pauses = Pauses::of(destination);
    loop {
        monitor.made_progress();
        let failure = match brokers.open(&*destination.broker.adapter).await {
            Ok(broker) => {
                monitor.set_broker_reachable(true);
                return Ok(broker);
            }
            Err(failure) => failure,
        };
        let class = failure.class();
        let error = anyhow::Error::new(failure.into_source());
        if matches!(class, Class::Blocked | Class::Poison) {
            return Err(error);
        }
        let report = ErrorReport::of(&error);
        monitor.set_broker_reachable(false);
        monitor
            .enter(RelayPhase::WaitingFor(Dependency::Broker, format!("waiting for the broker: {}", report.error())));
        warn!(error = report.error(), hint = report.hint(), "broker unreachable, will retry");
        pauses.pass(monitor).await;
    }
}

/// Opens the outbox when its database is reachable.
async fn open(
    outbox: &OutboxConfig,
    destination: &DestinationConfig,
    monitor: &RelayMonitor,
) -> Result<Arc<dyn RelayStore>> {
    let mut pauses = Pauses::of(destination);
    loop {
        match with_progress(monitor, Box::pin(prepare(outbox, destination))).await {
            Ok(Ok(store)) => return Ok(store),
            Ok(Err(missing)) => bail!(missing),
            Err(error) if error.is_retryable() => {
                let report = ErrorReport::of(&error.into());
                monitor.database_unreachable();
                monitor.enter(RelayPhase::WaitingFor(
                    Dependency::Database,
                    format!("waiting for the database: {}", report.error()),
                ));
                warn!(
                    location = outbox.store.location(),
                    error = report.error(),
                    hint = report.hint(),
                    "database unreachable, will retry"
                );
                pauses.pass(monitor).await;
            }
            Err(error) => return Err(error).with_context(|| format!("the outbox at {}", outbox.store.location())),
        }
    }
}

/// Opens the outbox with its destination. The inner error says how to add the destination.
async fn prepare(
    outbox: &OutboxConfig,
    destination: &DestinationConfig,
) -> Result<Result<Arc<dyn RelayStore>, String>, StoreError> {
    let (operator, name) = (outbox.store.open_operator(outbox.store.call_timeout()).await?, &destination.name);
    if operator.destinations().await?.iter().any(|it| it.name == *name) {
        return Ok(Ok(outbox.store.open_relay(name).await?));
    }
    if !destination.create {
        return Ok(Err(format!(
            "destination `{name}` is not known; hint: add it with `relevo destination add {name}`, or set `create = true`"
        )));
    }
    if operator.add_destination(name, destination.shards, destination.start).await? {
        info!(shards = destination.shards, "destination added");
    }
    Ok(Ok(outbox.store.open_relay(name).await?))
}
