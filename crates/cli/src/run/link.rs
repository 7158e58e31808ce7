//! One relay, from the opening of its ends to its last settlement.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use relevo_core::store::StoreError;
use relevo_relay::Relay;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::seen::{Phase, Seen};
use super::store::{self, AnyStore};
use crate::config::{Destination, Outbox};

/// Carries one outbox to one destination until it is told to stop; its error is one that waiting does not mend.
pub(crate) async fn carry(
    outbox: Arc<Outbox>,
    destination: Destination,
    seen: Arc<Seen>,
    stop: CancellationToken,
) -> Result<()> {
    let result = carry_on(&outbox, &destination, &seen, stop).await;
    seen.enter(Phase::Ended);
    result.with_context(|| format!("outbox `{}`, destination `{}`", outbox.name, destination.name))
}

async fn carry_on(outbox: &Outbox, destination: &Destination, seen: &Seen, stop: CancellationToken) -> Result<()> {
    let broker = store::broker(&destination.broker).await?;
    let opened = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        opened = open(outbox, destination, seen) => opened,
    };
    let opened = opened.with_context(|| format!("the outbox at {} cannot be served", outbox.database))?;
    let relay = Relay::new(opened, broker, destination.relay.clone());
    seen.runs(relay.stats(), relay.watched(), relay.routes_handle());
    info!(outbox = %outbox.name, destination = %destination.name, at = %outbox.database, "relay started");
    Ok(relay.run(stop).await?)
}

/// Opens the outbox as soon as its database is there.
async fn open(outbox: &Outbox, destination: &Destination, seen: &Seen) -> Result<Arc<dyn AnyStore>> {
    let mut pause = destination.relay.outage_min;
    loop {
        seen.waits_on();
        match prepare(outbox, destination).await {
            Ok(Ok(store)) => return Ok(store),
            Ok(Err(missing)) => bail!(missing),
            Err(error) if error.is_passing() => {
                let why = chain(&error);
                warn!(outbox = %outbox.name, at = %outbox.database, error = %why, ?pause, "the database is away, will try again");
                seen.enter(Phase::Waiting(why));
                wait(pause).await;
                pause = (pause * 2).min(destination.relay.outage_max);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

async fn wait(pause: Duration) {
    sleep(pause).await;
}

/// The outbox with its destination, or the sentence that says how to add that.
async fn prepare(outbox: &Outbox, destination: &Destination) -> Result<Result<Arc<dyn AnyStore>, String>, StoreError> {
    let store = store::open(outbox, &destination.name).await?;
    let known = store.destinations().await?;
    if known.iter().any(|it| it.name == destination.name) {
        return Ok(Ok(store));
    }
    if !destination.create {
        let name = &destination.name;
        return Ok(Err(format!(
            "destination `{name}` is not known; hint: add it with `relevo destination add {name}`, or set `create = true`"
        )));
    }
    if store.add_destination(destination.shards, destination.start).await? {
        info!(outbox = %outbox.name, destination = %destination.name, shards = destination.shards, "destination added");
    }
    Ok(Ok(store))
}

/// The whole chain of causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
