//! The outbox and the consumers of the database that the arguments name.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use relevo_core::inbox::ConsumerOperator;
use relevo_core::inbox::replays::ConsumerReplays;
use relevo_core::outbox::OutboxOperator;
use relevo_core::outbox::admin::OutboxTakeover;
use relevo_core::outbox::inspect::DestinationInfo;
use relevo_core::outbox::search::OutboxSearch;
use relevo_core::replay_source::{OutboxRouting, ReplaySource};
use relevo_core::store::StoreError;
use relevo_core::store_adapter::{EmitSession, EmitSessionError, StoreOperator};
use relevo_host::registry::StoreAdapter;

use crate::args::{DestinationArgs, OutboxArgs};
use crate::database::ANSWER_DEADLINE;
use crate::exit::{not_found, not_found_among, usage};
use crate::location::OutboxLocation;

/// A database with an outbox and inboxes.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    store: Arc<dyn StoreAdapter>,
    /// What named it, for error messages.
    origin: String,
}

impl From<OutboxLocation> for Place {
    fn from(location: OutboxLocation) -> Self {
        Self { store: location.store, origin: location.origin }
    }
}

impl Place {
    /// The database that the arguments, the environment or the configuration file names.
    pub(crate) fn of(target: &OutboxArgs) -> Result<Self> {
        Ok(target.locate()?.into())
    }

    /// Host, port and database, or the file, without credentials.
    pub(crate) fn shown(&self) -> String {
        self.store.location()
    }

    /// The adapter of the database.
    pub(crate) fn adapter(&self) -> &dyn StoreAdapter {
        &*self.store
    }

    /// Opens the outbox. Each call ends after `deadline` at the latest.
    pub(crate) async fn open(&self, deadline: Duration) -> Result<Arc<dyn OutboxOperator>> {
        Ok(self.operator(deadline).await?)
    }

    /// Opens the outbox.
    pub(crate) async fn glance(&self) -> Result<Arc<dyn OutboxOperator>> {
        self.open(ANSWER_DEADLINE).await
    }

    /// Opens the inboxes.
    pub(crate) async fn consumers(&self) -> Result<Arc<dyn ConsumerOperator>> {
        self.consumers_within(ANSWER_DEADLINE).await
    }

    /// Opens the inboxes. Each call ends after `deadline` at the latest.
    pub(crate) async fn consumers_within(&self, deadline: Duration) -> Result<Arc<dyn ConsumerOperator>> {
        Ok(self.operator(deadline).await?)
    }

    async fn operator(&self, deadline: Duration) -> Result<Arc<dyn StoreOperator>> {
        self.store.open_operator(deadline).await.map_err(|error| self.failed_to_open(error))
    }

    /// The outbox's log as a source of replays.
    pub(crate) async fn log(&self, sending: OutboxRouting) -> Result<Box<dyn ReplaySource>> {
        let source = self.store.replay_source(sending, ANSWER_DEADLINE).await;
        source.map_err(|error| self.failed_to_open(error))
    }

    /// Opens a connection that emits.
    pub(crate) async fn writer(&self) -> Result<Box<dyn EmitSession>> {
        self.store.open_emitter().await.map_err(|error| self.failed_to_open(error))
    }

    /// Opens the outbox to adopt or rebase it.
    pub(crate) async fn takeover(&self, deadline: Duration) -> Result<Arc<dyn OutboxTakeover>> {
        let takeover = self.store.open_takeover(deadline).await.map_err(|error| self.failed_to_open(error))?;
        takeover.ok_or_else(|| usage("this database may be copied and moved as it is, and needs no such command"))
    }

    fn failed_to_open(&self, error: StoreError) -> anyhow::Error {
        let (location, origin) = (self.shown(), &self.origin);
        anyhow::Error::from(error).context(format!("cannot open the outbox at {location}, which {origin} names"))
    }
}

