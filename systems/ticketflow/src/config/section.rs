//! One table of the file. Known keys are taken out of it, and the rest are reported.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use toml::{Table, Value};

use super::Secret;

/// A table that is being read. Problems are collected, so that all are reported at once.
pub(super) struct Section<'a> {
    name: &'static str,
    table: Table,
    known: Vec<&'static str>,
    environment: &'a dyn Fn(&str) -> Option<String>,
    problems: &'a mut Vec<String>,
}

impl<'a> Section<'a> {
    pub(super) fn new(
        name: &'static str,
        table: Table,
        environment: &'a dyn Fn(&str) -> Option<String>,
        problems: &'a mut Vec<String>,
    ) -> Self {
        Self { name, table, known: Vec::new(), environment, problems }
    }

    /// A nested table, if there is one.
    pub(super) fn table(&mut self, key: &'static str) -> Option<Table> {
        self.take(key, "a table", |value| value.as_table().cloned())
    }

    pub(super) fn text(&mut self, key: &'static str) -> Option<String> {
        self.take(key, "text", |value| value.as_str().map(str::to_owned))
    }

    pub(super) fn flag(&mut self, key: &'static str) -> Option<bool> {
        self.take(key, "`true` or `false`", Value::as_bool)
    }

    /// Text that is parsed.
    pub(super) fn parsed<T: FromStr<Err: Display>>(&mut self, key: &'static str) -> Option<T> {
        let text = self.text(key)?;
        text.parse().map_err(|error| self.problem(key, format!("{error}, is `{text}`"))).ok()
    }

    /// A whole number from `min` to `max`. The environment variable overrides it.
    pub(super) fn number(&mut self, key: &'static str, variable: Option<&str>, min: u64, max: u64) -> Option<u64> {
        let stands = self.take(key, "a whole number", Value::as_integer);
        let (name, number) = match variable.and_then(|name| Some((name, (self.environment)(name)?))) {
            Some((name, text)) => {
                let Ok(number) = text.parse() else {
                    self.problems.push(format!("environment `{name}`: must be a whole number, is `{text}`"));
                    return None;
                };
                (name.to_owned(), number)
            }
            None => (self.path(key), stands?),
        };
        let fits = u64::try_from(number).ok().filter(|number| (min..=max).contains(number));
        if fits.is_none() {
            self.problems.push(format!("`{name}`: must be from {min} to {max}, is {number}"));
        }
        fits
    }

    /// Delays in milliseconds, at least one.
    pub(super) fn waits(&mut self, key: &'static str) -> Option<Vec<Duration>> {
        self.take(key, "a list of milliseconds, each above zero", |value| {
            let waits: Option<Vec<_>> = value
                .as_array()?
                .iter()
                .map(|wait| {
                    let ms = u64::try_from(wait.as_integer()?).ok().filter(|ms| *ms > 0)?;
                    Some(Duration::from_millis(ms))
                })
                .collect();
            waits.filter(|waits| !waits.is_empty())
        })
    }

    /// A URL that may contain a password: under `key`, or in the variable that `key_env` names.
    pub(super) fn secret(&mut self, key: &'static str, key_env: &'static str, schemes: &[&str]) -> Option<Secret> {
        let (value, at) = match (self.text(key), self.text(key_env)) {
            (Some(_), Some(_)) => {
                self.problem(key, format!("stands beside `{key_env}`; hint: keep one of them"));
                return None;
            }
            (Some(value), None) => (value, key),
            (None, Some(variable)) => {
                let Some(value) = (self.environment)(&variable) else {
                    self.problem(key_env, format!("the environment has no `{variable}`"));
                    return None;
                };
                (value, key_env)
            }
            (None, None) => return None,
        };
        if schemes.iter().any(|scheme| value.strip_prefix(scheme).is_some_and(|rest| rest.starts_with("://"))) {
            return Some(Secret::new(value));
        }
        // The value is not shown: it may be a secret.
        self.problem(at, format!("must be a URL that begins with `{}://`", schemes.join("://` or `")));
        None
    }

    /// The same, but required.
    pub(super) fn needed(&mut self, key: &'static str, key_env: &'static str, schemes: &[&str]) -> Option<Secret> {
        let before = self.problems.len();
        let secret = self.secret(key, key_env, schemes);
        if secret.is_none() && self.problems.len() == before {
            let section = self.name;
            self.problem(key_env, format!("is missing; hint: name it, or leave out `[{section}]` to run embedded"));
        }
        secret
    }

    pub(super) fn problem(&mut self, key: &str, what: impl Display) {
        let path = self.path(key);
        self.problems.push(format!("`{path}`: {what}"));
    }

    /// Reports unknown keys.
    pub(super) fn finish(self) {
        for key in self.table.keys() {
            let near = self.known.iter().map(|known| (strsim::damerau_levenshtein(known, key), known));
            let hint = match near.min() {
                Some((distance, known)) if distance <= 2 => format!("hint: did you mean `{known}`?"),
                _ => format!("known here: {}", self.known.join(", ")),
            };
            self.problems.push(format!("`{}`: is not known; {hint}", self.path(key)));
        }
    }

    fn take<T>(&mut self, key: &'static str, what: &str, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        self.known.push(key);
        let value = self.table.remove(key)?;
        let taken = read(&value);
        if taken.is_none() {
            self.problem(key, format!("must be {what}"));
        }
        taken
    }

    fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }
}
