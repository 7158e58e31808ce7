//! The configuration of `TicketFlow`: everything is embedded by default.

mod check;
mod file;
mod section;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
pub use check::Doubt;
pub use file::{Problems, read};

use crate::mail::Patience;

/// All settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The role of this process.
    pub role: Role,
    /// Whether all processes run on this machine with the same data directory, and can share an embedded broker.
    pub one_machine: bool,
    /// The address of the API and the page; port 0 selects a free port.
    pub listen: SocketAddr,
    /// The database of tickets, outbox and inbox.
    pub database: Database,
    /// The broker between API and worker.
    pub broker: Broker,
    /// The transport of e-mails.
    pub mail: Mail,
    /// The settings of all e-mails.
    pub letters: Letters,
    /// The settings of the relay and the outbox.
    pub outbox: Outbox,
    /// The settings of the worker.
    pub worker: Worker,
    /// The limits of requests.
    pub limits: Limits,
}

impl Config {
    /// The embedded configuration: a SQLite file, the embedded broker and a mail folder in `data`.
    pub fn embedded(data: &Path) -> Self {
        Self {
            role: Role::All,
            one_machine: false,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            database: Database::Sqlite(data.join("tickets.db")),
            broker: Broker::Embedded(data.join("broker.db")),
            mail: Mail::Folder(data.join("mail")),
            letters: Letters::default(),
            outbox: Outbox::default(),
            worker: Worker::default(),
            limits: Limits::default(),
        }
    }
}

impl Config {
    /// Creates the folders of embedded files.
    pub fn make_folders(&self) -> anyhow::Result<()> {
        let database = match &self.database {
            Database::Sqlite(file) => file.parent(),
            Database::Postgres(_) => None,
        };
        let broker = match &self.broker {
            Broker::Embedded(file) => file.parent(),
            Broker::RabbitMq { .. } => None,
        };
        for folder in database.into_iter().chain(broker).filter(|folder| *folder != Path::new("")) {
            std::fs::create_dir_all(folder).with_context(|| format!("`{}` cannot be made", folder.display()))?;
        }
        Ok(())
    }
}

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The API, the page and the relay.
    Api,
    /// The consumers.
    Worker,
    /// Both.
    All,
}

impl Role {
    /// Whether it serves the API.
    pub const fn serves(self) -> bool {
        matches!(self, Self::Api | Self::All)
    }

    /// Whether it handles events.
    pub const fn works(self) -> bool {
        matches!(self, Self::Worker | Self::All)
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "api" => Ok(Self::Api),
            "worker" => Ok(Self::Worker),
            "all" => Ok(Self::All),
            _ => Err("must be `api`, `worker` or `all`".to_owned()),
        }
    }
}

/// The database of tickets, outbox and inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Database {
    /// A file.
    Sqlite(PathBuf),
    /// A server, by its URL.
    Postgres(Secret),
}

/// The broker between API and worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broker {
    /// A file.
    Embedded(PathBuf),
    /// A server.
    RabbitMq {
        /// AMQP.
        url: Secret,
        /// The management API. With it, all settings are checked.
        management_url: Option<Secret>,
        /// The delays of the retry queues: first, second, third retry.
        ladder: Vec<Duration>,
    },
}

/// The transport of e-mails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mail {
    /// A folder with one file per e-mail.
    Folder(PathBuf),
    /// A server.
    Smtp {
        /// `smtp`, `smtp+starttls` or `smtps`.
        url: Secret,
        /// A private certificate authority: a file in PEM.
        ca_file: Option<PathBuf>,
    },
}

/// The sender of e-mails, and their retention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letters {
    /// Name and address.
    pub from: String,
    /// The right side of Message-IDs.
    pub domain: String,
    /// The prefix of links.
    pub base_url: String,
    /// How long sent e-mails are retained.
    pub retention: Duration,
}

impl Default for Letters {
    fn default() -> Self {
        Self {
            from: "TicketFlow <soporte@ticketflow.example>".to_owned(),
            domain: "ticketflow.example".to_owned(),
            base_url: "http://127.0.0.1:8080".to_owned(),
            retention: days(30),
        }
    }
}

/// The settings of the relay and the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbox {
    /// The maximum poll interval of an idle relay.
    pub dispatch_interval: Duration,
    /// The maximum number of messages in a batch.
    pub batch: usize,
    /// How long published events are retained.
    pub retention: Duration,
}

impl Default for Outbox {
    fn default() -> Self {
        Self { dispatch_interval: Duration::from_millis(500), batch: 100, retention: days(30) }
    }
}

/// The settings of the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// The interval of heartbeats.
    pub heartbeat: Duration,
    /// The timeout of the mail server before it accepts the data of an e-mail. Then it is probed: without a response it is
    /// unreachable.
    pub deadline: Duration,
    /// The timeout of its response after the data. Without a response in time the e-mail is sent again.
    pub answer: Duration,
    /// The maximum number of events that a consumer handles at once.
    pub concurrency: usize,
    /// The delays of the first retries, in memory.
    pub retries: Vec<Duration>,
}

impl Default for Worker {
    fn default() -> Self {
        let retries = [1000, 2000, 5000].map(Duration::from_millis).to_vec();
        let [heartbeat, deadline, answer] = [30, 20, 120].map(Duration::from_secs);
        Self { heartbeat, deadline, answer, concurrency: 8, retries }
    }
}

impl Worker {
    /// The timeouts for the mail server.
    pub const fn patience(&self) -> Patience {
        Patience { deadline: self.deadline, answer: self.answer }
    }
}

/// The limits of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum size of a body.
    pub body_bytes: usize,
    /// How long the response to a request with an `Idempotency-Key` is stored.
    pub idempotency: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body_bytes: 65536, idempotency: Duration::from_hours(24) }
    }
}

const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 86400)
}

/// A URL that may contain a password: never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value, for a connection.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}
