//! One relay, from the opening of its ends to its last settlement.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use relevo_core::broker::admin::BrokerAdmin;
use relevo_core::outbox::RelayStore;
use relevo_core::store::StoreError;
use relevo_core::{Broker, Class, Failure};
use relevo_host::OpenBrokers;
use relevo_observe::{Dependency, RelayMonitor, RelayPhase};
use relevo_relay::Relay;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, error, error_span, info, warn};

use super::admit::admit;
use super::waiting::{CHECK_MAX, Pauses, turning};
use crate::broker;
use crate::config::{Destination, Outbox};
use crate::error_report::ErrorReport;

/// Carries one outbox to one destination until it is told to stop; its error is one that waiting does not mend.
pub(crate) async fn carry(
    outbox: Arc<Outbox>,
    destination: Destination,
    brokers: Arc<OpenBrokers>,
    monitor: Arc<RelayMonitor>,
    stop: CancellationToken,
) -> Result<()> {
    // Every line that the relay writes says whose it is.
    let span = error_span!("relay", outbox = %outbox.name, destination = %destination.name);
    let result = carry_on(&outbox, &destination, &brokers, &monitor, stop).instrument(span).await;
    monitor.enter(RelayPhase::Stopped);
    result.with_context(|| format!("outbox `{}`, destination `{}`", outbox.name, destination.name))
}

async fn carry_on(
    outbox: &Outbox,
    destination: &Destination,
    brokers: &OpenBrokers,
    monitor: &RelayMonitor,
    stop: CancellationToken,
) -> Result<()> {
    let both = async {
        admitted(outbox, destination, monitor).await?;
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
    info!(at = outbox.store.location(), "relay started");
    Ok(relay.run(stop).await?)
}

/// Waits for the broker, and for a person if that one must mend something, until messages may go out.
async fn admitted(outbox: &Outbox, destination: &Destination, monitor: &RelayMonitor) -> Result<()> {
    let Some(admin) = broker::admin(&destination.broker)? else { return Ok(()) };
    let (mut pauses, mut last) = (Pauses::of(destination), String::new());
    loop {
        let looked = turning(monitor, timeout(CHECK_MAX, look(&*admin, &outbox.name, destination))).await;
        let failure = match looked {
            Ok(Ok(judged)) => {
                monitor.set_broker_reachable(true);
                return judged;
            }
            Ok(Err(failure)) => failure,
            Err(_) => {
                let told = format!("the check of the broker took longer than {CHECK_MAX:?}");
                Failure::new(Class::Outage, told)
            }
        };
        monitor.set_broker_reachable(false);
        let told = failure.error_chain();
        let refused = matches!(failure.class(), Class::Blocked | Class::Poison);
        let what = if refused { "the broker refuses us" } else { "waiting for the broker" };
        monitor.enter(RelayPhase::WaitingFor(Dependency::Broker, format!("{what}: {told}")));
        // The same news again is no news.
        if told != last {
            if refused {
                error!(error = told, "the broker refuses us, a person must mend it, will try again");
            } else {
                warn!(error = told, "the broker is away, will try again");
            }
            last = told;
        }
        pauses.pass(monitor).await;
    }
}

/// Looks at the broker; without a part of it that messages do not need, if only that is unreachable.
async fn look(admin: &dyn BrokerAdmin, outbox: &str, destination: &Destination) -> Result<Result<()>, Failure> {
    let failure = match admit(admin, outbox, destination).await {
        Ok(judged) => return Ok(judged),
        Err(failure) => failure,
    };
    let Some(rest) = destination.broker.adapter.reduced_admin(&failure) else { return Err(failure) };
    let judged = admit(&*rest, outbox, destination).await?;
    warn!(
        error = failure.error_chain(),
        "a part of the broker that messages do not need is unreachable: only whether the topology exists was checked"
    );
    Ok(judged)
}

/// Opens the broker as soon as it is there.
async fn open_broker(
    destination: &Destination,
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
        let told = ErrorReport::of(&error);
        monitor.set_broker_reachable(false);
        monitor.enter(RelayPhase::WaitingFor(Dependency::Broker, format!("waiting for the broker: {}", told.error())));
        warn!(error = told.error(), hint = told.hint(), "the broker is away, will try again");
        pauses.pass(monitor).await;
    }
}

/// Opens the outbox as soon as its database is there.
async fn open(outbox: &Outbox, destination: &Destination, monitor: &RelayMonitor) -> Result<Arc<dyn RelayStore>> {
    let mut pauses = Pauses::of(destination);
    loop {
        match turning(monitor, Box::pin(prepare(outbox, destination))).await {
            Ok(Ok(store)) => return Ok(store),
            Ok(Err(missing)) => bail!(missing),
            Err(error) if error.is_retryable() => {
                let told = ErrorReport::of(&error.into());
                monitor.database_unreachable();
                monitor.enter(RelayPhase::WaitingFor(
                    Dependency::Database,
                    format!("waiting for the database: {}", told.error()),
                ));
                warn!(
                    at = outbox.store.location(),
                    error = told.error(),
                    hint = told.hint(),
                    "the database is away, will try again"
                );
                pauses.pass(monitor).await;
            }
            Err(error) => return Err(error).with_context(|| format!("the outbox at {}", outbox.store.location())),
        }
    }
}

/// The outbox with its destination, or the sentence that says how to add that.
async fn prepare(
    outbox: &Outbox,
    destination: &Destination,
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
