//! The configuration as the program uses it, checked as a whole.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tracing_subscriber::filter::Targets;

use super::outboxes::{self, Outbox};
use super::problem::Problem;
use super::secret::{self, Secret};
use super::settings::{Origin, Path, Setting, Settings};
use super::traces;
use super::value::Value;

/// A token that can be guessed is none.
const TOKEN_MIN: usize = 16;

/// Everything that `relevo run` needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The label `service` of every metric.
    pub(crate) service: String,
    /// What people see as the owner of a lease.
    pub(crate) name: String,
    pub(crate) log: Log,
    pub(crate) admin: Admin,
    /// `None` tells no spans.
    pub(crate) traces: Option<relevo_observe::traces::Config>,
    /// By name.
    pub(crate) outboxes: Vec<Outbox>,
}

#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) level: Targets,
    pub(crate) format: Format,
}

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Text on a terminal, JSON otherwise.
    Auto,
    Text,
    Json,
}

#[derive(Clone, Debug)]
pub(crate) struct Admin {
    /// `None` opens no port.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) token: Option<Secret>,
    pub(crate) backlog_every: Duration,
    /// An outage makes it unready.
    pub(crate) ready_needs_broker: bool,
}

impl Config {
    /// From settings whose defaults are filled in; whatever is wrong is added to `problems`, and then this is not to be
    /// used.
    pub(crate) fn resolve(settings: &Settings, problems: &mut Vec<Problem>) -> Self {
        let mut reader = Reader { settings, problems };
        let outboxes = outboxes::resolve(&mut reader);
        let service = reader.text(&Path::of(&["service"]));
        Self {
            traces: traces::resolve(&mut reader, &service),
            service,
            name: reader.find_text(&Path::of(&["name"])).unwrap_or_else(own_name),
            log: log(&mut reader),
            admin: admin(&mut reader),
            outboxes,
        }
    }
}

impl Config {
    /// How many outboxes, and how many destinations of all of them.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.outboxes.len(), self.outboxes.iter().map(|outbox| outbox.destinations.len()).sum())
    }
}

/// Reads settings that were checked one by one, and collects what is wrong with them together.
pub(super) struct Reader<'a> {
    pub(super) settings: &'a Settings,
    pub(super) problems: &'a mut Vec<Problem>,
}

