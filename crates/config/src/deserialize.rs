//! A serde deserializer over values with origins. Its errors have a place and never contain a value.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};

use serde::de::value::{StrDeserializer, StringDeserializer};
use serde::de::{self, DeserializeSeed, Expected, IntoDeserializer as _, MapAccess, SeqAccess, Unexpected, Visitor};

use crate::path::KeyPath;
use crate::problem::Problem;
use crate::secret;
use crate::tree::{Node, Origin, Table, Value};

/// What a reader knows of the keys of a table.
#[derive(Default)]
pub(crate) struct TableKeys {
    /// The names that a section can read.
    pub(crate) known: BTreeSet<String>,
    /// The keys of the table that a section has read.
    pub(crate) used: BTreeSet<String>,
}

#[derive(Default)]
pub(crate) struct Context {
    pub(crate) tables: RefCell<BTreeMap<KeyPath, TableKeys>>,
    /// Fields with a reported problem. They are read as if they were not set.
    pub(crate) spoiled: RefCell<BTreeSet<KeyPath>>,
}

impl Context {
    pub(crate) fn know(&self, path: &KeyPath, name: &str) {
        self.tables.borrow_mut().entry(path.clone()).or_default().known.insert(name.to_owned());
    }
}

/// The first problem of a section.
#[derive(Debug)]
pub(crate) enum Error {
    /// A problem of a field. Its path is set by the innermost field around it.
    Field { reason: String, nearest: Option<String>, at: Option<(KeyPath, Origin)> },
    /// A key that this field cannot read. The reader reports all unknown keys.
    UnknownKey { field: KeyPath },
    /// A required field is not set.
    Missing { field: &'static str, at: Option<(KeyPath, Origin)> },
}

impl Error {
    fn new(reason: impl Into<String>) -> Self {
        Self::Field { reason: reason.into(), nearest: None, at: None }
    }

    fn located(mut self, path: &KeyPath, origin: impl FnOnce() -> Origin) -> Self {
        if let Self::Field { at: at @ None, .. } | Self::Missing { at: at @ None, .. } = &mut self {
            *at = Some((path.clone(), origin()));
        }
        self
    }

    /// The problem and the field that is read as not set from then on. `None` if it is reported elsewhere.
    pub(crate) fn into_problem(self) -> (Option<Problem>, Option<KeyPath>) {
        match self {
            Self::UnknownKey { field } => (None, Some(field)),
            Self::Missing { field, at } => {
                let (path, origin) = at.unwrap_or((KeyPath::default(), Origin::Default));
                (Some(Problem::new(format!("`{path}` has no `{field}`")).at(origin)), Some(path.key(field)))
            }
            Self::Field { reason, nearest, at } => {
                let (path, origin) = at.unwrap_or((KeyPath::default(), Origin::Default));
                let key = path.last_name().unwrap_or("the configuration");
                let reason = if reason.starts_with("must ") { format!("`{key}` {reason}") } else { reason };
                let problem = Problem::new(reason).at(origin);
                let problem = match nearest {
                    Some(name) => problem.hint(format!("did you mean `{name}`?")),
                    None => problem,
                };
                (Some(problem), Some(path))
            }
        }
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the section has a problem")
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: Display>(reason: T) -> Self {
        Self::new(reason.to_string())
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!("must be {expected}"))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!("must be {expected}"))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing { field, at: None }
    }
}

/// One value, as a field will read it.
#[derive(Clone)]
enum Source<'a> {
    Node(&'a Node),
    /// The key of a list in the singular: `url` for `urls`.
    Single(&'a str, Box<Source<'a>>),
    /// `X_file` or `X_env` for a secret `X`.
    Reference(&'a str, &'a Node),
    /// A part of a list in one text.
    Part {
        text: String,
        origin: Origin,
        key: Option<&'a str>,
    },
}

#[derive(Clone)]
pub(crate) struct ValueDeserializer<'a> {
    source: Source<'a>,
    path: KeyPath,
    context: &'a Context,
}

impl<'a> ValueDeserializer<'a> {
    pub(crate) const fn new(node: &'a Node, path: KeyPath, context: &'a Context) -> Self {
        Self { source: Source::Node(node), path, context }
    }

