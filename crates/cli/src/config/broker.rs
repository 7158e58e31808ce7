//! Brokers, as the program uses them: which kind knows which keys, and what they have in common.

mod lanes;
pub(super) mod nats;
pub(super) mod rabbitmq;

use std::path::PathBuf;
use std::time::Duration;

use relevo_broker_nats as nats_broker;
use relevo_broker_rabbitmq as rabbitmq_broker;
use relevo_core::{Route, Routes};

use super::keys::{BROKERS, Key, Kind, NETWORK_FILE_SYSTEM, SECTIONS};
use super::problem::Problem;
use super::resolved::Reader;
use super::secret::Secret;
use super::settings::{Path, Setting, pattern_of};
use super::value::Value;

/// The far side; each kind that comes adds a variant here, its keys to the table, and one arm where it is opened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Broker {
    /// In a SQLite file.
    Embedded {
        /// The file.
        path: PathBuf,
        /// Accepts a file on a network file system.
        allow_network_file_system: bool,
    },
    /// RabbitMQ.
    Rabbitmq(Box<rabbitmq_broker::Config>),
    /// NATS `JetStream`.
    Nats(Box<nats_broker::Config>),
}

/// What is done about a broker before the first message goes out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StartUp {
    pub(crate) topology: Declare,
    /// Subjects of dangerous findings with which it starts all the same.
    pub(crate) accept: Vec<String>,
}

/// What is done about the topology at start-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Declare {
    /// Nothing.
    Off,
    /// It is compared; what is missing or differs ends the process.
    #[default]
    Check,
    /// What is missing is made.
    Apply,
}

/// The keys of the embedded broker.
pub(super) const EMBEDDED: &[Key] = &[
    Key::unset(
        "path",
        Kind::Text,
        "\"/var/lib/relevo/broker.db\"",
        "The SQLite file. Required. The broker creates it if it does not exist.",
    ),
    NETWORK_FILE_SYSTEM,
];

pub(super) const TOPOLOGY: Key = Key::new(
    "topology",
    Kind::Choice(&["off", "check", "apply"]),
    "\"check\"",
    "What `relevo run` does about the sections below before the first message goes out: nothing; compare, and not start if \
     anything is missing or differs; or make what is missing. What differs is never changed.",
);

pub(super) const ACCEPT: Key = Key::new(
    "accept",
    Kind::Texts,
    "[]",
    "Subjects of dangers that `relevo doctor` finds, such as `overflow-drops`, with which `relevo run` starts all the same.",
);

pub(super) const LANES: Key = Key::unset(
    "lanes",
    Kind::Integer { min: 1, max: 256 },
    "8",
    "Appends the lane of the message's key, a number below this, to the address as a last word: `orders` is sent as \
     `orders.3`. Consumers have the same number, and order per key with several of them. Without it nothing is appended.",
);

/// The broker of a destination; `None` if that cannot be said.
pub(super) fn resolve(reader: &mut Reader<'_>, path: &Path, publish_deadline: Duration) -> Option<(Broker, StartUp)> {
    let path = path.name("broker");
    let Some(kind) = reader.find_text(&path.name("kind")) else {
        if !reader.settings.is_given(&path.name("kind")) {
            let problem = Problem::new(format!("`{path}` has no `kind`"));
            reader.problem(&path, problem.hint(format!("one of `{}`", BROKERS.join("`, `"))));
        }
        return None;
    };
    foreign(reader, &path, &kind);
    let broker = match kind.as_str() {
        "rabbitmq" => Broker::Rabbitmq(Box::new(rabbitmq::resolve(reader, &path, publish_deadline)?)),
        "nats" => Broker::Nats(Box::new(nats::resolve(reader, &path, publish_deadline)?)),
        _ => embedded(reader, &path)?,
    };
    let topology = match reader.text(&path.name("topology")).as_str() {
        "off" => Declare::Off,
        "apply" => Declare::Apply,
        _ => Declare::Check,
    };
    Some((broker, StartUp { topology, accept: reader.texts(&path.name("accept")) }))
}

fn embedded(reader: &mut Reader<'_>, path: &Path) -> Option<Broker> {
    let Some(file) = reader.find_text(&path.name("path")) else {
        let problem = Problem::new(format!("`{path}` has no `path`"));
        reader.problem(path, problem.hint("the SQLite file of the embedded broker"));
        return None;
    };
    let allow_network_file_system = reader.boolean(&path.name(NETWORK_FILE_SYSTEM.name));
    Some(Broker::Embedded { path: file.into(), allow_network_file_system })
}

/// Tells what broker and routes, each good alone, cannot have together. `path` is the destination's.
pub(super) fn suits(reader: &mut Reader<'_>, path: &Path, broker: &Broker, routes: &Routes) {
    let theirs = |name: &str| match broker {
        Broker::Embedded { .. } => None,
        Broker::Rabbitmq(_) => ["cc", "bcc"]
            .contains(&name.to_ascii_lowercase().as_str())
            .then_some("RabbitMQ sends copies to whoever it names"),
        Broker::Nats(_) => {
            name.to_ascii_lowercase().starts_with("nats-").then_some("the server takes it for an instruction")
        }
    };
    for (index, route) in routes.iter().enumerate() {
        let at = path.name("routes").index(index);
        let added = route.headers.add.keys().map(|name| ("headers", name));
        for (key, name) in added.chain(route.headers.rename.values().map(|name| ("rename_headers", name))) {
            if let Some(why) = theirs(name) {
                reader.problem(&at.name(key), Problem::new(format!("the header `{name}` cannot be sent: {why}")));
            }
        }
    }
    let templates: Vec<String> = routes.iter().map(Route::address_template).collect();
    match broker {
        Broker::Embedded { .. } => {}
        Broker::Rabbitmq(config) => lanes::of_queues(reader, &path.name("broker"), config, &templates),
        Broker::Nats(config) => lanes::of_groups(reader, &path.name("broker"), config, &templates),
    }
}