impl Reader<'_> {
    pub(super) fn problem(&mut self, at: &Path, problem: Problem) {
        let origin = self.settings.get(at).map_or_else(|| self.settings.origin(at), |it| it.origin.clone());
        // What nobody wrote has no place.
        self.problems.push(if origin == Origin::Default { problem } else { problem.at(origin) });
    }

    /// Whether somebody set it, rather than the table.
    pub(super) fn is_set(&self, path: &Path) -> bool {
        self.settings.get(path).is_some_and(|setting| setting.origin != Origin::Default)
    }

    pub(super) fn find_text(&self, path: &Path) -> Option<String> {
        match self.settings.get(path) {
            Some(Setting { value: Value::Text(text), .. }) => Some(text.clone()),
            _ => None,
        }
    }

    /// A text with a default; empty only if it was wrong, which has been told then.
    pub(super) fn text(&self, path: &Path) -> String {
        self.find_text(path).unwrap_or_default()
    }

    pub(super) fn find_integer(&self, path: &Path) -> Option<i64> {
        match self.settings.get(path) {
            Some(Setting { value: Value::Integer(number), .. }) => Some(*number),
            _ => None,
        }
    }

    /// A number with a default.
    pub(super) fn integer<T: TryFrom<i64> + Default>(&self, path: &Path) -> T {
        self.find_integer(path).and_then(|number| number.try_into().ok()).unwrap_or_default()
    }

    /// A number without a default.
    pub(super) fn find_number<T: TryFrom<i64>>(&self, path: &Path) -> Option<T> {
        self.find_integer(path).and_then(|number| number.try_into().ok())
    }

    pub(super) fn integers<T: TryFrom<i64>>(&self, path: &Path) -> Vec<T> {
        match self.settings.get(path) {
            Some(Setting { value: Value::Integers(numbers), .. }) => {
                numbers.iter().filter_map(|number| (*number).try_into().ok()).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn texts(&self, path: &Path) -> Vec<String> {
        match self.settings.get(path) {
            Some(Setting { value: Value::Texts(texts), .. }) => texts.clone(),
            _ => Vec::new(),
        }
    }

    pub(super) fn find_secret(&self, path: &Path) -> Option<Secret> {
        match self.settings.get(path) {
            Some(Setting { value: Value::Secret(secret), .. }) => Some(secret.clone()),
            _ => None,
        }
    }

    pub(super) fn millis(&self, path: &Path) -> Duration {
        Duration::from_millis(self.integer(path))
    }

    /// Texts by name; empty where nothing is set.
    pub(super) fn pairs(&self, path: &Path) -> BTreeMap<String, String> {
        let Some(Setting { value: Value::Pairs(pairs), .. }) = self.settings.get(path) else { return BTreeMap::new() };
        pairs.iter().filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
    }

    /// Texts, numbers and booleans by name.
    pub(super) fn scalars(&self, path: &Path) -> BTreeMap<String, serde_json::Value> {
        match self.settings.get(path) {
            Some(Setting { value: Value::Pairs(pairs), .. }) => pairs.clone(),
            _ => BTreeMap::new(),
        }
    }

    /// The sections under one that is there, by name.
    pub(super) fn sections(&self, of: &Path) -> Vec<(String, Path)> {
        self.settings.names(of).into_iter().map(|name| (name.clone(), of.name(&name))).collect()
    }

    pub(super) fn boolean(&self, path: &Path) -> bool {
        matches!(self.settings.get(path), Some(Setting { value: Value::Boolean(true), .. }))
    }

    /// What a file holds that a key names, if it is set.
    pub(super) fn file(&mut self, at: &Path) -> Option<String> {
        let name = self.find_text(at)?;
        of_file(&name, at).map_err(|problem| self.problem(at, problem)).ok()
    }

    /// A secret that a file or a variable holds.
    pub(super) fn secret(&mut self, file: &Path, variable: &Path) -> Option<Secret> {
        let (at, text) = if let Some(name) = self.find_text(file) {
            (file, of_file(&name, file))
        } else if let Some(name) = self.find_text(variable) {
            (variable, of_variable(&name, variable))
        } else {
            return None;
        };
        let text = text.and_then(|text| match text.trim() {
            "" => Err(Problem::new(format!("what `{at}` names is empty"))),
            text => Ok(text.to_owned()),
        });
        text.map(Secret::new).map_err(|problem| self.problem(at, problem)).ok()
    }
}

/// What a file holds. The secret itself is easily written in the name's place, and then it is not shown.
fn of_file(name: &str, key: &Path) -> Result<String, Problem> {
    if name.contains("://") {
        return Err(Problem::new(format!("what `{key}` says is no path")).hint(instead(key, "a path")));
    }
    std::fs::read_to_string(name)
        .map_err(|error| Problem::new(format!("`{}` cannot be read: {error}", secret::shown(name))))
}

/// What a variable holds, with the same care.
fn of_variable(name: &str, key: &Path) -> Result<String, Problem> {
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if !is_name {
        let problem = Problem::new(format!("what `{key}` says is no name of a variable"));
        return Err(problem.hint(instead(key, "the name of a variable")));
    }
    std::env::var(name).map_err(|_| {
        // A token may look like a name, but hardly like one in capitals.
        let in_capitals = !name.bytes().any(|byte| byte.is_ascii_lowercase());
        if in_capitals {
            Problem::new(format!("variable `{name}` is not set"))
        } else {
            Problem::new(format!("the variable that `{key}` names is not set"))
        }
    })
}

/// Where the secret belongs that was perhaps written in place of its name.
fn instead(key: &Path, takes: &str) -> String {
    let key = key.to_string();
    let key = key.rsplit('.').next().unwrap_or_default();
    match key.strip_suffix("_file").or_else(|| key.strip_suffix("_env")) {
        Some(own @ ("database" | "urls" | "management_url")) => {
            format!("`{key}` takes {takes}; the URL itself belongs into `{own}`")
        }
        _ => format!("it takes {takes}, and the secret itself stands in no configuration"),
    }
}

/// Levels, for everything or for one part of the program; a word that is no level would be taken for a part.
fn is_filter(text: &str) -> bool {
    let is_level = |word: &str| {
        let known = ["off", "error", "warn", "info", "debug", "trace"];
        known.iter().any(|level| level.eq_ignore_ascii_case(word.trim()))
    };
    let is_part = |word: &str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':' | b'-');
        !word.is_empty() && word.bytes().all(known)
    };
    text.split(',').all(|directive| match directive.split_once('=') {
        Some((part, level)) => is_part(part.trim()) && is_level(level),
        None => is_level(directive),
    })
}

