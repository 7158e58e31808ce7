//! Opens what the arguments of a command name: the outbox and the consumers of a database, or a broker.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use relevo_core::broker::admin::{BrokerAdmin, TopologyStatus};
use relevo_core::inbox::ConsumerOperator;
use relevo_core::inbox::replays::ConsumerReplays;
use relevo_core::outbox::OutboxOperator;
use relevo_core::outbox::admin::OutboxTakeover;
use relevo_core::outbox::inspect::DestinationInfo;
use relevo_core::outbox::search::OutboxSearch;
use relevo_core::replay_source::{OutboxRouting, ReplaySource};
use relevo_core::store::StoreError;
use relevo_core::store_adapter::{EmitSession, EmitSessionError, StoreOperator};
use relevo_core::{Class, Failure};
use relevo_host::registry::{self, BrokerConfig, StoreAdapter, StoreConfig};

use crate::args::{DestinationArgs, OutboxArgs};
use crate::config::{self, Loaded, Sources};
use crate::exit::{not_found, not_found_among, unreachable_server, usage};

/// The timeout of a call.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
/// The timeout of a call that rewrites or deletes whole tables.
pub(crate) const REWRITE_TIMEOUT: Duration = Duration::from_hours(24);
/// The variable that names the database.
const VARIABLE: &str = "RELEVO_DATABASE_URL";

/// The outbox that a command works on.
#[derive(Clone, Debug)]
pub(crate) struct OutboxLocation {
    pub(crate) store: Arc<dyn StoreAdapter>,
    /// What named it, for error messages.
    pub(crate) origin: String,
}

impl OutboxLocation {
    /// Host, port and database, or the file, without credentials.
    pub(crate) fn location(&self) -> String {
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
    pub(crate) async fn outbox(&self) -> Result<Arc<dyn OutboxOperator>> {
        self.open(ANSWER_TIMEOUT).await
    }

    /// Opens the inboxes.
    pub(crate) async fn consumers(&self) -> Result<Arc<dyn ConsumerOperator>> {
        self.consumers_within(ANSWER_TIMEOUT).await
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
        let source = self.store.replay_source(sending, ANSWER_TIMEOUT).await;
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
        let (location, origin) = (self.location(), &self.origin);
        anyhow::Error::from(error).context(format!("cannot open the outbox at {location}, which {origin} names"))
    }
}

/// What names an outbox.
enum Source {
    Option(String),
    Variable(String),
    File,
}

impl OutboxArgs {
    /// The outbox. An error if nothing names one.
    pub(crate) fn locate(&self) -> Result<OutboxLocation> {
        self.find()?.ok_or_else(|| {
            usage(format!(
                "no outbox is named; hint: `--database postgres://user@host/name` or `--database sqlite:FILE`, set `{VARIABLE}`, \
                 or run this in the directory of `relevo.toml`"
            ))
        })
    }

    /// The outbox, if anything names one.
    pub(crate) fn find(&self) -> Result<Option<OutboxLocation>> {
        match self.source() {
            Some(Source::Option(url)) => self.named(url, "--database").map(Some),
            Some(Source::Variable(url)) => self.named(url, VARIABLE).map(Some),
            Some(Source::File) => self.configured().map(Some),
            None => Ok(None),
        }
    }

    /// The outbox of the database with this URL.
    pub(crate) fn named(&self, url: String, origin: &str) -> Result<OutboxLocation> {
        self.open(StoreConfig::from_url(url), format!("`{origin}`"))
    }

    /// Options override the settings.
    fn open(&self, mut config: StoreConfig, origin: String) -> Result<OutboxLocation> {
        config.schema = self.place.schema.clone().or(config.schema);
        config.allow_network_file_system |= self.place.allow_network_file_system;
        let store = registry::store(&config).map_err(|error| usage(error.to_string()))?;
        Ok(OutboxLocation { store, origin })
    }

    /// Whether the configuration file names the outbox.
    pub(crate) fn is_configured(&self) -> bool {
        matches!(self.source(), Some(Source::File))
    }

    fn source(&self) -> Option<Source> {
        if let Some(url) = &self.database {
            return Some(Source::Option(url.clone()));
        }
        if self.config.are_given() || self.outbox.is_some() {
            return Some(Source::File);
        }
        match std::env::var(VARIABLE) {
            Ok(url) if !url.is_empty() => Some(Source::Variable(url)),
            _ => (Sources::are_in_environment() || self.config.path().exists()).then_some(Source::File),
        }
    }

