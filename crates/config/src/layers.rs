//! The sources of a configuration, merged into one tree.

use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::path::{KeyPath, variable_word};
use crate::problem::Problem;
use crate::reader::Reader;
use crate::tree::{Node, Origin, Table, Value};

/// The sources, from the weakest to the strongest. Each call replaces what earlier ones set.
pub struct Layers {
    root: Node,
    problems: Vec<Problem>,
}

impl Default for Layers {
    fn default() -> Self {
        Self { root: Node::empty_table(Origin::Default), problems: Vec::new() }
    }
}

impl Layers {
    /// Adds the text of a TOML file. `name` appears in errors. All syntax errors are reported, and then no value of the
    /// file is used.
    pub fn file(&mut self, name: &str, text: &str) {
        let file = File { name: name.into(), text };
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            // The error's own excerpt of the line could contain a secret.
            let place = file.origin(error.span().map_or(0, |span| span.start));
            self.problems.push(Problem::new(error.message().trim_end()).at(place));
        }
        if errors.is_empty() {
            self.root.overlay(&Node { origin: Origin::Default, value: Value::Table(file.table(table.get_ref())) });
        }
    }

    /// Adds the variables that begin with `prefix`: two underscores separate the names of a key's path.
    pub fn variables(&mut self, prefix: &str, variables: impl IntoIterator<Item = (String, String)>) {
        for (name, text) in variables {
            let Some(words) = name.strip_prefix(prefix).map(str::to_ascii_lowercase) else { continue };
            self.set(&words.split("__").collect::<Vec<_>>(), &text, Origin::Variable(name));
        }
    }

    /// Adds an assignment such as `outboxes.shop.schema=billing`.
    pub fn flag(&mut self, flag: &str, assignment: &str) {
        let origin = Origin::Flag(flag.to_owned());
        if let Some((path, text)) = assignment.split_once('=') {
            self.set(&path.trim().split('.').collect::<Vec<_>>(), text, origin);
        } else {
            let problem = Problem::new("the assignment has no `=`").at(origin);
            self.problems.push(problem.hint(format!("`{flag} log.level=debug`")));
        }
    }

    /// Sets one key. A name matches an existing one if both are the same in a variable's name.
    pub fn set(&mut self, words: &[&str], text: &str, origin: Origin) {
        let (mut node, mut path) = (&mut self.root, KeyPath::default());
        let Some((last, tables)) = words.split_last() else { return };
        for word in tables {
            let table = match inside(node, &path) {
                Ok(table) => table,
                Err(problem) => return self.problems.push(problem.at(origin)),
            };
            let name = existing(table, word);
            path = path.key(&name);
            node = table.entry(name).or_insert_with(|| Node::empty_table(origin.clone()));
        }
        match inside(node, &path) {
            Ok(table) => {
                let node = Node { origin, value: Value::Raw(text.to_owned()) };
                table.insert(existing(table, last), node);
            }
            Err(problem) => self.problems.push(problem.at(origin)),
        }
    }

    /// Reads the merged tree.
    pub fn reader(self) -> Reader {
        Reader::new(self.root, self.problems)
    }
}

fn inside<'a>(node: &'a mut Node, path: &KeyPath) -> Result<&'a mut Table, Problem> {
    match &mut node.value {
        Value::Table(table) => Ok(table),
        Value::List(_) => Err(Problem::new(format!("`{path}` can be set in the file only"))),
        _ => Err(Problem::new(format!("`{path}` is not a table"))),
    }
}

fn existing(table: &Table, word: &str) -> String {
    let found = table.keys().find(|name| variable_word(name) == variable_word(word));
    found.cloned().unwrap_or_else(|| word.to_owned())
}

struct File<'a> {
    name: Arc<str>,
    text: &'a str,
}

impl File<'_> {
    fn origin(&self, offset: usize) -> Origin {
        let line = self.text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1;
        Origin::File { file: Arc::clone(&self.name), line }
    }

    fn table(&self, table: &DeTable<'_>) -> Table {
        let entries = table.iter().map(|(key, value)| {
            let origin = self.origin(key.span().start);
            (key.get_ref().as_ref().to_owned(), Node { origin, value: self.value(value) })
        });
        entries.collect()
    }

    fn value(&self, value: &Spanned<DeValue<'_>>) -> Value {
        match value.get_ref() {
            DeValue::String(text) => Value::Text(text.as_ref().to_owned()),
            DeValue::Boolean(yes) => Value::Boolean(*yes),
            DeValue::Float(number) => Value::Float(number.as_str().to_owned()),
            DeValue::Integer(number) => {
                i64::from_str_radix(number.as_str(), number.radix()).map_or(Value::Other, Value::Integer)
            }
            DeValue::Datetime(_) => Value::Other,
            DeValue::Table(table) => Value::Table(self.table(table)),
            DeValue::Array(items) => {
                let item = |item: &Spanned<DeValue<'_>>| Node {
                    origin: self.origin(item.span().start),
                    value: self.value(item),
                };
                Value::List(items.iter().map(item).collect())
            }
        }
    }
}