fn log(reader: &mut Reader<'_>) -> Log {
    let path = Path::of(&["log", "level"]);
    let text = reader.text(&path);
    let level = Some(&text).filter(|text| is_filter(text)).and_then(|text| text.replace(' ', "").parse().ok());
    if level.is_none() {
        let problem = Problem::new(format!("`{}` is no `level` that is known", secret::shown(&text)));
        reader
            .problem(&path, problem.hint("`error`, `warn`, `info`, `debug` or `trace`, or `info,relevo_relay=debug`"));
    }
    let level = level.unwrap_or_default();
    let format = match reader.text(&Path::of(&["log", "format"])).as_str() {
        "text" => Format::Text,
        "json" => Format::Json,
        _ => Format::Auto,
    };
    Log { level, format }
}

fn admin(reader: &mut Reader<'_>) -> Admin {
    let section = Path::of(&["admin"]);
    let (file, variable) = (section.name("token_file"), section.name("token_env"));
    if reader.settings.get(&file).is_some() && reader.settings.get(&variable).is_some() {
        reader.problem(&variable, Problem::new("`token_file` and `token_env` are both set"));
    }
    let named = reader.settings.get(&file).or(reader.settings.get(&variable)).is_some();
    let token = reader.secret(&file, &variable);
    if token.as_ref().is_some_and(|token| token.reveal().len() < TOKEN_MIN) {
        let at = if reader.settings.get(&file).is_some() { file } else { variable };
        reader.problem(&at, Problem::new(format!("the admin token has less than {TOKEN_MIN} characters")));
    }
    let path = section.name("listen");
    let text = reader.text(&path);
    let listen = match text.parse::<SocketAddr>() {
        _ if text == "off" => None,
        Ok(address) => Some(address),
        Err(_) => {
            let problem =
                Problem::new(format!("`listen` is an address and a port, or `off`, not `{}`", secret::shown(&text)));
            reader.problem(&path, problem.hint("`127.0.0.1:9464`"));
            None
        }
    };
    if listen.is_some_and(|address| !address.ip().is_loopback()) && !named {
        let problem = Problem::new(format!("`listen` is `{text}`, which others can reach, and there is no token"));
        reader.problem(&path, problem.hint("listen on `127.0.0.1`, or set `token_file` or `token_env`"));
    }
    let backlog_every = reader.millis(&section.name("backlog_every_ms"));
    Admin { listen, token, backlog_every, ready_needs_broker: reader.boolean(&section.name("ready_needs_broker")) }
}

/// The machine's name and the process id: unique among the relays of an outbox, and of use to people.
fn own_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => "relevo",
        host => host,
    };
    format!("{host}:{}", std::process::id())
}