    /// The outbox of the configuration file.
    fn configured(&self) -> Result<OutboxLocation> {
        let Loaded { config, file, .. } = config::report_problems(self.config.load())?;
        let names: Vec<String> = config.outboxes.iter().map(|outbox| outbox.name.clone()).collect();
        let mut outboxes = config.outboxes.into_iter();
        let outbox = match &self.outbox {
            Some(name) => outboxes
                .find(|outbox| outbox.name == *name)
                .ok_or_else(|| not_found_among("outbox", name, &names, &format!("add it to `{file}`")))?,
            None if names.len() > 1 => {
                let names = names.join("`, `");
                return Err(usage(format!(
                    "`{file}` has several outboxes; hint: select one with `--outbox`: `{names}`"
                )));
            }
            None => outboxes.next().ok_or_else(|| usage(format!("`{file}` has no outbox")))?,
        };
        self.open(outbox.store_config, format!("outbox `{}` of `{file}`", outbox.name))
    }
}

/// An emission's error as the error of a command.
pub(crate) fn emit_error(error: EmitSessionError) -> anyhow::Error {
    match error {
        EmitSessionError::Store(error) => error.into(),
        EmitSessionError::Message(error) => error.into(),
    }
}

/// An open outbox, and the destination that the arguments select.
pub(crate) struct OpenOutbox {
    pub(crate) outbox: Arc<dyn OutboxOperator>,
    pub(crate) destination: DestinationInfo,
    pub(crate) shown: String,
}

/// Opens an outbox for the destination that the arguments name, or for the only one.
pub(crate) async fn open(which: &DestinationArgs) -> Result<OpenOutbox> {
    open_within(which, ANSWER_TIMEOUT).await
}

/// The same. Each call ends after `deadline` at the latest.
pub(crate) async fn open_within(which: &DestinationArgs, deadline: Duration) -> Result<OpenOutbox> {
    let location = which.target.locate()?;
    let outbox = location.open(deadline).await?;
    let known = outbox.destinations().await.with_context(|| format!("the outbox at {}", location.location()))?;
    let destination = choose(known, which.destination.as_deref())?;
    Ok(OpenOutbox { outbox, destination, shown: location.location() })
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
            0 => Err(not_found(
                "there is no destination yet; hint: `relevo run` adds those of its configuration, and `relevo destination add NAME` \
                 adds one",
            )),
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

/// The broker's administration; `None` for a kind that has neither topology nor settings of its own.
pub(crate) fn broker_admin(broker: &BrokerConfig) -> Result<Option<Box<dyn BrokerAdmin>>> {
    broker.adapter.admin().map_err(|failure| usage(failure.error_chain()))
}

/// A failure as the error of a command.
pub(crate) fn broker_error(failure: &Failure) -> anyhow::Error {
    let text = failure.error_chain();
    match failure.class() {
        Class::Outage => unreachable_server(format!(
            "{text}; hint: check host and port, that the server runs, and that a firewall lets this machine reach it"
        )),
        Class::Unknown | Class::Throttled(_) | Class::Transient => unreachable_server(text),
        Class::Blocked => anyhow!(
            "{text}; hint: correct the login or its permissions, the certificates, or the names in the configuration"
        ),
        Class::Poison => anyhow!(text),
    }
}

/// The word for a state in tables and JSON.
pub(crate) const fn topology_word(state: &TopologyStatus) -> &'static str {
    match state {
        TopologyStatus::Unchanged => "unchanged",
        TopologyStatus::Missing => "missing",
        TopologyStatus::Created => "created",
        TopologyStatus::Unknown => "unknown",
        TopologyStatus::Different(_) => "different",
    }
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
    fn a_destination_that_cannot_be_chosen_is_an_error_with_the_known_ones() {
        let (code, text) = refused(&["audit", "main"], Some("mian"));
        assert_eq!(text, "error: destination `mian` is not known\nhint: there are `audit`, `main`");
        assert_eq!(code, ExitStatus::NotFound);
        let (code, text) = refused(&["audit", "main"], None);
        assert_eq!(code, ExitStatus::Usage);
        assert!(text.ends_with("hint: choose with `--destination`: `audit`, `main`"), "{text}");
        assert_eq!(refused(&[], None).0, ExitStatus::NotFound);
    }
}
