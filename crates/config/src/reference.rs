//! The JSON schema of a configuration, and the reference page and example file that are made from it.

use std::fmt::Write as _;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value as Json, json};

use crate::path::KeyPath;
use crate::secret::FORMAT as SECRET;

/// No comment line of the example file is longer.
const COLUMNS: usize = 100;

/// The schema of one section, with all its parts inline.
pub fn schema_of<T: JsonSchema>() -> Json {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("$schema");
        schema.remove("title");
    }
    schema
}

/// The schema of a table that several sections read.
#[must_use]
pub fn merge(mut one: Json, other: &Json) -> Json {
    for key in ["properties", "required"] {
        match (&mut one[key], &other[key]) {
            (_, Json::Null) => {}
            (Json::Object(ones), Json::Object(others)) => ones.extend(others.clone()),
            (Json::Array(ones), Json::Array(others)) => ones.extend(others.clone()),
            (ones, others) => *ones = others.clone(),
        }
    }
    if let Some(one) = one.as_object_mut() {
        one.retain(|_, value| !value.is_null());
    }
    one
}

/// The schema of a table with this property.
#[must_use]
#[expect(clippy::needless_pass_by_value, reason = "callers build the property for this call")]
pub fn with(table: Json, name: &str, property: Json) -> Json {
    merge(table, &json!({ "properties": { name: property } }))
}

/// The schema of a table of tables that users name.
#[must_use]
pub fn named(description: &str, table: Json) -> Json {
    let mut table = table;
    table["description"] = description.into();
    json!({ "type": "object", "additionalProperties": table })
}

/// Completes a schema for editors: unknown keys are errors, and a secret can be set by `_file` and `_env`.
#[must_use]
pub fn for_editors(mut schema: Json) -> Json {
    close(&mut schema);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema
}

fn close(schema: &mut Json) {
    if let Some(properties) = schema.get_mut("properties").and_then(Json::as_object_mut) {
        let mut more = Map::new();
        for (name, property) in properties.iter() {
            let names = if property["type"] == "array" && name.ends_with('s') {
                vec![name.clone(), name[..name.len() - 1].to_owned()]
            } else {
                vec![name.clone()]
            };
            let item = if property["type"] == "array" { &property["items"] } else { property };
            let is_secret = item["format"] == SECRET;
            for one in &names[1..] {
                more.insert(one.clone(), item.clone());
            }
            for one in names.iter().filter(|_| is_secret) {
                for suffix in ["_file", "_env"] {
                    more.insert(format!("{one}{suffix}"), json!({ "type": "string" }));
                }
            }
        }
        for (name, property) in more {
            properties.entry(name).or_insert(property);
        }
        properties.values_mut().for_each(close);
        schema["additionalProperties"] = false.into();
        // A required secret can be set by another key, which a schema cannot say in a few words.
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("required");
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(key).filter(|inner| inner.is_object()) {
            close(inner);
        }
    }
    for key in ["oneOf", "anyOf"] {
        schema.get_mut(key).and_then(Json::as_array_mut).into_iter().flatten().for_each(close);
    }
}

/// One table of the configuration.
#[derive(Clone, Debug)]
pub struct TableDoc {
    /// The names of its path. `NAME` stands for a name that users choose.
    pub path: Vec<String>,
    /// Whether it is a list of tables.
    pub is_list: bool,
    /// The kind, where a table has different keys for each kind.
    pub kind: Option<String>,
    /// What it is.
    pub description: String,
    /// Its keys.
    pub keys: Vec<KeyDoc>,
}

/// One key of a table.
#[derive(Clone, Debug)]
pub struct KeyDoc {
    /// The name.
    pub name: String,
    /// What it accepts.
    pub accepts: String,
    /// The default, as in a file.
    pub default: Option<String>,
    /// The key with a value, as in a file.
    pub assignment: String,
    /// What it does.
    pub description: String,
    /// Whether it has to be set.
    pub is_required: bool,
}

impl TableDoc {
    /// The heading, such as `[relay]`.
    pub fn heading(&self) -> String {
        let path = self.path.join(".");
        if self.is_list { format!("[[{path}]]") } else { format!("[{path}]") }
    }
}

