//! Every key of the configuration: what it is called, what it takes, what it is without being set.
//!
//! The file, the variables, the flags, `config print` and the reference page all go by this table.

use relevo_host::registry::BROKERS;

use super::broker::embedded::EMBEDDED;
use super::broker::nats::{GROUP, NATS, STREAM};
use super::broker::rabbitmq::{EXCHANGE, POLICY, QUEUE, RABBITMQ};
use super::traces::TRACES;
use super::tuning::{ROUTE, TUNING};

/// Stands for a name that the user chooses.
pub(crate) const NAME: &str = "*";
/// Stands for the place in a list.
pub(crate) const INDEX: &str = "#";

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any text.
    Text,
    /// A text that is never shown.
    Secret,
    /// A whole number within limits.
    Integer {
        /// At least this.
        min: i64,
        /// At most this.
        max: i64,
    },
    /// A number from 0 to 1.
    Ratio,
    /// `true` or `false`.
    Boolean,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any number of texts.
    Texts,
    /// Any number of texts that are never shown.
    Secrets,
    /// Any number of whole numbers, each within limits.
    Integers {
        /// Each at least this.
        min: i64,
        /// Each at most this.
        max: i64,
    },
    /// Texts by name.
    Pairs,
    /// Texts, whole numbers and booleans by name.
    Scalars,
}

impl Kind {
    /// A number of at least `min` that a machine could mean.
    pub(crate) const fn from(min: i64) -> Self {
        Self::Integer { min, max: 1 << 40 }
    }

    /// What it takes, for people.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Text | Self::Secret => "a text".to_owned(),
            Self::Integer { min, max } if max == 1 << 40 => format!("a whole number, at least {min}"),
            Self::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Self::Ratio => "a number from 0 to 1, with at most six decimals".to_owned(),
            Self::Boolean => "`true` or `false`".to_owned(),
            Self::Choice(words) => format!("one of `{}`", words.join("`, `")),
            Self::Texts | Self::Secrets => "a list of texts".to_owned(),
            Self::Integers { min, .. } => format!("a list of whole numbers, each at least {min}"),
            Self::Pairs => "a table of texts".to_owned(),
            Self::Scalars => "a table of texts, whole numbers and booleans".to_owned(),
        }
    }
}

/// When a change in the file takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// On SIGHUP.
    Reload,
    /// When the process is started anew.
    Restart,
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// As it would stand in the file; `None` where leaving it out means something else than a value.
    pub(crate) default: Option<&'static str>,
    pub(crate) takes: Takes,
    /// What it does, as a sentence.
    pub(crate) doc: &'static str,
    /// What stands for it in the example file where there is no default.
    pub(crate) example: &'static str,
}

impl Key {
    /// A key with a default.
    pub(crate) const fn new(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Self {
        Self { name, kind, default: Some(default), takes: Takes::Restart, doc, example: default }
    }

    /// A key without one.
    pub(crate) const fn unset(name: &'static str, kind: Kind, example: &'static str, doc: &'static str) -> Self {
        Self { name, kind, default: None, takes: Takes::Restart, doc, example }
    }

    /// A number of the relay's.
    pub(crate) const fn number(name: &'static str, min: i64, default: &'static str, doc: &'static str) -> Self {
        Self::new(name, Kind::from(min), default, doc)
    }

    /// A key of a route, which is read again on SIGHUP.
    pub(crate) const fn of_route(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Self {
        Self { takes: Takes::Reload, ..Self::new(name, kind, default, doc) }
    }
}

/// The keys that stand together under one heading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    /// Where it is: words, [`NAME`] and [`INDEX`].
    pub(crate) path: &'static [&'static str],
    /// The kind of broker that knows it; `None` where that says nothing.
    pub(crate) of: Option<&'static str>,
    /// What it is, as a sentence or two.
    pub(crate) doc: &'static str,
    pub(crate) keys: &'static [Key],
}

/// A section that is the same whatever the broker.
const fn plain(path: &'static [&'static str], doc: &'static str, keys: &'static [Key]) -> Section {
    Section { path, of: None, doc, keys }
}

