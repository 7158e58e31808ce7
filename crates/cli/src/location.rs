//! Where an operator command finds its outbox: an option, the environment, or the configuration file.

use std::sync::Arc;

use anyhow::Result;
use relevo_host::registry::{self, StoreAdapter, StoreConfig};

use crate::args::OutboxArgs;
use crate::config::{self, Loaded, Sources};
use crate::exit::{not_found_among, usage};

/// The variable that names the database.
const VARIABLE: &str = "RELEVO_DATABASE_URL";

/// The outbox that a command works on.
#[derive(Debug)]
pub(crate) struct OutboxLocation {
    pub(crate) store: Arc<dyn StoreAdapter>,
    /// What named it, for error messages.
    pub(crate) origin: String,
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
