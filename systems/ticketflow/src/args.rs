//! The command line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand, ValueEnum};
use ticketflow::config::{self, Config};
use ticketflow::domain::{Language, Role};

/// A ticket service: requesters open tickets, agents work on them, and the people concerned receive e-mails.
///
/// Without a configuration everything is embedded, and there are sample users.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Args {
    /// The role of the process: `api`, `worker` or `all`.
    #[arg(long, global = true)]
    role: Option<config::Role>,
    /// The configuration.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The directory of embedded files.
    #[arg(long, global = true, value_name = "DIR", default_value = "ticketflow-data")]
    data: PathBuf,
    /// The address to listen on; port 0 selects a free port.
    #[arg(long, global = true, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Migrates the database.
    Migrate,
    /// The exchange and the queues at RabbitMQ.
    Topology {
        /// Creates missing items, or only compares.
        what: Topology,
    },
    /// The users.
    Person {
        #[command(subcommand)]
        what: Person,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Topology {
    /// Creates missing items.
    Apply,
    /// Only compares.
    Check,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Person {
    /// Adds a user, and prints the token once.
    Add {
        /// The displayed name.
        name: String,
        /// The address for e-mails.
        email: String,
        /// `requester`, `agent` or `admin`.
        // Not `role`: that is the process's.
        #[arg(id = "person_role", value_name = "ROLE")]
        role: Role,
        /// The language of e-mails: `es` or `en`.
        #[arg(long, default_value = "es")]
        language: Language,
    },
    /// Replaces the token, and prints it once. The old one is no longer valid, and a disabled user is enabled again.
    Token {
        /// The user's e-mail address.
        email: String,
    },
    /// Disables a user: they are rejected and get no more tickets, until they have a new token.
    Disable {
        /// The user's e-mail address.
        email: String,
    },
}

impl Args {
    /// Whether there are sample users: only without a configuration.
    pub(crate) const fn is_sample(&self) -> bool {
        self.config.is_none()
    }

    /// The configuration of the file, or the embedded one. Flags override it.
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
