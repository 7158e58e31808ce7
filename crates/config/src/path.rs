//! The position of a value in a configuration.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Name(String),
    Index(usize),
}

/// The position of a value, such as `outboxes.shop.schema`. The empty path is the whole document.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPath(pub(crate) Vec<Step>);

impl KeyPath {
    /// The path with these names.
    pub fn of(names: &[&str]) -> Self {
        Self(names.iter().map(|name| Step::Name((*name).to_owned())).collect())
    }

    /// The path of a key in this table. The key may have dots: `advanced.lease_margin`.
    #[must_use]
    pub fn name(&self, key: &str) -> Self {
        Self(self.0.iter().cloned().chain(key.split('.').map(|name| Step::Name(name.to_owned()))).collect())
    }

    /// The path of a key that is one name, whatever its characters.
    #[must_use]
    pub(crate) fn key(&self, name: &str) -> Self {
        Self(self.0.iter().cloned().chain([Step::Name(name.to_owned())]).collect())
    }

    /// The path of an item of this list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(self.0.iter().cloned().chain([Step::Index(index)]).collect())
    }

    /// The table of this key, and the key's name.
    pub(crate) fn split_last(&self) -> Option<(Self, &str)> {
        match self.0.split_last() {
            Some((Step::Name(name), parent)) => Some((Self(parent.to_vec()), name)),
            _ => None,
        }
    }

    /// The name of the key, or of the list for an item.
    pub(crate) fn last_name(&self) -> Option<&str> {
        self.0.iter().rev().find_map(|step| match step {
            Step::Name(name) => Some(name.as_str()),
            Step::Index(_) => None,
        })
    }

    /// Whether it is inside a list. Variables cannot set such a key.
    pub fn is_in_list(&self) -> bool {
        self.0.iter().any(|step| matches!(step, Step::Index(_)))
    }

    /// The name of the variable that sets this key. `None` inside a list.
    pub fn variable(&self, prefix: &str) -> Option<String> {
        let words = self.0.iter().map(|step| match step {
            Step::Name(name) => Some(variable_word(name).to_ascii_uppercase()),
            Step::Index(_) => None,
        });
        Some(format!("{prefix}{}", words.collect::<Option<Vec<_>>>()?.join("__")))
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Name(name) if at == 0 => f.write_str(name)?,
                Step::Name(name) => write!(f, ".{name}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// A name as it appears in the name of a variable, in lower case.
pub fn variable_word(name: &str) -> String {
    name.to_ascii_lowercase().replace('-', "_")
}

/// Whether a text can name an outbox or a destination: it becomes a metric label and a part of a variable's name.
pub fn is_name(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
        && !text.contains("__")
        && !text.starts_with('_')
        && !text.ends_with('_')
}
