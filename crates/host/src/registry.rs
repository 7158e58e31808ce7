//! The adapters of this build.

use std::sync::Arc;

use relevo_config::{Configured, KeyPath, Problem, Reader, Section, reference};
use relevo_core::adapter::{AdapterConfig, BrokerAdapter};
use relevo_core::finding::Severity;
use relevo_core::host_scope::PLAIN_TEXT;
use relevo_core::store_adapter::StoreKind;
pub use relevo_core::store_adapter::{StoreAdapter, StoreConfig, StoreConfigError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The kinds of brokers, one line per adapter.
pub static BROKERS: &[BrokerKind] = &[
    #[cfg(feature = "embedded")]
    BrokerKind::of::<relevo_broker_embedded::Config>(),
    #[cfg(feature = "rabbitmq")]
    BrokerKind::of::<relevo_broker_rabbitmq::Config>(),
    #[cfg(feature = "nats")]
    BrokerKind::of::<relevo_broker_nats::Config>(),
];

/// One kind of broker.
pub struct BrokerKind {
    /// Its name in configurations and metrics.
    pub name: &'static str,
    /// The keys of a small section that delivers, in TOML.
    pub example: &'static str,
    read: fn(&mut Reader, &KeyPath) -> Option<Arc<dyn BrokerAdapter>>,
    schema: fn() -> Value,
}

impl BrokerKind {
    const fn of<C: AdapterConfig + Configured>() -> Self {
        Self { name: C::KIND, example: C::EXAMPLE, read: read::<C>, schema: C::schema }
    }
}

fn read<C: AdapterConfig + Configured>(reader: &mut Reader, at: &KeyPath) -> Option<Arc<dyn BrokerAdapter>> {
    let config = C::read(reader, at)?;
    config.adapter().map_err(|failure| reader.error(at, &failure.error_chain())).ok()
}

/// The kinds of stores, one line per adapter.
pub const STORES: &[StoreKind] = &[
    #[cfg(feature = "postgres")]
    relevo_store_postgres::STORE,
    #[cfg(feature = "sqlite")]
    relevo_store_sqlite::STORE,
];

/// Finds the adapter of a database by the scheme of its URL. It opens nothing.
pub fn store(config: &StoreConfig) -> Result<Arc<dyn StoreAdapter>, StoreConfigError> {
    let scheme = config.url.split_once(':').map(|(scheme, _)| scheme);
    let kind = STORES.iter().find(|kind| scheme.is_some_and(|scheme| kind.schemes.contains(&scheme)));
    let Some(kind) = kind else {
        let examples: Vec<_> = STORES.iter().map(|kind| format!("`{}`", kind.example_url)).collect();
        return Err(StoreConfigError::url("the database URL has an unknown scheme", examples.join(" or ")));
    };
    (kind.configure)(config)
}

/// The broker of a destination, as configured.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// The broker.
    pub adapter: Arc<dyn BrokerAdapter>,
    /// What to do about its topology at start-up.
    pub topology_on_start: TopologyMode,
    /// The subjects of dangerous findings that do not prevent the start.
    pub accept: Vec<String>,
}

/// The key that decides which other keys a broker has.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct KindSection {
    /// The kind of broker. Each kind has keys of its own.
    kind: String,
}

/// The other keys of every kind of broker.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct BrokerSection {
    /// What `relevo run` does about the topology before it publishes: nothing; compare, and refuse to start if an object is
    /// missing or different; or create missing objects. A different object always prevents the start and is never changed.
    topology_on_start: TopologyMode,
    /// Subjects of dangers that `relevo doctor` finds, such as `overflow-drops`, which do not prevent the start.
    accept: Vec<String>,
}

impl Section for KindSection {}

impl Section for BrokerSection {}

impl BrokerConfig {
    /// Reads the broker's table. `None` after a problem.
    pub fn read(reader: &mut Reader, at: &KeyPath) -> Option<Self> {
        let names = || BROKERS.iter().map(|kind| kind.name);
        let known = format!("`{}`", names().collect::<Vec<_>>().join("`, `"));
        if !reader.is_set(&at.name("kind")) {
            reader.problem(at, Problem::new(format!("`{at}` has no `kind`")).hint(format!("one of {known}")));
            reader.ignore(at);
            return None;
        }
        let Some(KindSection { kind }) = reader.read(at) else {
            reader.ignore(at);
            return None;
        };
        let Some(found) = BROKERS.iter().find(|known| known.name == kind) else {
            let problem = Problem::new(format!("`kind` must be one of {known}"));
            reader.problem(&at.name("kind"), problem.nearest(&kind, names()));
            reader.ignore(at);
            return None;
        };
        let section = reader.read::<BrokerSection>(at);
        let adapter = (found.read)(reader, at)?;
        let BrokerSection { topology_on_start, accept } = section?;
        check_transports(reader, at, &*adapter, &accept);
        Some(Self { adapter, topology_on_start, accept })
    }

    /// The schema of the table: one alternative for each kind.
    pub fn schema() -> Value {
        let common = reference::merge(reference::schema_of::<KindSection>(), &reference::schema_of::<BrokerSection>());
        let kinds = BROKERS.iter().map(|kind| {
            let own = (kind.schema)();
            let description = own["description"].clone();
            let mut schema = reference::merge(common.clone(), &own);
            schema["properties"]["kind"]["const"] = kind.name.into();
            schema["title"] = kind.name.into();
            schema["description"] = description;
            schema
        });
        json!({ "description": "The broker of the destination.", "oneOf": kinds.collect::<Vec<_>>() })
    }
}

/// Reports connections without encryption: to a public host, unless that is accepted, and as a warning to a private one.
fn check_transports(reader: &mut Reader, at: &KeyPath, adapter: &dyn BrokerAdapter, accept: &[String]) {
    for transport in adapter.transports() {
        let key = reader.set_key(&at.name(transport.key));
        let problem = Problem::new(&*transport.problem);
        match transport.severity() {
            Severity::Ok | Severity::Note => {}
            Severity::Warning => reader.warning(&key, problem.hint(transport.fix)),
            Severity::Danger if accept.iter().any(|subject| subject == PLAIN_TEXT) => {}
            Severity::Danger => {
                let hint = format!("{}; `accept = [\"{PLAIN_TEXT}\"]` in `{at}` accepts it", transport.fix);
                reader.problem(&key, problem.hint(hint));
            }
        }
    }
}

relevo_core::text_enum! {
    /// What to do about the topology of a broker at start-up.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum TopologyMode {
        /// Nothing.
        Off = "off",
        /// Compare it. A missing or different object prevents the start.
        Check = "check",
        /// Create missing objects. A different object prevents the start.
        #[default]
        Apply = "apply",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_of_a_url_selects_the_store() {
        let location = |url: &str| store(&StoreConfig::from_url(url)).expect("a known scheme").location();
        assert_eq!(location("postgres://me@db/shop"), "db:5432/shop");
        assert_eq!(location("postgresql://me@db/shop"), "db:5432/shop");
        assert_eq!(location("sqlite:shop.db"), "shop.db");
    }

    #[test]
    fn an_unknown_scheme_is_reported_without_the_url() {
        for url in ["sesame", "mysql://me:sesame@db/shop", "postgres"] {
            let error = store(&StoreConfig::from_url(url)).expect_err("an unknown scheme");
            assert_eq!(error.reason, "the database URL has an unknown scheme");
            assert!(!error.to_string().contains("sesame"), "{error}");
        }
    }
}