/// Tells keys and sections that only other kinds have.
fn foreign(reader: &mut Reader<'_>, broker: &Path, kind: &str) {
    let knows = |of: Option<&str>| of.is_none_or(|of| of == kind);
    let mut told = Vec::new();
    for at in reader.settings.headings_under(broker) {
        let of: Vec<_> = SECTIONS.iter().filter(|it| it.path == pattern_of(&at)).map(|it| it.of).collect();
        if !of.is_empty() && !of.iter().copied().any(knows) {
            told.push((at, of));
        }
    }
    for at in reader.settings.set_under(broker) {
        let Some((section, name)) = at.split_last() else { continue };
        if told.iter().any(|(heading, _)| *heading == section) {
            continue;
        }
        let pattern = pattern_of(&section);
        let sections = SECTIONS.iter().filter(|it| it.path == pattern && it.keys.iter().any(|key| key.name == name));
        let of: Vec<_> = sections.map(|it| it.of).collect();
        if !of.is_empty() && !of.iter().copied().any(knows) {
            told.push((at, of));
        }
    }
    for (at, of) in told {
        let others: Vec<&str> = of.into_iter().flatten().collect();
        let others = others.join("` and `");
        reader
            .problem(&at, Problem::new(format!("`{at}` is for brokers of kind `{others}`, and this one is `{kind}`")));
    }
}

/// The URLs of a broker's servers, which may hold a password and so are not shown when they are wrong.
fn urls(reader: &mut Reader<'_>, path: &Path, schemes: &[&str]) -> Option<Vec<String>> {
    let keys = ["urls", "urls_file", "urls_env"].map(|key| path.name(key));
    let given: Vec<&Path> = keys.iter().filter(|key| reader.settings.is_given(key)).collect();
    let hint = format!("`{}host:port`", schemes[0]);
    let at = match given.as_slice() {
        [] => {
            let problem = Problem::new(format!("`{path}` names no server"));
            reader.problem(path, problem.hint(format!("set `urls`, `urls_file` or `urls_env`, as {hint}")));
            return None;
        }
        [at] => (*at).clone(),
        [_, second, ..] => {
            let at = (*second).clone();
            reader.problem(&at, Problem::new("more than one of `urls`, `urls_file` and `urls_env` is set"));
            return None;
        }
    };
    let urls: Vec<String> = if let Some(Setting { value: Value::Secrets(urls), .. }) = reader.settings.get(&keys[0]) {
        urls.iter().map(|url| url.reveal().to_owned()).collect()
    } else {
        // One of a wrong type has been told.
        let all = reader.secret(&keys[1], &keys[2])?;
        let each = all.reveal().split(|c: char| c == ',' || c.is_whitespace()).filter(|url| !url.is_empty());
        each.map(str::to_owned).collect()
    };
    if urls.is_empty() {
        reader.problem(&at, Problem::new("there is no URL").hint(hint));
        return None;
    }
    if !urls.iter().all(|url| schemes.iter().any(|scheme| url.starts_with(scheme))) {
        let schemes = schemes.join("` and `");
        reader.problem(&at, Problem::new(format!("a URL begins with none of `{schemes}`")).hint(hint));
        return None;
    }
    Some(urls)
}

/// A secret from `NAME_file` or `NAME_env`, if either is set.
fn secret(reader: &mut Reader<'_>, path: &Path, name: &str) -> Option<String> {
    let (file, variable) = (path.name(&format!("{name}_file")), path.name(&format!("{name}_env")));
    if reader.settings.is_given(&file) && reader.settings.is_given(&variable) {
        reader.problem(&variable, Problem::new(format!("`{name}_file` and `{name}_env` are both set")));
        return None;
    }
    reader.secret(&file, &variable).map(|secret: Secret| secret.reveal().to_owned())
}

/// What the files of `tls_ca_file`, and of `tls_cert_file` with `tls_key_file`, hold.
struct Certificates {
    ca: Option<String>,
    /// The certificate and its key.
    identity: Option<(String, String)>,
}

fn certificates(reader: &mut Reader<'_>, path: &Path) -> Certificates {
    let (cert, key) = (path.name("tls_cert_file"), path.name("tls_key_file"));
    for (one, other) in [(&cert, &key), (&key, &cert)] {
        if reader.settings.is_given(one) && !reader.settings.is_given(other) {
            let problem = Problem::new("a certificate and its key go together");
            reader.problem(one, problem.hint("set both `tls_cert_file` and `tls_key_file`"));
        }
    }
    let ca = reader.file(&path.name("tls_ca_file"));
    let identity = reader.file(&cert).zip(reader.file(&key));
    Certificates { ca, identity }
}

/// What a thing of the topology is called at the broker: what `name` says, or else its section.
fn named(reader: &Reader<'_>, section: &Path, name: &str) -> String {
    reader.find_text(&section.name("name")).unwrap_or_else(|| name.to_owned())
}

/// The answer must be known before the relay gives it up.
fn shorter(reader: &mut Reader<'_>, path: &Path, key: &str, publish_deadline: Duration) -> Duration {
    let at = path.name(key);
    let deadline = reader.millis(&at);
    if deadline >= publish_deadline {
        let at = if reader.is_set(&at) { at } else { path.clone() };
        let what = format!("`{key}` is not shorter than the relay's `publish_deadline_ms`: the reason would be lost");
        reader.problem(&at, Problem::new(what));
    }
    deadline
}

#[cfg(test)]
mod tests;