    fn origin(&self) -> Origin {
        fn of(source: &Source<'_>) -> Origin {
            match source {
                Source::Node(node) | Source::Reference(_, node) => node.origin.clone(),
                Source::Single(_, inner) => of(inner),
                Source::Part { origin, .. } => origin.clone(),
            }
        }
        of(&self.source)
    }

    fn fail<T>(&self, reason: impl Into<String>) -> Result<T, Error> {
        Err(Error::new(reason).located(&self.path, || self.origin()))
    }

    /// A key in the singular, or `X_file`, of a field that is not a list or a secret.
    fn unknown<T>(&self, key: &str) -> Result<T, Error> {
        let mut field = self.path.clone();
        while field.split_last().is_none() && !field.0.is_empty() {
            field.0.pop();
        }
        let table = field.split_last().map(|(table, _)| table).unwrap_or_default();
        if let Some(keys) = self.context.tables.borrow_mut().get_mut(&table) {
            keys.used.remove(key);
        }
        Err(Error::UnknownKey { field })
    }

    fn node(&self) -> Result<&'a Node, Error> {
        match &self.source {
            Source::Node(node) => Ok(node),
            Source::Single(key, _) | Source::Reference(key, _) | Source::Part { key: Some(key), .. } => {
                self.unknown(key)
            }
            Source::Part { .. } => self.fail("must be a list of texts"),
        }
    }

    /// The text of a value that is not a secret.
    fn text(&self, expected: &str) -> Result<String, Error> {
        if let Source::Part { text, key: None, .. } = &self.source {
            return Ok(text.clone());
        }
        match &self.node()?.value {
            Value::Text(text) | Value::Raw(text) => Ok(text.clone()),
            _ => self.fail(format!("must be {expected}")),
        }
    }

    fn secret(&self) -> Result<String, Error> {
        match &self.source {
            Source::Part { text, .. } => Ok(text.clone()),
            Source::Reference(key, node) => self.referenced(key, node),
            Source::Node(_) | Source::Single(..) => self.text("a text"),
        }
    }

    /// What the file or variable holds that `X_file` or `X_env` names. The secret itself may have been written there by
    /// mistake, so a path is not printed, and the name of a variable only if it looks like one.
    fn referenced(&self, key: &str, node: &Node) -> Result<String, Error> {
        let (Value::Text(name) | Value::Raw(name)) = &node.value else {
            return self.fail(format!("`{key}` must be a text"));
        };
        let text = if key.ends_with("_file") {
            if name.contains("://") {
                return self.fail(format!("`{key}` must be the path of a file, and is a URL"));
            }
            let text = std::fs::read_to_string(name);
            text.or_else(|error| self.fail(format!("the file of `{key}` cannot be read: {error}")))?
        } else {
            let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
            if !is_name {
                return self.fail(format!("`{key}` must be the name of a variable"));
            }
            // A token can look like a name, but rarely like one in capitals.
            let named = if name.bytes().any(|byte| byte.is_ascii_lowercase()) { HIDDEN_NAME } else { name };
            std::env::var(name).or_else(|_| self.fail(format!("`{key}`: variable `{named}` is not set")))?
        };
        match text.trim() {
            "" => self
                .fail(format!("`{key}` names an empty {}", if key.ends_with("_file") { "file" } else { "variable" })),
            text => Ok(text.to_owned()),
        }
    }

    fn item(&self, source: Source<'a>, index: usize) -> Self {
        Self { source, path: self.path.index(index), context: self.context }
    }

    /// The items of a list.
    fn items(&self) -> Result<Vec<Self>, Error> {
        let parts = |text: &str, key: Option<&'a str>| {
            let separator = |letter: char| letter == ',' || (key.is_some() && letter.is_whitespace());
            let parts = text.split(separator).map(str::trim).filter(|part| !part.is_empty());
            let part = |(index, text): (usize, &str)| {
                self.item(Source::Part { text: text.to_owned(), origin: self.origin(), key }, index)
            };
            parts.enumerate().map(part).collect::<Vec<_>>()
        };
        match &self.source {
            Source::Reference(key, node) => Ok(parts(&self.referenced(key, node)?, Some(key))),
            Source::Single(key, inner) => match &**inner {
                Source::Reference(key, node) => Ok(parts(&self.referenced(key, node)?, Some(key))),
                Source::Node(Node { value: Value::List(_) | Value::Table(_), .. }) => {
                    self.fail(format!("`{key}` must be one value, not a list"))
                }
                inner => Ok(vec![self.item(inner.clone(), 0)]),
            },
            Source::Node(Node { value: Value::List(items), .. }) => {
                Ok(items.iter().enumerate().map(|(index, node)| self.item(Source::Node(node), index)).collect())
            }
            Source::Node(Node { value: Value::Raw(text), .. }) => Ok(parts(text, None)),
            Source::Node(_) | Source::Part { .. } => self.fail("must be a list"),
        }
    }

    fn table(&self) -> Result<&'a Table, Error> {
        match self.node()?.table() {
            Some(table) => Ok(table),
            None => self.fail("must be a table"),
        }
    }

    /// The values of a struct's fields. Registers the fields and the keys that they read.
    fn fields(&self, fields: &'static [&'static str]) -> Result<Vec<(&'static str, Self)>, Error> {
        let mut found: BTreeMap<&'static str, (&'a str, Source<'a>)> = BTreeMap::new();
        let mut used = BTreeSet::new();
        let mut conflict = None;
        let spoiled = self.context.spoiled.borrow();
        for (key, node) in self.table()? {
            let Some((field, source)) = field_of(key, node, fields) else { continue };
            // For a field with a problem, the first reading decided.
            if !spoiled.contains(&self.path.key(field)) {
                used.insert(key.clone());
            }
            if let Some((other, _)) = found.insert(field, (key, source)) {
                let reason = format!("`{other}` and `{key}` are both set, only one is allowed");
                conflict = Some((reason, self.path.key(field), node.origin.clone()));
            }
        }
        {
            let mut tables = self.context.tables.borrow_mut();
            let keys = tables.entry(self.path.clone()).or_default();
            keys.known.extend(fields.iter().map(|field| (*field).to_owned()));
            keys.used.extend(used);
        }
        if let Some((reason, path, origin)) = conflict.filter(|(_, path, _)| !spoiled.contains(path)) {
            return Err(Error::new(reason).located(&path, || origin));
        }
        let fields = found
            .into_iter()
            .map(|(field, (_, source))| (field, Self { source, path: self.path.key(field), context: self.context }));
        Ok(fields.filter(|(_, value)| !spoiled.contains(&value.path)).collect())
    }
}

