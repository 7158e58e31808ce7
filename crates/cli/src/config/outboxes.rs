//! Outboxes and destinations, as the program uses them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use relevo_core::Route;
use relevo_core::broker::admin::ExamineContext;
use relevo_core::outbox::admin::StartFrom;
use relevo_host::registry::{self, BrokerConfig, StoreAdapter, StoreConfig};

use super::broker;
use super::keys::NETWORK_FILE_SYSTEM;
use super::overlay::plain;
use super::problem::Problem;
use super::resolved::Reader;
use super::routes;
use super::secret::{Secret, shown};
use super::settings::{Path, Setting};
use super::tuning::{TUNING, apply};
use super::value::Value;

/// One outbox.
#[derive(Clone, Debug)]
pub(crate) struct Outbox {
    pub(crate) name: String,
    /// The database as configured.
    pub(crate) store_config: StoreConfig,
    /// The database. Nothing is open yet.
    pub(crate) store: Arc<dyn StoreAdapter>,
    /// By name.
    pub(crate) destinations: Vec<Destination>,
}

/// Whom an outbox is carried to.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    pub(crate) name: String,
    /// Whether it is added if the outbox does not know it.
    pub(crate) create: bool,
    pub(crate) shards: u16,
    pub(crate) start: StartFrom,
    pub(crate) broker: BrokerConfig,
    pub(crate) relay: relevo_relay::Config,
}

impl Destination {
    /// What the broker's settings are compared with.
    pub(crate) fn expectations(&self) -> ExamineContext {
        let relay = &self.relay;
        // A message whose answer was lost goes again at once, later alone, and at last once a quarantine; one that was
        // confirmed and not settled goes again when another relay has taken over. Outages of either side last as they last.
        let lost = relay.publish_timeout * relay.lost_confirms_max;
        let taken_over = lost + relay.settle_interval_max + relay.lease_duration + relay.lease_renew_interval;
        ExamineContext {
            addresses: relay.routes.iter().map(Route::address_template).collect(),
            resend_window: relay.publish_timeout + relay.quarantine_probe_interval.max(taken_over),
        }
    }
}

pub(super) fn resolve(reader: &mut Reader<'_>) -> Vec<Outbox> {
    let all = Path::of(&["outboxes"]);
    let names = reader.settings.names(&all);
    if names.is_empty() {
        let problem = Problem::new("no outbox is configured");
        reader.problems.push(problem.hint("add `[outboxes.NAME]`; `relevo.example.toml` documents every key"));
    }
    for (keys, what) in contradictions(&everywhere(reader), Duration::ZERO) {
        let at = keys.iter().map(|key| Path::of(&["relay", key])).find(|at| reader.is_set(at));
        reader.problem(&at.unwrap_or_default(), Problem::new(what));
    }
    same_variables(reader, &all, &names);
    let outboxes: Vec<Outbox> = names.into_iter().filter_map(|name| outbox(reader, &all.name(&name), name)).collect();
    carried_twice(reader, &outboxes);
    outboxes
}

/// Names that only differ where variables do not.
fn same_variables(reader: &mut Reader<'_>, section: &Path, names: &[String]) {
    let mut seen = BTreeMap::new();
    for name in names {
        if let Some(other) = seen.insert(plain(name), name) {
            let problem = Problem::new(format!("`{other}` and `{name}` would be set by the same variables"));
            reader.problem(&section.name(name), problem.hint("variables have neither lower case nor `-`: rename one"));
        }
    }
}

/// Two relays of one process would fight for the leases of one destination.
fn carried_twice(reader: &mut Reader<'_>, outboxes: &[Outbox]) {
    let mut seen = BTreeMap::new();
    for outbox in outboxes {
        for destination in &outbox.destinations {
            let name = destination.name.as_str();
            let Some(other) = seen.insert((outbox.store.identity(), name), &outbox.name) else { continue };
            let what = format!(
                "outboxes `{other}` and `{}` are the same database and schema, and both are carried to `{name}`",
                outbox.name
            );
            let at = Path::of(&["outboxes", &outbox.name, "destinations", name]);
            reader.problem(&at, Problem::new(what).hint("one relay carries an outbox to a destination: remove one"));
        }
    }
}

fn outbox(reader: &mut Reader<'_>, path: &Path, name: String) -> Option<Outbox> {
    let call_deadline = reader.millis(&path.name("call_deadline_ms"));
    let store = store(reader, path, call_deadline);
    let all = path.name("destinations");
    let names = reader.settings.names(&all);
    if names.is_empty() {
        let problem = Problem::new(format!("outbox `{name}` has no destination"));
        reader.problem(path, problem.hint(format!("add `[{all}.NAME]`")));
    }
    same_variables(reader, &all, &names);
    let mut destinations = Vec::new();
    for name in names {
        destinations.extend(destination(reader, &all.name(&name), name, call_deadline));
    }
    let (store_config, store) = store?;
    Some(Outbox { name, store_config, store, destinations })
}

fn store(reader: &mut Reader<'_>, path: &Path, call_timeout: Duration) -> Option<(StoreConfig, Arc<dyn StoreAdapter>)> {
    let (url, schema) = (database_url(reader, path), schema(reader, path));
    let (at, url) = url?;
    let allow_network_file_system = reader.boolean(&path.name(NETWORK_FILE_SYSTEM.name));
    let config = StoreConfig {
        url: url.reveal().to_owned(),
        schema: schema.ok()?,
        call_timeout: Some(call_timeout),
        allow_network_file_system,
    };
    let store = registry::store(&config).map_err(|error| {
        let at = if error.field == "schema" { path.name("schema") } else { at };
        reader.problem(&at, Problem::new(error.reason).hint(error.hint));
    });
    Some((config, store.ok()?))
}