/// All tables of a schema, in its order.
pub fn tables(schema: &Json) -> Vec<TableDoc> {
    let mut all = Vec::new();
    collect(schema, TablePlace::default(), &mut all);
    all
}

#[derive(Clone, Default)]
struct TablePlace {
    path: Vec<String>,
    is_list: bool,
    kind: Option<String>,
}

fn collect(schema: &Json, place: TablePlace, all: &mut Vec<TableDoc>) {
    if let Some(kinds) = kinds(schema) {
        for (kind, schema) in kinds {
            collect(schema, TablePlace { kind: Some(kind.to_owned()), ..place.clone() }, all);
        }
        return;
    }
    let required = |name: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
    let (mut keys, mut inner) = (Vec::new(), Vec::new());
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let within = |more: &[&str], is_list| TablePlace {
            path: place
                .path
                .iter()
                .cloned()
                .chain([name.clone()])
                .chain(more.iter().map(|it| (*it).to_owned()))
                .collect(),
            is_list,
            kind: place.kind.clone(),
        };
        let property = without_null(property);
        if is_table(property) {
            inner.push((property, within(&[], false)));
        } else if is_table(&property["additionalProperties"]) {
            inner.push((&property["additionalProperties"], within(&["NAME"], false)));
        } else if is_table(&property["items"]) {
            inner.push((&property["items"], within(&[], true)));
        } else {
            keys.push(key(name, property, &schema["properties"][name], required(name)));
        }
    }
    keys.sort_by_key(|key| !key.is_required);
    if !keys.is_empty() {
        let description = text(&schema["description"]);
        all.push(TableDoc { path: place.path, is_list: place.is_list, kind: place.kind, description, keys });
    }
    for (schema, place) in inner {
        collect(schema, place, all);
    }
}

fn kinds(schema: &Json) -> Option<Vec<(&str, &Json)>> {
    let all = schema["oneOf"].as_array()?;
    all.iter().map(|one| Some((one["title"].as_str()?, one))).collect()
}

fn is_table(schema: &Json) -> bool {
    schema["properties"].is_object() || kinds(schema).is_some()
}

fn without_null(schema: &Json) -> &Json {
    let any = schema["anyOf"].as_array();
    any.and_then(|any| any.iter().find(|one| one["type"] != "null")).unwrap_or(schema)
}

fn key(name: &str, schema: &Json, outer: &Json, is_required: bool) -> KeyDoc {
    let is_required = is_required || outer["x-required"] == true;
    let default = outer.get("default").filter(|default| !is_required && !default.is_null()).map(toml);
    let example = outer["examples"].get(0).or_else(|| schema["examples"].get(0)).map(toml);
    let example = example.or_else(|| default.clone()).unwrap_or_else(|| "\"…\"".to_owned());
    let assignment = match outer["x-example-file"].as_str() {
        Some(file) => format!("{name}_file = {file:?}"),
        None => format!("{name} = {example}"),
    };
    let accepts = accepts(schema);
    KeyDoc {
        name: name.to_owned(),
        accepts,
        assignment,
        default,
        description: text(&outer["description"]),
        is_required,
    }
}