/// Replaces a name that may be a secret.
const HIDDEN_NAME: &str = "…";

/// The field that a key sets, and how.
fn field_of<'a>(key: &'a str, node: &'a Node, fields: &'static [&'static str]) -> Option<(&'static str, Source<'a>)> {
    let field = |name: &str| fields.iter().copied().find(|field| *field == name);
    if let Some(field) = field(key) {
        return Some((field, Source::Node(node)));
    }
    let stem = key.strip_suffix("_file").or_else(|| key.strip_suffix("_env"));
    let source = || stem.map_or(Source::Node(node), |_| Source::Reference(key, node));
    let stem = stem.unwrap_or(key);
    let one = || field(&format!("{stem}s")).map(|field| (field, Source::Single(key, Box::new(source()))));
    field(stem).map(|field| (field, source())).or_else(one)
}

macro_rules! numbers {
    ($($method:ident $visit:ident $number:ty),*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            let number = match (&self.source, self.source_value()) {
                (Source::Part { text, key: None, .. }, _) => text.parse().ok(),
                (_, Some(Value::Integer(number))) => Some(*number),
                (_, Some(Value::Raw(text))) => text.trim().parse::<i64>().ok(),
                _ => { self.node()?; None }
            };
            let Some(number) = number else { return self.fail("must be a whole number") };
            match <$number>::try_from(number) {
                Ok(number) => visitor.$visit(number),
                Err(_) => self.fail(format!("must be from {} to {}, is {number}", <$number>::MIN, <$number>::MAX)),
            }
        }
    )*};
}

impl<'a> ValueDeserializer<'a> {
    const fn source_value(&self) -> Option<&'a Value> {
        match &self.source {
            Source::Node(node) => Some(&node.value),
            _ => None,
        }
    }
}

