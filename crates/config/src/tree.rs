//! The merged tree: values with their origins.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::path::{KeyPath, Step};

/// Where a value was set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// In a file.
    File {
        /// The name of the file.
        file: Arc<str>,
        /// The line, from 1.
        line: usize,
    },
    /// By this variable.
    Variable(String),
    /// By this flag.
    Flag(String),
    /// Nowhere.
    Default,
}

impl Origin {
    /// The word for it in JSON.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::File { .. } => "file",
            Self::Variable(_) => "variable",
            Self::Flag(_) => "flag",
            Self::Default => "default",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line } => write!(f, "{file}:{line}"),
            Self::Variable(name) => write!(f, "variable `{name}`"),
            Self::Flag(flag) => write!(f, "flag `{flag}`"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A value and its origin. It has no `Debug`, because it may be a secret.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) origin: Origin,
    pub(crate) value: Value,
}

pub(crate) type Table = BTreeMap<String, Node>;

#[derive(Clone)]
pub(crate) enum Value {
    Text(String),
    Integer(i64),
    Float(String),
    Boolean(bool),
    List(Vec<Node>),
    Table(Table),
    /// The text of a variable or a flag, which is parsed as the type that reads it.
    Raw(String),
    /// A value that no key accepts, such as a date.
    Other,
}

impl Node {
    pub(crate) const fn empty_table(origin: Origin) -> Self {
        Self { origin, value: Value::Table(Table::new()) }
    }

    pub(crate) const fn table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    pub(crate) fn get(&self, path: &KeyPath) -> Option<&Self> {
        path.0.iter().try_fold(self, |node, step| match (step, &node.value) {
            (Step::Name(name), Value::Table(table)) => table.get(name),
            (Step::Index(index), Value::List(items)) => items.get(*index),
            _ => None,
        })
    }

    /// The origin of the key, or of the innermost table around it that exists.
    pub(crate) fn origin_of(&self, path: &KeyPath) -> Origin {
        let mut path = path.clone();
        loop {
            if let Some(node) = self.get(&path) {
                return node.origin.clone();
            }
            path.0.pop();
        }
    }

    /// Sets what `other` sets, table by table.
    pub(crate) fn overlay(&mut self, other: &Self) {
        match (&mut self.value, &other.value) {
            (Value::Table(below), Value::Table(above)) => {
                for (name, node) in above {
                    match below.get_mut(name) {
                        Some(existing) => existing.overlay(node),
                        None => drop(below.insert(name.clone(), node.clone())),
                    }
                }
            }
            _ => *self = other.clone(),
        }
    }
}
