//! Called by operators and at start-up: the configured topology, and the settings that guarantees depend on.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::failure::Failure;
use crate::finding::Finding;

/// One object that the configuration expects at the broker: an exchange, queue, binding, policy, stream or consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyItem {
    /// Its kind and name, such as ``queue `billing` ``.
    pub name: String,
    /// Its state at the broker.
    pub status: TopologyStatus,
}

impl TopologyItem {
    /// Whether the object is as configured, as far as it could be compared.
    pub const fn is_in_place(&self) -> bool {
        match self.status {
            TopologyStatus::Unchanged | TopologyStatus::Created | TopologyStatus::Unknown => true,
            TopologyStatus::Missing | TopologyStatus::Different(_) => false,
        }
    }
}

/// The state of one topology object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopologyStatus {
    /// It exists with the expected settings.
    Unchanged,
    /// It does not exist.
    Missing,
    /// It did not exist and was created.
    Created,
    /// It could not be read or compared, so it may be missing or different. The name of the object contains the reason.
    Unknown,
    /// It exists with different settings. Relevo neither changes nor deletes it; an operator must decide.
    Different(Vec<Difference>),
}

/// One setting that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The broker's name of the setting.
    pub setting: String,
    /// The configured value.
    pub expected: String,
    /// The broker's value.
    pub actual: String,
}

impl Difference {
    /// Compares one setting. `None` if the values are equal.
    pub fn between<T: PartialEq + ToString + ?Sized>(setting: &str, expected: &T, actual: &T) -> Option<Self> {
        (expected != actual).then(|| Self {
            setting: setting.to_owned(),
            expected: expected.to_string(),
            actual: actual.to_string(),
        })
    }
}

impl From<Vec<Difference>> for TopologyStatus {
    /// The state of an object that exists.
    fn from(differences: Vec<Difference>) -> Self {
        if differences.is_empty() { Self::Unchanged } else { Self::Different(differences) }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is {}, wanted {}", self.setting, self.actual, self.expected)
    }
}

/// The configuration that the broker's settings are compared with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExamineContext {
    /// The addresses of the routes, as [`Route::address_template`](crate::Route::address_template) returns them.
    /// `{topic}`, `{type}` and `{key}` match any text.
    pub addresses: Vec<String>,
    /// The longest time after which a sent message may be sent again, not counting broker outages.
    pub resend_window: Duration,
}

/// Operator access to a broker. The daemon also calls it at start-up, before it publishes anything.
#[async_trait]
pub trait BrokerAdmin: Send + Sync {
    /// Compares the configured topology with the broker's, in creation order. Changes nothing.
    async fn plan(&self) -> Result<Vec<TopologyItem>, Failure>;

    /// Creates missing objects. Never changes or deletes existing objects. If any object differs, creates nothing at
    /// all. Concurrent calls are safe.
    async fn apply(&self) -> Result<Vec<TopologyItem>, Failure>;

    /// Checks the settings that the guarantees depend on. Returns every check, passed or failed. The configuration can
    /// accept a finding by its subject.
    async fn examine(&self, expectations: &ExamineContext) -> Result<Vec<Finding>, Failure>;
}
