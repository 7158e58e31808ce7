//! The configuration of `relevo run`: its own sections, and the checks across sections.

mod command;
mod load;
mod process;
mod schema;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use relevo_config::{Checks, DurationText, KeyPath, Problem, Reader, Secret, Section};
use relevo_core::outbox::admin::StartFrom;
use relevo_core::{Route, Routes};
use relevo_host::registry::{self, BrokerConfig, StoreAdapter, StoreConfig};
use relevo_relay::RouteSection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use command::Command;
pub(crate) use load::{FILE, Loaded, Problems, Sources, report_problems, warn};
pub(crate) use process::{Admin, Log};
pub(crate) use relevo_config::is_name;
pub(crate) use relevo_host::DestinationConfig as Destination;

/// Everything that `relevo run` needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The label `service` of every metric.
    pub(crate) service: String,
    /// The owner of leases, for operators.
    pub(crate) name: String,
    pub(crate) log: Log,
    pub(crate) admin: Admin,
    /// `None` exports no spans.
    pub(crate) traces: Option<relevo_observe::traces::Config>,
    /// By name.
    pub(crate) outboxes: Vec<Outbox>,
}

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

/// An outbox: one schema of a PostgreSQL database, or one SQLite file.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct OutboxSection {
    /// The database: `postgres://user:password@host:port/name` or `sqlite:PATH`. It is never printed.
    #[schemars(extend("x-required" = true, "examples" = ["postgres://relevo@localhost/shop"]))]
    database: Option<Secret>,
    /// The PostgreSQL schema of the outbox. The default is `relevo`.
    #[schemars(extend("examples" = ["relevo"]))]
    schema: Option<String>,
    /// The time limit of a call of the relay to PostgreSQL. It must be shorter than the lease.
    #[serde(with = "DurationText")]
    call_timeout: Duration,
    /// Accepts a SQLite file on a network file system, such as NFS, SMB or FUSE. SQLite's locks do not work across
    /// machines: a file that two machines use becomes corrupt.
    allow_network_file_system: bool,
}

impl Default for OutboxSection {
    fn default() -> Self {
        Self { database: None, schema: None, call_timeout: Duration::from_secs(5), allow_network_file_system: false }
    }
}

impl Section for OutboxSection {
    fn validate(&self, checks: &mut Checks<'_>) {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if let Some(schema) = &self.schema
            && (!(1..=63).contains(&schema.len()) || !schema.bytes().all(is_valid))
        {
            let problem = Problem::new("`schema` is not the name of a schema");
            checks.report("schema", problem.hint("a schema name has 1 to 63 ASCII letters, digits, `_` and `-`"));
        }
        if self.call_timeout.is_zero() {
            checks.report("call_timeout", Problem::new("`call_timeout` must be longer than 0s"));
        }
    }
}

/// A destination of the outbox, with its own progress. One relay serves each.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct DestinationSection {
    /// Adds the destination at start-up if the outbox does not have it. Otherwise a missing one is an error.
    create: bool,
    /// The number of shards of a destination that is added, from 1 to 256. An existing one is not changed.
    shards: u16,
    /// Where a destination that is added starts: at the oldest retained message, or at the first message that commits from
    /// now on.
    start: Start,
}

/// Where a destination starts.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Start {
    Oldest,
    Now,
}

impl Default for DestinationSection {
    fn default() -> Self {
        Self { create: true, shards: 8, start: Start::Oldest }
    }
}

impl Section for DestinationSection {
    fn validate(&self, checks: &mut Checks<'_>) {
        checks.range("shards", self.shards, 1, 256);
    }
}

impl Config {
    /// Reads all sections. `None` after a problem.
    pub(super) fn read(reader: &mut Reader) -> Option<Self> {
        let process = process::read(reader);
        // Problems of `[relay]` are reported once, not for every destination.
        reader.read::<relevo_relay::Config>(&relay_path());
        let outboxes = outboxes(reader);
        let (service, name, log, admin, traces) = process?;
        Some(Self { service, name, log, admin, traces, outboxes })
    }

