//! How `TicketFlow` is set up: everything embedded unless a file says otherwise.

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

/// Everything that can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which parts this process runs.
    pub role: Role,
    /// All processes run on this machine with the same data directory, so that they can share an embedded broker.
    pub one_machine: bool,
    /// Where the API and the page are served; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where tickets, outbox and inbox are.
    pub database: Database,
    /// What carries events to the worker.
    pub broker: Broker,
    /// What carries e-mails.
    pub mail: Mail,
    /// What e-mails have in common.
    pub letters: Letters,
    /// How events leave the database.
    pub outbox: Outbox,
    /// How events are handled.
    pub worker: Worker,
    /// What requests may cost.
    pub limits: Limits,
}

impl Config {
    /// Nothing to install: a SQLite file, the embedded broker and a folder of e-mails in `data`.
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
    /// Makes the folders in which embedded files will be.
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

/// The parts that a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The API, the page and the relay.
    Api,
    /// The consumers.
    Worker,
    /// All of it.
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

/// Where tickets, outbox and inbox are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Database {
    /// A file.
    Sqlite(PathBuf),
    /// A server, by its URL.
    Postgres(Secret),
}

/// What carries events to the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broker {
    /// A file.
    Embedded(PathBuf),
    /// A server.
    RabbitMq {
        /// AMQP.
        url: Secret,
        /// The management plugin, by which more can be checked.
        management_url: Option<Secret>,
        /// How long a failed e-mail waits at the broker: first, second, third time.
        ladder: Vec<Duration>,
    },
}

/// What carries e-mails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mail {
    /// Written there, one file an e-mail.
    Folder(PathBuf),
    /// A server.
    Smtp {
        /// `smtp`, `smtp+starttls` or `smtps`.
        url: Secret,
        /// Who signed its certificate, where no public authority did: a file in PEM.
        ca_file: Option<PathBuf>,
    },
}

/// What every e-mail says of its sender, and how long is known what it said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letters {
    /// Name and address.
    pub from: String,
    /// The right side of Message-IDs.
    pub domain: String,
    /// What links begin with.
    pub base_url: String,
    /// How long what was sent is kept for people to look at.
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

/// How events leave the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbox {
    /// The longest that an idle relay waits before it looks again.
    pub dispatch_interval: Duration,
    /// The most messages that it takes at once.
    pub batch: usize,
    /// How long what was carried is kept.
    pub retention: Duration,
}

impl Default for Outbox {
    fn default() -> Self {
        Self { dispatch_interval: Duration::from_millis(500), batch: 100, retention: days(30) }
    }
}

/// How events are handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// How often a worker says that it lives.
    pub heartbeat: Duration,
    /// How long the mail server may take until it wants to have an e-mail; after that it is asked whether it takes any, and if not
    /// is away.
    pub deadline: Duration,
    /// How long it may take to answer for an e-mail that it has: what it took and did not answer for in time is sent again.
    pub answer: Duration,
    /// How many events a consumer handles at once.
    pub concurrency: usize,
    /// The first waits after a failure, in memory.
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
    /// How long the mail server is waited for.
    pub const fn patience(&self) -> Patience {
        Patience { deadline: self.deadline, answer: self.answer }
    }
}

/// What requests may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest body.
    pub body_bytes: usize,
    /// How long a request with an `Idempotency-Key` is remembered.
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

/// A URL that may hold a password: never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value, for whoever connects with it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}