/// An emission's error as the error of a command.
pub(crate) fn emit_error(error: EmitSessionError) -> anyhow::Error {
    match error {
        EmitSessionError::Store(error) => error.into(),
        EmitSessionError::Message(error) => error.into(),
    }
}

/// An outbox, and the destination that is meant.
pub(crate) struct Opened {
    pub(crate) outbox: Arc<dyn OutboxOperator>,
    pub(crate) destination: DestinationInfo,
    pub(crate) shown: String,
}

/// Opens an outbox for the destination that was named, or for the only one there is.
pub(crate) async fn open(which: &DestinationArgs) -> Result<Opened> {
    open_within(which, ANSWER_DEADLINE).await
}

/// The same, with answers that may take so long.
pub(crate) async fn open_within(which: &DestinationArgs, deadline: Duration) -> Result<Opened> {
    let place = Place::of(&which.target)?;
    let outbox = place.open(deadline).await?;
    let known = outbox.destinations().await.with_context(|| format!("the outbox at {}", place.shown()))?;
    let destination = choose(known, which.destination.as_deref())?;
    Ok(Opened { outbox, destination, shown: place.shown() })
}

/// The search of an outbox, if its store has one.
pub(crate) fn search(outbox: &dyn OutboxOperator) -> Result<&dyn OutboxSearch> {
    outbox.as_search().ok_or_else(|| usage("the outbox of this database cannot be searched"))
}

/// The replays of a database, if its store has them.
pub(crate) fn replays(consumers: &dyn ConsumerOperator) -> Result<&dyn ConsumerReplays> {
    consumers.as_replays().ok_or_else(|| usage("this database has no replays"))
}

/// The destination of this name, or the only one.
pub(crate) fn choose(known: Vec<DestinationInfo>, wanted: Option<&str>) -> Result<DestinationInfo> {
    let names = || format!("`{}`", known.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join("`, `"));
    let Some(name) = wanted else {
        return match known.len() {
            0 => Err(not_found("there is no destination yet; hint: add one with `relevo destination add NAME`")),
            1 => Ok(known.into_iter().next().expect("one was counted")),
            _ => Err(usage(format!(
                "there is more than one destination; hint: choose with `--destination`: {}",
                names()
            ))),
        };
    };
    let names: Vec<String> = known.iter().map(|it| it.name.clone()).collect();
    let found = known.into_iter().find(|it| it.name == name);
    found.ok_or_else(|| {
        not_found_among("destination", name, &names, &format!("add it with `relevo destination add {name}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error_report::ErrorReport;
    use crate::exit::ExitStatus;

    fn named(names: &[&str]) -> Vec<DestinationInfo> {
        let one =
            |name: &&str| DestinationInfo { name: (*name).to_owned(), shards: 8, resharding_to: None, enabled: true };
        names.iter().map(one).collect()
    }

    fn refused(known: &[&str], name: Option<&str>) -> (ExitStatus, String) {
        let error = choose(named(known), name).expect_err("it cannot be chosen");
        (ExitStatus::of(&error), ErrorReport::of(&error).to_string())
    }

    #[test]
    fn the_only_destination_need_not_be_named() {
        assert_eq!(choose(named(&["main"]), None).unwrap().name, "main");
        assert_eq!(choose(named(&["audit", "main"]), Some("main")).unwrap().name, "main");
    }

    #[test]
    fn a_destination_that_cannot_be_chosen_is_told_with_the_known_ones() {
        let (code, told) = refused(&["audit", "main"], Some("mian"));
        assert_eq!(told, "error: destination `mian` is not known\nhint: there are `audit`, `main`");
        assert_eq!(code, ExitStatus::NotFound);
        let (code, told) = refused(&["audit", "main"], None);
        assert_eq!(code, ExitStatus::Usage);
        assert!(told.ends_with("hint: choose with `--destination`: `audit`, `main`"), "{told}");
        assert_eq!(refused(&[], None).0, ExitStatus::NotFound);
    }
}