    /// The number of outboxes, and the number of destinations of all of them.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.outboxes.len(), self.outboxes.iter().map(|outbox| outbox.destinations.len()).sum())
    }
}

fn relay_path() -> KeyPath {
    KeyPath::of(&["relay"])
}

fn outboxes(reader: &mut Reader) -> Vec<Outbox> {
    let at = KeyPath::of(&["outboxes"]);
    let before = reader.problem_count();
    let tables = reader.tables(&at);
    if tables.is_empty() && reader.problem_count() == before {
        let hint = "add `[outboxes.NAME]`; `relevo init` writes a file with one";
        reader.problem(&at, Problem::new("no outbox is configured").hint(hint));
    }
    let outboxes: Vec<Outbox> = tables.into_iter().filter_map(|(name, at)| outbox(reader, &at, name)).collect();
    check_unique(reader, &outboxes);
    outboxes
}

fn outbox(reader: &mut Reader, at: &KeyPath, name: String) -> Option<Outbox> {
    let section = reader.read::<OutboxSection>(at);
    let store = section.as_ref().and_then(|section| store(reader, at, section));
    let all = at.name("destinations");
    let before = reader.problem_count();
    let tables = reader.tables(&all);
    if tables.is_empty() && reader.problem_count() == before {
        let problem = Problem::new(format!("outbox `{name}` has no destination"));
        reader.problem(at, problem.hint(format!("add `[{all}.NAME]`")));
    }
    let call_timeout = section.as_ref().map_or(Duration::ZERO, |section| section.call_timeout);
    let destination = |(name, at): (String, KeyPath)| destination(reader, &at, name, call_timeout);
    let destinations = tables.into_iter().filter_map(destination).collect();
    let (store_config, store) = store?;
    Some(Outbox { name, store_config, store, destinations })
}

fn store(reader: &mut Reader, at: &KeyPath, section: &OutboxSection) -> Option<(StoreConfig, Arc<dyn StoreAdapter>)> {
    let Some(url) = &section.database else {
        let problem = Problem::new(format!("`{at}` has no `database`"));
        reader.problem(at, problem.hint("set `database`, `database_file` or `database_env`"));
        return None;
    };
    let config = StoreConfig {
        url: url.reveal().to_owned(),
        schema: section.schema.clone(),
        call_timeout: Some(section.call_timeout),
        allow_network_file_system: section.allow_network_file_system,
    };
    match registry::store(&config) {
        Ok(store) => Some((config, store)),
        Err(error) => {
            let keys: &[&str] =
                if error.field == "schema" { &["schema"] } else { &["database", "database_file", "database_env"] };
            let key = keys.iter().map(|key| at.name(key)).find(|key| reader.is_set(key));
            let problem = Problem::new(error.reason).hint(error.hint);
            reader.problem(&key.unwrap_or_else(|| at.clone()), problem);
            None
        }
    }
}

fn destination(reader: &mut Reader, at: &KeyPath, name: String, call_timeout: Duration) -> Option<Destination> {
    let section = reader.read::<DestinationSection>(at);
    let relay = reader.read_over::<relevo_relay::Config>(&relay_path(), &at.name("relay"));
    let (routes, broker) =
        (reader.list::<RouteSection>(&at.name("routes")), BrokerConfig::read(reader, &at.name("broker")));
    check_route_names(reader, &routes);
    let (mut relay, broker) = (relay?, broker?);
    relay.routes = if routes.is_empty() {
        let default = Route::catch_all();
        let address = broker.adapter.default_address().unwrap_or_else(|| default.address.clone());
        Routes::new(vec![Route { address, ..default }])
    } else {
        Routes::new(routes.into_iter().map(|(_, route)| route.into()).collect())
    };
    check_limits(reader, at, &relay, &broker, call_timeout);
    check_headers(reader, at, &relay.routes, &broker);
    check_lanes(reader, &at.name("broker"), &relay.routes, &broker);
    let DestinationSection { create, shards, start } = section?;
    let start = match start {
        Start::Oldest => StartFrom::Oldest,
        Start::Now => StartFrom::Now,
    };
    Some(Destination { name, create, shards, start, broker, relay })
}