impl<'de> de::Deserializer<'de> for ValueDeserializer<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let located = |error: Error| error.located(&self.path, || self.origin());
        if let Source::Part { text, key: None, .. } = &self.source {
            return match (text.parse::<i64>(), text.parse::<bool>()) {
                (Ok(number), _) => visitor.visit_i64(number),
                (_, Ok(yes)) => visitor.visit_bool(yes),
                _ => visitor.visit_str(text),
            }
            .map_err(located);
        }
        let read = match &self.node()?.value {
            Value::Text(text) | Value::Raw(text) => visitor.visit_str(text),
            Value::Integer(number) => visitor.visit_i64(*number),
            Value::Boolean(yes) => visitor.visit_bool(*yes),
            Value::List(_) => return self.deserialize_seq(visitor),
            Value::Table(_) => return self.deserialize_map(visitor),
            Value::Float(text) => match text.parse() {
                Ok(number) => visitor.visit_f64(number),
                Err(_) => return self.fail("must be a number"),
            },
            Value::Other => return self.fail("must be a text, a number or `true` or `false`"),
        };
        read.map_err(located)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node()?.value {
            Value::Boolean(yes) => visitor.visit_bool(*yes),
            Value::Raw(text) if matches!(text.trim(), "true" | "false") => visitor.visit_bool(text.trim() == "true"),
            _ => self.fail("must be `true` or `false`"),
        }
    }

    numbers!(
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64
    );

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let number = match &self.node()?.value {
            Value::Integer(number) => number.to_string().parse().ok(),
            Value::Float(text) | Value::Raw(text) => text.trim().parse::<f64>().ok(),
            _ => None,
        };
        match number {
            Some(number) => visitor.visit_f64(number),
            None => self.fail("must be a number"),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let text = self.text("a text")?;
        visitor.visit_str(&text).map_err(|error: Error| error.located(&self.path, || self.origin()))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Error> {
        if name == secret::TYPE_NAME {
            return visitor.visit_newtype_struct(StringDeserializer::new(self.secret()?));
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Items(self.items()?.into_iter()))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let mut entries = Vec::new();
        if let Some(Value::Raw(text)) = self.source_value() {
            for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
                let Some((name, value)) = part.split_once('=') else { return self.fail("must be `NAME=VALUE,…`") };
                let source = Source::Part { text: value.trim().to_owned(), origin: self.origin(), key: None };
                entries.push((name.trim().to_owned(), Self { source, ..self.clone() }));
            }
        } else {
            for (name, node) in self.table()? {
                let value = Self { source: Source::Node(node), path: self.path.key(name), context: self.context };
                entries.push((name.clone(), value));
            }
        }
        visitor.visit_map(Entries { entries: entries.into_iter(), value: None })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let entries = self.fields(fields)?.into_iter().map(|(field, value)| (field.to_owned(), value));
        let entries = entries.collect::<Vec<_>>().into_iter();
        let read = visitor.visit_map(Entries { entries, value: None });
        read.map_err(|error: Error| error.located(&self.path, || self.origin()))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let one_of = format!("one of `{}`", variants.join("`, `"));
        let text = self.text(&one_of)?;
        if !variants.contains(&text.as_str()) {
            let nearest = Problem::new("").nearest(&text, variants.iter().copied()).hint;
            let nearest = nearest.and_then(|hint| hint.split('`').nth(1).map(str::to_owned));
            let reason = format!("must be {one_of}");
            return Err(Error::Field { reason, nearest, at: Some((self.path.clone(), self.origin())) });
        }
        let variant: StrDeserializer<'_, Error> = text.as_str().into_deserializer();
        visitor.visit_enum(variant)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! { char bytes byte_buf unit unit_struct tuple tuple_struct identifier }
}

struct Items<'a>(std::vec::IntoIter<ValueDeserializer<'a>>);

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.0.next().map(|item| seed.deserialize(item)).transpose()
    }
}

struct Entries<'a> {
    entries: std::vec::IntoIter<(String, ValueDeserializer<'a>)>,
    value: Option<ValueDeserializer<'a>>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        let (path, origin) = (value.path.clone(), value.origin());
        self.value = Some(value);
        let key = seed.deserialize(StringDeserializer::<Error>::new(key));
        key.map(Some).map_err(|error| error.located(&path, || origin))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let value = self.value.take().expect("serde reads a key before its value");
        let (path, origin) = (value.path.clone(), value.origin());
        seed.deserialize(value).map_err(|error| error.located(&path, || origin))
    }
}
