//! Where an operator command finds its outbox: an option, the environment, or the configuration file.

use anyhow::Result;
use relevo_store_postgres::Schema;

use crate::args::{OutboxArgs, SchemaArg};
use crate::config::{self, Database, Loaded, Sources};
use crate::exit::{not_found_among, usage};

/// The variable that names the database.
const VARIABLE: &str = "RELEVO_DATABASE_URL";

/// The outbox that a command works on.
#[derive(Debug)]
pub(crate) struct OutboxLocation {
    /// The URL of its database. It may contain a password.
    pub(crate) url: String,
    pub(crate) place: SchemaArg,
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
        let named =
            |url, origin: &str| OutboxLocation { url, place: self.place.clone(), origin: format!("`{origin}`") };
        match self.source() {
            Some(Source::Option(url)) => Ok(Some(named(url, "--database"))),
            Some(Source::Variable(url)) => Ok(Some(named(url, VARIABLE))),
            Some(Source::File) => self.configured().map(Some),
            None => Ok(None),
        }
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
        let Loaded { config, file, .. } = config::told(self.config.load())?;
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
        let schema = match outbox.database {
            Database::Postgres(_) => Some(Schema::new(outbox.schema)),
            Database::Sqlite(_) => None,
        };
        let allow_network_file_system = self.place.allow_network_file_system || outbox.allow_network_file_system;
        Ok(OutboxLocation {
            url: outbox.url.reveal().to_owned(),
            place: SchemaArg { schema: self.place.schema.clone().or(schema), allow_network_file_system },
            origin: format!("outbox `{}` of `{file}`", outbox.name),
        })
    }
}
