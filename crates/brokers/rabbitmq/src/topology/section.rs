//! The topology as it is written in a configuration: the tables `exchanges`, `queues` and `policies` of a broker.

use relevo_config::{KeyPath, Problem, Reader, Section, reference};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Binding, BindingTarget, Exchange, Policy, Queue, Topology, dead_letter_queue_name};

impl Section for Exchange {}

impl Section for Queue {}

impl Section for Policy {}

/// The bindings of one exchange or queue.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Bindings {
    /// The exchanges and routing keys whose messages it receives, as `exchange/routing.key`. At a topic exchange, `*` and
    /// `#` stand for words.
    #[schemars(extend("examples" = [["shop/orders.#"]]))]
    bind: Vec<String>,
}

impl Section for Bindings {}

impl Topology {
    pub(crate) fn read(reader: &mut Reader, at: &KeyPath) -> Option<Self> {
        let before = reader.problem_count();
        let mut topology = Self::default();
        for (name, at) in reader.tables(&at.name("exchanges")) {
            let (exchange, bindings) = (reader.read::<Exchange>(&at), reader.read::<Bindings>(&at));
            let Some((mut exchange, bindings)) = exchange.zip(bindings) else { continue };
            exchange.name = named(exchange.name, name);
            topology.bind(reader, &at, bindings, &BindingTarget::Exchange(exchange.name.clone()));
            topology.exchanges.push(exchange);
        }
        for (name, at) in reader.tables(&at.name("queues")) {
            let (queue, bindings) = (reader.read::<Queue>(&at), reader.read::<Bindings>(&at));
            let Some((mut queue, bindings)) = queue.zip(bindings) else { continue };
            queue.name = named(queue.name, name);
            if queue.dead_letter_queue.as_deref() == Some("") {
                queue.dead_letter_queue = Some(dead_letter_queue_name(&queue.name));
            }
            if let Err(error) = queue.validate() {
                reader.error(&at, &error.to_string());
            }
            topology.bind(reader, &at, bindings, &BindingTarget::Queue(queue.name.clone()));
            topology.queues.push(queue);
        }
        for (name, at) in reader.tables(&at.name("policies")) {
            let Some(mut policy) = reader.read::<Policy>(&at) else { continue };
            policy.name = named(policy.name, name);
            if policy.pattern.is_empty() {
                reader.problem(&at, Problem::new(format!("`{at}` has no `pattern`")));
            }
            topology.policies.push(policy);
        }
        (reader.problem_count() == before).then_some(topology)
    }

    fn bind(&mut self, reader: &mut Reader, at: &KeyPath, bindings: Bindings, to: &BindingTarget) {
        for text in bindings.bind {
            if let Some((exchange, key)) = text.split_once('/').filter(|(exchange, _)| !exchange.is_empty()) {
                self.bindings.push(Binding { exchange: exchange.to_owned(), to: to.clone(), key: key.to_owned() });
            } else {
                let problem = Problem::new("`bind` has a part without an exchange");
                let hint = "`exchange/routing.key`; with nothing after the `/` if the exchange ignores the key";
                reader.problem(&at.name("bind"), problem.hint(hint));
            }
        }
    }

    /// Adds these tables to the schema of a broker.
    pub(crate) fn add_schema(schema: Value) -> Value {
        let bindings = reference::schema_of::<Bindings>();
        let with_bindings = |table: Value| reference::merge(table, &bindings);
        let exchanges = with_bindings(reference::schema_of::<Exchange>());
        let queues = with_bindings(reference::schema_of::<Queue>());
        let tables = [
            ("exchanges", "A durable exchange that is created if it is missing.", exchanges),
            (
                "queues",
                "A durable queue that is created if it is missing, with its lanes, retry queues and dead-letter queue.",
                queues,
            ),
            (
                "policies",
                "A policy that is created if it is missing. It needs `management_url`.",
                reference::schema_of::<Policy>(),
            ),
        ];
        let tables = tables.map(|(name, about, table)| (name, reference::named(about, table)));
        tables.into_iter().fold(schema, |schema, (name, table)| reference::with(schema, name, table))
    }
}

fn named(name: String, table: String) -> String {
    if name.is_empty() { table } else { name }
}

/// The form of a dead-letter queue: a name, `true` for the default name, or `false` for none.
pub(super) mod dead_letter_queue {
    use std::fmt;

    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(crate) fn serialize<S: Serializer>(queue: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
        match queue.as_deref() {
            None => serializer.serialize_bool(false),
            Some("") => serializer.serialize_bool(true),
            Some(name) => serializer.serialize_str(name),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
        struct Queue;
        impl Visitor<'_> for Queue {
            type Value = Option<String>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a queue, or `false`")
            }

            fn visit_bool<E: Error>(self, has_queue: bool) -> Result<Option<String>, E> {
                Ok(has_queue.then(String::new))
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Option<String>, E> {
                Ok(match name {
                    "false" => None,
                    "true" => Some(String::new()),
                    name => Some(name.to_owned()),
                })
            }
        }
        deserializer.deserialize_any(Queue)
    }
}