/// The schema, if the configuration names one. The error is reported.
fn schema(reader: &mut Reader<'_>, path: &Path) -> Result<Option<String>, ()> {
    let at = path.name("schema");
    let Some(schema) = reader.find_text(&at).filter(|_| reader.is_set(&at)) else { return Ok(None) };
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if (1..=63).contains(&schema.len()) && schema.bytes().all(known) {
        return Ok(Some(schema));
    }
    let problem = Problem::new(format!("`{}` cannot name a schema", shown(&schema)));
    reader.problem(&at, problem.hint("a schema's name has 1 to 63 ASCII letters, digits, `_` and `-`"));
    Err(())
}

/// The URL, and the key that names it.
fn database_url(reader: &mut Reader<'_>, path: &Path) -> Option<(Path, Secret)> {
    let keys = ["database", "database_file", "database_env"].map(|key| path.name(key));
    let set: Vec<&Path> = keys.iter().filter(|key| reader.settings.is_given(key)).collect();
    let at = match set.as_slice() {
        [] => {
            let problem = Problem::new(format!("`{path}` names no database"));
            reader.problem(path, problem.hint("set `database`, `database_file` or `database_env`"));
            return None;
        }
        [at] => (*at).clone(),
        [_, second, ..] => {
            let problem = Problem::new("more than one of `database`, `database_file` and `database_env` is set");
            reader.problem(second, problem);
            return None;
        }
    };
    let url = match reader.settings.get(&keys[0]) {
        Some(Setting { value: Value::Secret(url), .. }) => url.clone(),
        // One of a wrong type has been told.
        _ => reader.secret(&keys[1], &keys[2])?,
    };
    Some((at, url))
}

fn destination(reader: &mut Reader<'_>, path: &Path, name: String, call_deadline: Duration) -> Option<Destination> {
    let mut relay = tuning(reader, path, call_deadline);
    let broker = broker::resolve(reader, path, relay.publish_timeout);
    relay.routes = routes::resolve(reader, &path.name("routes"));
    // The reader has reported any other text.
    let start = StartFrom::parse(&reader.text(&path.name("start"))).unwrap_or(StartFrom::Now);
    let broker = broker?;
    broker::suits(reader, path, &*broker.adapter, &relay.routes);
    Some(Destination {
        name,
        create: reader.boolean(&path.name("create")),
        shards: reader.integer(&path.name("shards")),
        start,
        broker,
        relay,
    })
}

/// The numbers of `[relay]`, then those of the destination; and whether they fit together.
fn tuning(reader: &mut Reader<'_>, path: &Path, call_deadline: Duration) -> relevo_relay::Config {
    let mut relay = everywhere(reader);
    let told = contradictions(&relay, Duration::ZERO);
    let here = path.name("relay");
    for key in TUNING {
        if let Some(value) = reader.find_integer(&here.name(key.name)) {
            apply(&mut relay, key.name, value);
        }
    }
    // What `[relay]` says wrong was told once, not for every destination.
    for (keys, what) in contradictions(&relay, call_deadline).into_iter().filter(|it| !told.contains(it)) {
        let at = keys.iter().map(|key| here.name(key)).find(|at| reader.is_set(at));
        reader.problem(&at.unwrap_or_else(|| path.clone()), Problem::new(what));
    }
    relay
}

fn everywhere(reader: &Reader<'_>) -> relevo_relay::Config {
    let section = Path::of(&["relay"]);
    let mut relay = relevo_relay::Config::default();
    for key in TUNING {
        if let Some(value) = reader.find_integer(&section.name(key.name)) {
            apply(&mut relay, key.name, value);
        }
    }
    relay
}

/// Keys whose numbers contradict each other.
type Contradiction = (&'static [&'static str], &'static str);

/// What contradicts what, and why.
fn contradictions(relay: &relevo_relay::Config, call_deadline: Duration) -> Vec<Contradiction> {
    let rules: [(bool, &[&str], &str); 6] = [
        (
            relay.publish_timeout + relay.lease_margin < relay.lease_duration,
            &["publish_deadline_ms", "lease_margin_ms", "lease_ms"],
            "`lease_ms` is not longer than `publish_deadline_ms` and `lease_margin_ms` together: a message could go \
             out after another relay took over",
        ),
        (
            call_deadline < relay.lease_duration,
            &["lease_ms"],
            "`lease_ms` is not longer than the outbox's `call_deadline_ms`",
        ),
        (
            3 * relay.lease_renew_interval <= relay.lease_duration,
            &["lease_every_ms", "lease_ms"],
            "`lease_every_ms` is more than a third of `lease_ms`: one slow answer would lose the leases",
        ),
        (
            relay.poll_interval_min <= relay.poll_interval_max,
            &["idle_max_ms", "idle_min_ms"],
            "`idle_max_ms` is less than `idle_min_ms`",
        ),
        (
            relay.outage_backoff_min <= relay.outage_backoff_max,
            &["outage_max_ms", "outage_min_ms"],
            "`outage_max_ms` is less than `outage_min_ms`",
        ),
        (
            relay.batch_messages_max <= relay.in_flight_messages_max,
            &["in_flight_max", "batch_max"],
            "`in_flight_max` is less than `batch_max`",
        ),
    ];
    rules.into_iter().filter(|(holds, ..)| !holds).map(|(_, keys, what)| (keys, what)).collect()
}