fn text(description: &Json) -> String {
    description.as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn accepts(schema: &Json) -> String {
    let words = |values: &[Json]| {
        let words: Vec<&str> = values.iter().filter_map(Json::as_str).collect();
        format!("`{}`", words.join("`, `"))
    };
    if let Some(values) = schema["enum"].as_array() {
        return words(values);
    }
    if let Some(variants) = schema["oneOf"].as_array() {
        return words(&variants.iter().map(|variant| variant["const"].clone()).collect::<Vec<_>>());
    }
    let kind = match &schema["type"] {
        Json::Array(kinds) => kinds.iter().find(|kind| *kind != "null").and_then(Json::as_str),
        kind => kind.as_str(),
    };
    match (kind, schema["format"].as_str()) {
        (Some("string"), Some(SECRET)) => "secret".to_owned(),
        (Some("string"), Some(format @ ("duration" | "size"))) => format.to_owned(),
        (Some("string"), _) => "text".to_owned(),
        (Some("integer"), _) => "whole number".to_owned(),
        (Some("number"), _) => "number".to_owned(),
        (Some("boolean"), _) => "`true` or `false`".to_owned(),
        (Some("array"), _) => format!("list of {}", accepts(&schema["items"])),
        (Some("object"), _) => "table".to_owned(),
        _ => "text or `false`".to_owned(),
    }
}

/// A value as in a file.
fn toml(value: &Json) -> String {
    match value {
        Json::String(text) => format!("{text:?}"),
        Json::Array(items) => format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Json::Object(fields) if fields.is_empty() => "{}".to_owned(),
        Json::Object(fields) => {
            let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name} = {}", toml(value))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

/// The reference page, in Markdown.
pub fn page(introduction: &str, schema: &Json, prefix: &str) -> String {
    let mut page = introduction.to_owned();
    for table in tables(schema) {
        let heading =
            if table.path.is_empty() { "Before any table".to_owned() } else { format!("`{}`", table.heading()) };
        let kind = table.kind.as_ref().map(|kind| format!(" with `kind = \"{kind}\"`")).unwrap_or_default();
        write!(page, "\n## {heading}{kind}\n\n{}\n\n", table.description).expect("a text takes everything");
        page.push_str("| Key | Accepts | Default | Description |\n|---|---|---|---|\n");
        for key in &table.keys {
            let default = match (&key.default, key.is_required) {
                (Some(default), _) => format!("`{default}`"),
                (None, true) => "required".to_owned(),
                (None, false) => "none".to_owned(),
            };
            writeln!(page, "| `{}` | {} | {default} | {} |", key.name, key.accepts, key.description)
                .expect("a text takes everything");
        }
        let names: Vec<&str> = table.path.iter().map(String::as_str).collect();
        let first = KeyPath::of(&names).key(&table.keys[0].name);
        let variable = first.variable(prefix).filter(|_| !in_list(schema, &table));
        let note = variable.map_or_else(
            || "Variables cannot set these keys.".to_owned(),
            |variable| format!("The variable of the first key is `{variable}`."),
        );
        write!(page, "\n{note}\n").expect("a text takes everything");
    }
    page
}

fn in_list(schema: &Json, table: &TableDoc) -> bool {
    let lists: Vec<Vec<String>> = tables(schema).into_iter().filter(|it| it.is_list).map(|it| it.path).collect();
    lists.iter().any(|list| table.path.starts_with(list))
}

/// A file with every key, the defaults commented out. `names` replace each `NAME`, in order; a table of a kind other than
/// `shown` is commented out as a whole, and the kind takes the place of the second name.
pub fn example(introduction: &str, schema: &Json, names: &[&str], shown: &str) -> String {
    let mut file = introduction.to_owned();
    for table in tables(schema) {
        let kind = table.kind.clone();
        let other = kind.as_deref().filter(|kind| *kind != shown);
        let mut chosen =
            names.iter().copied().enumerate().map(|(at, name)| if at == 1 { other.unwrap_or(name) } else { name });
        let path = table.path.clone().into_iter().map(|name| match name.as_str() {
            "NAME" => chosen.next().unwrap_or("name").to_owned(),
            _ => name,
        });
        let is_in_list = in_list(schema, &table);
        let table = TableDoc { path: path.collect(), ..table };
        file.push('\n');
        comment(&mut file, &table.description);
        let mark = if other.is_some() || is_in_list { "#" } else { "" };
        if !table.path.is_empty() {
            writeln!(file, "{mark}{}", table.heading()).expect("a text takes everything");
        }
        for key in &table.keys {
            file.push('\n');
            comment(&mut file, &key.description);
            let mark = if key.is_required && mark.is_empty() { "" } else { "#" };
            let assignment = match &table.kind {
                Some(kind) if key.name == "kind" && key.is_required => format!("kind = {kind:?}"),
                _ => key.assignment.clone(),
            };
            writeln!(file, "{mark}{assignment}").expect("a text takes everything");
        }
    }
    file
}

/// A description as lines of a comment.
fn comment(file: &mut String, description: &str) {
    let mut line = String::from("#");
    for word in description.split_whitespace() {
        if line.len() + 1 + word.len() > COLUMNS {
            file.push_str(&line);
            file.push('\n');
            "#".clone_into(&mut line);
        }
        line.push(' ');
        line.push_str(word);
    }
    if line.len() > 1 {
        file.push_str(&line);
        file.push('\n');
    }
}
