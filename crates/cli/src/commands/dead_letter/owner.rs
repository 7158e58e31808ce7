//! Whose dead letters: of a destination, of a consumer, or of all of them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use relevo_core::dead_letters::{DeadLetterAdmin, DeadLetterOwner};
use relevo_core::inbox::ConsumerOperator;
use relevo_core::outbox::OutboxOperator;

use crate::args::OutboxArgs;
use crate::commands::consumer;
use crate::connect;

/// One destination or one consumer.
#[derive(Debug, Clone, clap::Args)]
#[command(group = clap::ArgGroup::new("owner"))]
pub(crate) struct OwnerArgs {
    /// Dead letters of this destination.
    #[arg(long, short, value_name = "NAME", group = "owner", value_parser = crate::args::destination)]
    destination: Option<String>,
    /// Dead letters of this consumer.
    #[arg(long, value_name = "NAME", group = "owner")]
    consumer: Option<String>,
}

impl OwnerArgs {
    /// Whether neither is given.
    pub(super) const fn is_any(&self) -> bool {
        self.destination.is_none() && self.consumer.is_none()
    }
}

/// The dead letters of a database.
pub(super) struct DeadLetters {
    outbox: Arc<dyn OutboxOperator>,
    pub(super) consumers: Arc<dyn ConsumerOperator>,
    /// The selected owners: every destination, then all consumers, if none is named.
    pub(super) owners: Vec<DeadLetterOwner>,
}

impl DeadLetters {
    pub(super) async fn open(target: &OutboxArgs, owner: &OwnerArgs, call_timeout: Duration) -> Result<Self> {
        let place = target.locate()?;
        let (outbox, consumers) = (place.open(call_timeout).await?, place.consumers_within(call_timeout).await?);
        let owners = match (&owner.destination, &owner.consumer) {
            (Some(name), _) => {
                let destination = connect::choose(outbox.destinations().await?, Some(name))?;
                vec![DeadLetterOwner::Destination(destination.name)]
            }
            (None, Some(name)) => {
                vec![DeadLetterOwner::Consumer(consumer::find(&*consumers, name).await?.summary.name)]
            }
            (None, None) => {
                let destinations = outbox.destinations().await?.into_iter();
                let destinations = destinations.map(|destination| DeadLetterOwner::Destination(destination.name));
                destinations.chain([DeadLetterOwner::AnyConsumer]).collect()
            }
        };
        Ok(Self { outbox, consumers, owners })
    }

    /// The port to the dead letters of an owner.
    pub(super) fn admin(&self, owner: &DeadLetterOwner) -> &dyn DeadLetterAdmin {
        match owner {
            DeadLetterOwner::Destination(_) => &*self.outbox,
            DeadLetterOwner::Consumer(_) | DeadLetterOwner::AnyConsumer => &*self.consumers,
        }
    }
}

/// An owner in a sentence.
pub(super) fn described(owner: &DeadLetterOwner) -> String {
    match owner {
        DeadLetterOwner::Destination(name) => format!("destination `{name}`"),
        DeadLetterOwner::Consumer(name) => format!("consumer `{name}`"),
        DeadLetterOwner::AnyConsumer => "any consumer".to_owned(),
    }
}

/// The option that selects an owner.
pub(super) fn option(owner: &DeadLetterOwner) -> String {
    match owner {
        DeadLetterOwner::Destination(name) => format!("--destination {name}"),
        DeadLetterOwner::Consumer(name) => format!("--consumer {name}"),
        DeadLetterOwner::AnyConsumer => "--consumer NAME".to_owned(),
    }
}

/// One owner instead of all consumers: the name is in the dead letter.
pub(super) fn exact(owner: &DeadLetterOwner, name: &str) -> DeadLetterOwner {
    match owner {
        DeadLetterOwner::AnyConsumer => DeadLetterOwner::Consumer(name.to_owned()),
        known => known.clone(),
    }
}