fn check_limits(
    reader: &mut Reader,
    at: &KeyPath,
    relay: &relevo_relay::Config,
    broker: &BrokerConfig,
    call_timeout: Duration,
) {
    if call_timeout >= relay.lease_duration {
        let own = at.name("relay.lease_duration");
        let key = if reader.is_set(&own) { own } else { relay_path().name("lease_duration") };
        let problem = Problem::new("`lease_duration` must be longer than the outbox's `call_timeout`");
        reader.problem(&key, problem);
    }
    if broker.adapter.confirm_timeout().is_some_and(|limit| limit >= relay.publish_timeout) {
        let reason =
            "`confirm_timeout` must be shorter than the relay's `publish_timeout`, which would hide the reason";
        reader.problem(&at.name("broker.confirm_timeout"), Problem::new(reason));
    }
}

fn check_route_names(reader: &mut Reader, routes: &[(KeyPath, RouteSection)]) {
    for (index, (at, route)) in routes.iter().enumerate() {
        if routes[..index].iter().any(|(_, other)| other.name == route.name) {
            let problem = Problem::new(format!("two routes of one destination are named `{}`", route.name));
            reader.problem(&at.name("name"), problem.hint("give each route its own `name`"));
        }
    }
}

/// Reports header changes that this broker does not allow.
fn check_headers(reader: &mut Reader, at: &KeyPath, routes: &Routes, broker: &BrokerConfig) {
    for (index, route) in routes.iter().enumerate() {
        let at = at.name("routes").index(index);
        let added = route.headers.add.keys().map(|name| ("headers", name));
        for (key, name) in added.chain(route.headers.rename.values().map(|name| ("rename_headers", name))) {
            if let Some(why) = broker.adapter.reserved_header(name) {
                reader.problem(&at.name(key), Problem::new(format!("the header `{name}` cannot be sent: {why}")));
            }
        }
    }
}

/// Reports queues and groups with other lanes than the messages that they would receive.
fn check_lanes(reader: &mut Reader, broker_at: &KeyPath, routes: &Routes, broker: &BrokerConfig) {
    let addresses: Vec<String> = routes.iter().map(Route::address_template).collect();
    for mismatch in broker.adapter.check_lanes(&addresses) {
        let object = mismatch.object;
        let (_, at) = reader.tables(&broker_at.name(&format!("{object}s"))).swap_remove(mismatch.index);
        let lanes =
            |lanes: Option<u16>| lanes.map_or_else(|| "no lanes".to_owned(), |lanes| format!("`lanes = {lanes}`"));
        let (own, published) = (lanes(mismatch.lanes), lanes(mismatch.published_lanes));
        let problem = Problem::new(format!("`{at}` has {own}, and messages for that {object} have {published}"));
        let hint = format!("set the same number in `{broker_at}` and here, or in neither");
        reader.problem(&at.name("lanes"), problem.hint(hint));
    }
}

/// Two relays of one process would compete for the leases of one destination.
fn check_unique(reader: &mut Reader, outboxes: &[Outbox]) {
    let mut seen = BTreeMap::new();
    for outbox in outboxes {
        for destination in &outbox.destinations {
            let name = destination.name.as_str();
            let Some(other) = seen.insert((outbox.store.identity(), name), &outbox.name) else { continue };
            let reason = format!(
                "outboxes `{other}` and `{}` are the same database and schema, and both have destination `{name}`",
                outbox.name
            );
            let at = KeyPath::of(&["outboxes", &outbox.name, "destinations", name]);
            reader.problem(&at, Problem::new(reason).hint("one relay serves a destination: remove one of them"));
        }
    }
}

#[cfg(test)]
mod tests;
