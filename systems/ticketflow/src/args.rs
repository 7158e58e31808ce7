//! What can be typed.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand, ValueEnum};
use ticketflow::config::{self, Config};
use ticketflow::domain::{Language, Role};

/// People open tickets, agents answer them, and everyone concerned has an e-mail about it.
///
/// Without a configuration everything is embedded and there are sample people.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Args {
    /// Which parts to run: `api`, `worker` or `all`.
    #[arg(long, global = true)]
    role: Option<config::Role>,
    /// The configuration.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where embedded parts keep their files.
    #[arg(long, global = true, value_name = "DIR", default_value = "ticketflow-data")]
    data: PathBuf,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, global = true, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Brings the database up to date.
    Migrate,
    /// The exchange and the queues at RabbitMQ.
    Topology {
        /// Whether to make what is missing, or only to look.
        what: Topology,
    },
    /// The people of the desk.
    Person {
        #[command(subcommand)]
        what: Person,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Topology {
    /// Makes what is missing.
    Apply,
    /// Only looks.
    Check,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Person {
    /// Adds somebody, and tells their token once.
    Add {
        /// As it is shown.
        name: String,
        /// Where e-mails go.
        email: String,
        /// `requester`, `agent` or `admin`.
        // Not `role`: that is the process's.
        #[arg(id = "person_role", value_name = "ROLE")]
        role: Role,
        /// In which they are written to: `es` or `en`.
        #[arg(long, default_value = "es")]
        language: Language,
    },
    /// Gives somebody another token, and tells it once. The one before ends; whoever was disabled is let in again.
    Token {
        /// Whose e-mails go there.
        email: String,
    },
    /// Lets nobody in as this person, and gives them no more tickets, until they have another token.
    Disable {
        /// Whose e-mails go there.
        email: String,
    },
}

impl Args {
    /// Whether there are sample people: not where somebody has set something up.
    pub(crate) const fn is_sample(&self) -> bool {
        self.config.is_none()
    }

    /// The file's configuration, or everything embedded; flags have the last word.
    pub(crate) fn config(&self) -> Result<Config> {
        let environment = |name: &str| std::env::var(name).ok();
        let text = self.config.as_deref().map(read).transpose()?.unwrap_or_default();
        let mut config = config::read(&text, &self.data, &environment)?;
        config.role = self.role.unwrap_or(config.role);
        config.listen = self.listen.unwrap_or(config.listen);
        Ok(config)
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("`{}` cannot be read", path.display()))
}
