//! The response bodies of the probes.

use serde::Serialize;

/// The response to a probe. It is successful only if all checks are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthReport {
    /// Whether all checks succeeded.
    pub ok: bool,
    /// The individual checks. Omitted if a token is configured and the caller did not send it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<HealthCheck>,
    /// The dependencies of the checked relays. Omitted in the same case as `checks`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<DependencyCheck>,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthCheck {
    /// The outbox of a relay. Omitted for a consumer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub outbox: String,
    /// The destination of a relay. Omitted for a consumer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub destination: String,
    /// The name of a consumer. Omitted for a relay.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub consumer: String,
    /// Whether the check succeeded.
    pub ok: bool,
    /// The finding, for people.
    pub detail: String,
}

impl HealthCheck {
    /// A check of a relay, identified by its outbox and destination.
    pub fn relay(outbox: &str, destination: &str, ok: bool, detail: String) -> Self {
        let (outbox, destination) = (outbox.to_owned(), destination.to_owned());
        Self { outbox, destination, consumer: String::new(), ok, detail }
    }

    /// A check of a consumer, identified by its name.
    pub fn consumer(consumer: &str, ok: bool, detail: String) -> Self {
        Self { outbox: String::new(), destination: String::new(), consumer: consumer.to_owned(), ok, detail }
    }
}

/// One dependency of a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DependencyCheck {
    /// The outbox.
    pub outbox: String,
    /// Its destination.
    pub destination: String,
    /// The dependency: `database`, `schema`, `broker`.
    pub name: &'static str,
    /// Whether the dependency works.
    pub ok: bool,
    /// Whether the result of the probe depends on it.
    pub required: bool,
    /// The finding, for people.
    pub detail: String,
}

impl HealthReport {
    /// Creates a report. It is successful if all checks are.
    pub fn of(checks: Vec<HealthCheck>) -> Self {
        Self { ok: checks.iter().all(|check| check.ok), checks, dependencies: Vec::new() }
    }

    /// The same report, with the dependencies of the relays.
    #[must_use]
    pub fn with_dependencies(self, dependencies: Vec<DependencyCheck>) -> Self {
        Self { dependencies, ..self }
    }

    /// The same report without details.
    pub(crate) fn without_details(self) -> Self {
        Self { checks: Vec::new(), dependencies: Vec::new(), ..self }
    }

    /// Marks the report as successful, because it has succeeded before.
    pub(crate) fn mark_started(mut self) -> Self {
        for check in self.checks.iter_mut().filter(|check| !check.ok) {
            (check.ok, check.detail) = (true, "started".to_owned());
        }
        Self { ok: true, dependencies: Vec::new(), ..self }
    }
}
