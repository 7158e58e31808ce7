//! Fields of a body or a query. All invalid fields are reported at once.

use std::str::FromStr;

use axum::http::StatusCode;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::problem::{Invalid, Problem};
use crate::domain::UnknownWord;
use crate::domain::fields::Fault;

/// Fields that are being read. Errors are collected until all fields were checked.
pub(super) struct Fields {
    map: Map<String, Value>,
    refusal: StatusCode,
    errors: Vec<Invalid>,
}

impl Fields {
    pub(super) fn new(map: Map<String, Value>, refusal: StatusCode) -> Self {
        Self { map, refusal, errors: Vec::new() }
    }

    /// Required text.
    pub(super) fn text(&mut self, name: &str, check: impl Fn(&str) -> Result<(), Fault>) -> Option<String> {
        self.needed(name, |value| checked(value, &check))
    }

    /// Optional text.
    pub(super) fn maybe_text(&mut self, name: &str, check: impl Fn(&str) -> Result<(), Fault>) -> Option<String> {
        self.maybe(name, |value| checked(value, &check))
    }

    /// A required word of an enumeration.
    pub(super) fn word<T: FromStr<Err = UnknownWord>>(&mut self, name: &str) -> Option<T> {
        self.needed(name, word)
    }

    /// An optional word of an enumeration.
    pub(super) fn maybe_word<T: FromStr<Err = UnknownWord>>(&mut self, name: &str) -> Option<T> {
        self.maybe(name, word)
    }

    /// An optional id.
    pub(super) fn maybe_id(&mut self, name: &str) -> Option<Uuid> {
        self.maybe(name, id)
    }

    /// A required id, or null.
    #[expect(clippy::option_option, reason = "one for what was read, one for what it says")]
    pub(super) fn id_or_null(&mut self, name: &str) -> Option<Option<Uuid>> {
        self.needed(name, |value| if value.is_null() { Ok(None) } else { id(value).map(Some) })
    }

    /// A whole number in a query.
    pub(super) fn maybe_number(&mut self, name: &str, min: i64, max: i64) -> Option<i64> {
        self.maybe(name, |value| {
            let number = value.as_str().and_then(|text| text.parse().ok());
            let wrong = || Fault::new("malformed", format!("must be a whole number from {min} to {max}"));
            number.filter(|number| (min..=max).contains(number)).ok_or_else(wrong)
        })
    }

    /// The value, if all fields are valid.
    pub(super) fn done<T>(mut self, value: Option<T>) -> Result<T, Problem> {
        for name in self.map.keys() {
            self.errors.push(Invalid::new(name, Fault::new("unknown", "is no field of this request")));
        }
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            _ => Err(Problem::invalid(self.refusal, self.errors)),
        }
    }

    pub(super) fn refuse(&mut self, name: &str, fault: Fault) {
        self.errors.push(Invalid::new(name, fault));
    }

    fn needed<T>(&mut self, name: &str, read: impl Fn(&Value) -> Result<T, Fault>) -> Option<T> {
        if !self.map.contains_key(name) {
            self.refuse(name, Fault::new("missing", "must be there"));
        }
        self.maybe(name, read)
    }

    fn maybe<T>(&mut self, name: &str, read: impl Fn(&Value) -> Result<T, Fault>) -> Option<T> {
        let value = self.map.remove(name)?;
        read(&value).map_err(|fault| self.refuse(name, fault)).ok()
    }
}

fn checked(value: &Value, check: impl Fn(&str) -> Result<(), Fault>) -> Result<String, Fault> {
    let text = text(value)?;
    check(text)?;
    Ok(text.to_owned())
}

fn word<T: FromStr<Err = UnknownWord>>(value: &Value) -> Result<T, Fault> {
    text(value)?.parse().map_err(|error: UnknownWord| Fault::new("unknown", error.to_string()))
}

fn id(value: &Value) -> Result<Uuid, Fault> {
    text(value)?.parse().map_err(|_| Fault::new("malformed", "must be an id"))
}

fn text(value: &Value) -> Result<&str, Fault> {
    value.as_str().ok_or_else(|| Fault::new("malformed", "must be text"))
}