/// A section that one kind of broker knows.
const fn of(kind: &'static str, path: &'static [&'static str], doc: &'static str, keys: &'static [Key]) -> Section {
    Section { path, of: Some(kind), doc, keys }
}

/// All of it, in the order in which it is documented.
pub(crate) const SECTIONS: &[Section] = &[
    plain(&[], "Who this process is.", PROCESS),
    plain(&["log"], "What is logged, to stderr.", LOG),
    plain(&["admin"], "The port for probes and metrics.", ADMIN),
    plain(&["traces"], "What is told of messages, as spans. See docs/how-to/traces.md.", TRACES),
    plain(&["relay"], "How every relay of this process works. The defaults suit a broker on the same network.", TUNING),
    plain(
        &["outboxes", NAME],
        "An outbox: one schema of a PostgreSQL database, or one SQLite file. Exactly one of `database`, \
         `database_file` and `database_env` is set.",
        OUTBOX,
    ),
    plain(
        &["outboxes", NAME, "destinations", NAME],
        "Whom the outbox is carried to, with progress of its own. One relay works for each.",
        DESTINATION,
    ),
    plain(&["outboxes", NAME, "destinations", NAME, "broker"], "The far side of the destination.", BROKER),
    of(
        "embedded",
        &["outboxes", NAME, "destinations", NAME, "broker"],
        "A durable broker in a SQLite file of this machine.",
        EMBEDDED,
    ),
    of(
        "rabbitmq",
        &["outboxes", NAME, "destinations", NAME, "broker"],
        "RabbitMQ. An address is `exchange/routing.key`. Destinations whose brokers are configured alike share a connection.",
        RABBITMQ,
    ),
    of(
        "rabbitmq",
        &["outboxes", NAME, "destinations", NAME, "broker", "exchanges", NAME],
        "A durable exchange that is to be at the broker.",
        EXCHANGE,
    ),
    of(
        "rabbitmq",
        &["outboxes", NAME, "destinations", NAME, "broker", "queues", NAME],
        "A durable queue that is to be at the broker, with its lanes, its retry ladder and its dead letters.",
        QUEUE,
    ),
    of(
        "rabbitmq",
        &["outboxes", NAME, "destinations", NAME, "broker", "policies", NAME],
        "A policy that is to be at the broker; needs `management_url`.",
        POLICY,
    ),
    of(
        "nats",
        &["outboxes", NAME, "destinations", NAME, "broker"],
        "NATS JetStream. An address is a subject. Destinations whose brokers are configured alike share a connection.",
        NATS,
    ),
    of(
        "nats",
        &["outboxes", NAME, "destinations", NAME, "broker", "streams", NAME],
        "A stream that is to be at the server.",
        STREAM,
    ),
    of(
        "nats",
        &["outboxes", NAME, "destinations", NAME, "broker", "groups", NAME],
        "A group of consumers that is to be at the server: its durable pull consumers.",
        GROUP,
    ),
    plain(
        &["outboxes", NAME, "destinations", NAME, "relay"],
        "What this destination's relay does differently from `[relay]`; the same keys.",
        TUNING,
    ),
    plain(
        &["outboxes", NAME, "destinations", NAME, "routes", INDEX],
        "Which messages go to which address, and when they are given up. The first route that matches is taken; a \
         message without one is not for this destination. Without any route, everything goes to the address named \
         as its topic. SIGHUP exchanges the routes of relays that run.",
        ROUTE,
    ),
];

const PROCESS: &[Key] = &[
    Key::new("service", Kind::Text, "\"relevo\"", "The label `service` of every metric."),
    Key::unset(
        "name",
        Kind::Text,
        "\"relay-1\"",
        "What people see as the owner of a lease; without it the machine's name and the process id.",
    ),
];

const LOG: &[Key] = &[
    Key::new(
        "level",
        Kind::Text,
        "\"info\"",
        "`error`, `warn`, `info`, `debug` or `trace`, also for one part alone: `info,relevo_relay=debug`. \
         `RELEVO_LOG` is a short name for its variable.",
    ),
    Key::new(
        "format",
        Kind::Choice(&["auto", "text", "json"]),
        "\"auto\"",
        "`auto` writes text to a terminal and JSON lines otherwise.",
    ),
];

const ADMIN: &[Key] = &[
    Key::new(
        "listen",
        Kind::Text,
        "\"127.0.0.1:9464\"",
        "Address and port of `/livez`, `/readyz`, `/startupz` and `/metrics`; port 0 takes a free one and logs it; `off` opens none. \
         Anything but loopback needs a token.",
    ),
    Key::unset(
        "token_file",
        Kind::Text,
        "\"/run/credentials/relevo/admin-token\"",
        "A file with the token that clients send as `Authorization: Bearer …`, at least 16 characters. The probes answer \
         without it, but do not say why.",
    ),
    Key::unset("token_env", Kind::Text, "\"ADMIN_TOKEN\"", "The name of a variable that holds the token."),
    Key::new(
        "backlog_every_ms",
        Kind::Integer { min: 100, max: 30_000 },
        "5000",
        "How often databases and brokers are asked for what the metrics tell of them: backlog, ages, consumers, nodes. \
         Half a minute at most: after a whole one a sample counts as missing.",
    ),
    Key::new(
        "ready_needs_broker",
        Kind::Boolean,
        "false",
        "Whether `/readyz` says 503 while a broker is away. An outage is waited for, and costs no message: nobody else \
         would do better.",
    ),
];

const OUTBOX: &[Key] = &[
    Key::unset(
        "database",
        Kind::Secret,
        "\"postgres://relevo@localhost/shop\"",
        "The database: `postgres://user:password@host:port/name` or `sqlite:PATH`. It is never shown.",
    ),
    Key::unset(
        "database_file",
        Kind::Text,
        "\"/run/credentials/relevo/shop\"",
        "A file that holds the database's URL and nothing else.",
    ),
    Key::unset(
        "database_env",
        Kind::Text,
        "\"SHOP_DATABASE_URL\"",
        "The name of a variable that holds the database's URL.",
    ),
    Key::new("schema", Kind::Text, "\"relevo\"", "The PostgreSQL schema that holds the outbox."),
    Key::number(
        "call_deadline_ms",
        1,
        "5000",
        "No call of the hot path to PostgreSQL takes longer; shorter than the lease.",
    ),
    NETWORK_FILE_SYSTEM,
];

/// For an outbox in a SQLite file, and for the embedded broker.
pub(super) const NETWORK_FILE_SYSTEM: Key = Key::new(
    "allow_network_file_system",
    Kind::Boolean,
    "false",
    "Accepts a SQLite file on a network file system, such as NFS, SMB or FUSE. SQLite's locks do not work across machines: \
     a file that two machines use will be corrupted.",
);

const DESTINATION: &[Key] = &[
    Key::new(
        "create",
        Kind::Boolean,
        "false",
        "Adds the destination at start-up if the outbox does not know it. Without it an unknown one is an error.",
    ),
    Key::new(
        "shards",
        Kind::Integer { min: 1, max: 256 },
        "8",
        "Into how many slices a destination that is added cuts the outbox; one that exists stays as it is.",
    ),
    Key::new(
        "start",
        Kind::Choice(&["now", "oldest"]),
        "\"now\"",
        "With which message a destination that is added starts: the first that commits from then on, or the oldest that \
         is retained.",
    ),
];

const BROKER: &[Key] = &[Key::unset(
    "kind",
    Kind::Choice(BROKERS),
    "\"embedded\"",
    "Which broker it is; needed. Each kind has keys of its own.",
)];

/// What may stand in a place.
pub(crate) enum Found {
    /// A key.
    Key(&'static Key),
    /// A heading, with or without keys of its own.
    Heading,
    /// Nothing; with the names that are known there.
    Nothing(Vec<&'static str>),
}

/// What the table knows of a place, given by the words of its section's path and one more.
pub(crate) fn find(pattern: &[&str], name: &str) -> Found {
    let mut known = Vec::new();
    for section in SECTIONS {
        if section.path == pattern {
            if let Some(key) = section.keys.iter().find(|key| key.name == name) {
                return Found::Key(key);
            }
            known.extend(section.keys.iter().map(|key| key.name));
        } else if section.path.len() > pattern.len() && section.path.starts_with(pattern) {
            let word = section.path[pattern.len()];
            if word == name || word == NAME {
                return Found::Heading;
            }
            known.push(word);
        }
    }
    known.dedup();
    Found::Nothing(known)
}

/// The word of the pattern that a name stands for in this place.
pub(crate) fn word_of(pattern: &[&'static str], name: &str) -> Option<&'static str> {
    let deeper = SECTIONS.iter().filter(|section| section.path.len() > pattern.len());
    let words = deeper.filter(|section| section.path.starts_with(pattern)).map(|section| section.path[pattern.len()]);
    words.into_iter().find(|word| *word == name || *word == NAME)
}

/// Whether a place is a list.
pub(crate) fn is_list(pattern: &[&str]) -> bool {
    SECTIONS.iter().any(|section| {
        section.path.len() > pattern.len() && section.path.starts_with(pattern) && section.path[pattern.len()] == INDEX
    })
}
