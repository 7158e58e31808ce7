//! What a type needs so that it can be read from a configuration.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::path::KeyPath;
use crate::problem::Problem;
use crate::reader::{Reader, alternatives};
use crate::tree::{Node, Origin};

/// A table of a configuration. Types, defaults and descriptions come from the derives.
///
/// The deserializer needs the names of all fields, so that `#[serde(flatten)]` and tagged enums are not possible.
pub trait Section: DeserializeOwned + Serialize + JsonSchema {
    /// Reports values that are valid alone, but not together, or not in this range.
    fn validate(&self, _checks: &mut Checks<'_>) {}
}

/// Collects the problems that [`Section::validate`] finds.
pub struct Checks<'a> {
    pub(crate) node: &'a Node,
    pub(crate) problems: &'a mut Vec<Problem>,
}

impl Checks<'_> {
    /// Reports a problem of a key, which may have dots.
    pub fn report(&mut self, key: &str, problem: Problem) {
        let origin = self.origin(key);
        self.problems.push(problem.at(origin));
    }

    /// Reports a problem of several keys, at the first of them that is set.
    pub fn report_any(&mut self, keys: &[&str], problem: Problem) {
        let set = keys.iter().find(|key| self.is_set(key)).copied();
        let origin = set.map_or_else(|| self.node.origin.clone(), |key| self.origin(key));
        self.problems.push(problem.at(origin));
    }

    /// Reports a number outside of a range.
    pub fn range<T: PartialOrd + Copy + std::fmt::Display>(&mut self, key: &str, number: T, min: T, max: T) {
        if number < min || number > max {
            let name = key.rsplit('.').next().unwrap_or(key);
            self.report(key, Problem::new(format!("`{name}` must be from {min} to {max}, is {number}")));
        }
    }

    /// Whether a key is set, rather than left at its default.
    pub fn is_set(&self, key: &str) -> bool {
        alternatives(&KeyPath::default().name(key)).iter().any(|key| self.node.get(key).is_some())
    }

    fn origin(&self, key: &str) -> Origin {
        let key = KeyPath::default().name(key);
        let set = alternatives(&key).into_iter().find(|key| self.node.get(key).is_some());
        self.node.origin_of(&set.unwrap_or(key))
    }
}

/// The configuration of one table, which may consist of several sections.
pub trait Configured: Sized {
    /// Reads it. `None` after a problem.
    fn read(reader: &mut Reader, at: &KeyPath) -> Option<Self>;

    /// The schema of the table.
    fn schema() -> serde_json::Value;
}
