//! Brokers, as the program uses them: which kind knows which keys, and what they have in common.

pub(super) mod embedded;
mod lanes;
pub(super) mod nats;
pub(super) mod rabbitmq;

use std::sync::Arc;
use std::time::Duration;

use relevo_core::{AdapterConfig, BrokerAdapter, Route, Routes};
use relevo_host::registry::{BROKERS, BrokerConfig, TopologyMode};

use super::keys::{Key, Kind, SECTIONS};
use super::problem::Problem;
use super::resolved::Reader;
use super::secret::Secret;
use super::settings::{Path, Setting, pattern_of};
use super::value::Value;

/// Reads the section of one kind of broker.
type Parser = fn(&mut Reader<'_>, &Path, Duration) -> Option<Arc<dyn BrokerAdapter>>;

/// One line per adapter. After this table, only [`BrokerAdapter`] is known.
const PARSERS: [(&str, Parser); 3] = [
    (relevo_broker_embedded::Config::KIND, embedded::resolve),
    (relevo_broker_rabbitmq::Config::KIND, rabbitmq::resolve),
    (relevo_broker_nats::Config::KIND, nats::resolve),
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
pub(super) fn resolve(reader: &mut Reader<'_>, path: &Path, publish_deadline: Duration) -> Option<BrokerConfig> {
    let path = path.name("broker");
    let Some(kind) = reader.find_text(&path.name("kind")) else {
        if !reader.settings.is_given(&path.name("kind")) {
            let problem = Problem::new(format!("`{path}` has no `kind`"));
            reader.problem(&path, problem.hint(format!("one of `{}`", BROKERS.join("`, `"))));
        }
        return None;
    };
    foreign(reader, &path, &kind);
    let (_, parse) = PARSERS.iter().find(|(known, _)| *known == kind)?;
    let adapter = parse(reader, &path, publish_deadline)?;
    let topology = TopologyMode::parse(&reader.text(&path.name("topology"))).unwrap_or_default();
    Some(BrokerConfig { adapter, topology, accept: reader.texts(&path.name("accept")) })
}

/// The broker of a section that was read, if its settings are valid.
fn adapter(reader: &mut Reader<'_>, path: &Path, config: impl AdapterConfig) -> Option<Arc<dyn BrokerAdapter>> {
    config.adapter().map_err(|failure| reader.problem(path, Problem::new(failure.error_chain()))).ok()
}

/// Reports settings of broker and routes that are valid alone, but not together. `path` is the destination's.
pub(super) fn suits(reader: &mut Reader<'_>, path: &Path, broker: &dyn BrokerAdapter, routes: &Routes) {
    for (index, route) in routes.iter().enumerate() {
        let at = path.name("routes").index(index);
        let added = route.headers.add.keys().map(|name| ("headers", name));
        for (key, name) in added.chain(route.headers.rename.values().map(|name| ("rename_headers", name))) {
            if let Some(why) = broker.reserved_header(name) {
                reader.problem(&at.name(key), Problem::new(format!("the header `{name}` cannot be sent: {why}")));
            }
        }
    }
    let addresses: Vec<String> = routes.iter().map(Route::address_template).collect();
    for mismatch in broker.check_lanes(&addresses) {
        lanes::report(reader, &path.name("broker"), &mismatch);
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
