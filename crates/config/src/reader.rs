//! Reads sections of a merged tree.

use serde_json::Value as Json;

use crate::deserialize::{Context, ValueDeserializer};
use crate::path::{KeyPath, is_name, variable_word};
use crate::problem::Problem;
use crate::secret::without_secrets;
use crate::section::{Checks, Section};
use crate::tree::{Node, Origin, Value};

/// One key with its value, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key.
    pub path: KeyPath,
    /// The value. A secret is replaced.
    pub value: Json,
    /// Where it was set.
    pub origin: Origin,
}

/// Reads sections and collects all problems.
pub struct Reader {
    root: Node,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    context: Context,
    settings: Vec<Setting>,
}

impl Reader {
    pub(crate) fn new(root: Node, problems: Vec<Problem>) -> Self {
        Self { root, problems, warnings: Vec::new(), context: Context::default(), settings: Vec::new() }
    }

    /// Reads the table of this path; a table that is not set is empty. Several sections can read the same table: a key is
    /// unknown if none of them has it. `None` after a problem, which is reported by [`finish`](Self::finish).
    pub fn read<T: Section>(&mut self, at: &KeyPath) -> Option<T> {
        self.expect_table(at);
        let node = self.node(at);
        self.section(&node, at, None)
    }

    /// Reads a table whose keys override those of the table `base`.
    pub fn read_over<T: Section>(&mut self, base: &KeyPath, at: &KeyPath) -> Option<T> {
        self.expect_table(at);
        let (mut node, own) = (self.node(base), self.node(at));
        node.overlay(&own);
        self.section(&node, at, Some(&own))
    }

    /// The tables in this table, which users name.
    pub fn tables(&mut self, at: &KeyPath) -> Vec<(String, KeyPath)> {
        self.expect_table(at);
        let Some(table) = self.root.get(at).and_then(Node::table) else { return Vec::new() };
        let mut entries: Vec<_> = table.iter().map(|(name, node)| (name.clone(), node.origin.clone())).collect();
        entries.sort_by(|one, other| one.1.cmp(&other.1));
        let mut names: Vec<(String, KeyPath)> = Vec::new();
        for (name, origin) in entries {
            if !is_name(&name) {
                let problem = Problem::new(format!("`{}` cannot be a name", without_secrets(&name)));
                let hint = "a name has 1 to 63 ASCII letters, digits, `-` and single `_` between them";
                self.problems.push(problem.hint(hint).at(origin));
            } else if let Some((other, _)) = names.iter().find(|(it, _)| variable_word(it) == variable_word(&name)) {
                let problem = Problem::new(format!("`{other}` and `{name}` would be set by the same variables"));
                self.problems.push(problem.hint("in variables, case and `-` do not matter: rename one").at(origin));
            } else {
                let path = at.key(&name);
                self.expect_table(&path);
                names.push((name, path));
            }
        }
        names.sort();
        names
    }

    /// Reads each table of the list at this path.
    pub fn list<T: Section>(&mut self, at: &KeyPath) -> Vec<(KeyPath, T)> {
        self.know(at);
        let Some(node) = self.root.get(at).cloned() else { return Vec::new() };
        let Value::List(items) = &node.value else {
            let problem = Problem::new(format!("`{at}` must be a list of tables")).hint(format!("write `[[{at}]]`"));
            self.problems.push(problem.at(node.origin));
            return Vec::new();
        };
        let mut sections = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = at.index(index);
            if item.table().is_none() {
                let problem = Problem::new(format!("`{at}` must be a list of tables"));
                self.problems.push(problem.hint(format!("write `[[{at}]]`")).at(item.origin.clone()));
            } else if let Some(section) = self.section(item, &path, None) {
                sections.push((path, section));
            }
        }
        sections
    }

    /// Reports a problem at a key, or at the innermost table around it.
    pub fn problem(&mut self, at: &KeyPath, problem: Problem) {
        let origin = self.origin(at);
        self.problems.push(problem.at(origin));
    }

    /// Reports what is valid, but looks wrong.
    pub fn warning(&mut self, at: &KeyPath, problem: Problem) {
        let problem = problem.at(self.origin(at));
        if !self.warnings.contains(&problem) {
            self.warnings.push(problem);
        }
    }

    /// All warnings.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// Reports an error of a section as a whole. If its message begins with a key of the table, the key is the place.
    pub fn error(&mut self, at: &KeyPath, message: &str) {
        let named = message.split('`').nth(1).map(|key| at.key(key)).filter(|key| self.is_set(key));
        let (reason, hint) =
            message.split_once("; hint: ").map_or((message, None), |(reason, hint)| (reason, Some(hint)));
        let problem = Problem::new(reason);
        let problem = if let Some(hint) = hint { problem.hint(hint) } else { problem };
        self.problem(&named.unwrap_or_else(|| at.clone()), problem);
    }

    /// Reports no unknown keys of this table, because its sections are not known.
    pub fn ignore(&mut self, at: &KeyPath) {
        self.know(at);
        self.context.tables.borrow_mut().remove(at);
    }

    /// Where a key was set.
    pub fn origin(&self, at: &KeyPath) -> Origin {
        self.root.origin_of(at)
    }

    /// Whether a key or a table is set.
    pub fn is_set(&self, at: &KeyPath) -> bool {
        self.root.get(at).is_some()
    }

    /// The key that sets a field: `url` or `urls_file` may set `urls`.
    pub fn set_key(&self, field: &KeyPath) -> KeyPath {
        let set = alternatives(field).into_iter().find(|key| self.is_set(key));
        set.unwrap_or_else(|| field.clone())
    }

    /// The number of problems so far.
    pub const fn problem_count(&self) -> usize {
        self.problems.len()
    }

    /// The variables that set keys of the sections that were read.
    pub fn variables(&self, prefix: &str) -> Vec<String> {
        let tables = self.context.tables.borrow();
        let keys = tables.iter().flat_map(|(path, keys)| keys.known.iter().map(|name| path.key(name)));
        keys.filter_map(|key| key.variable(prefix)).collect()
    }

    /// All values that were read, or all problems: also keys that no section has.
    pub fn finish(mut self) -> Result<Vec<Setting>, Vec<Problem>> {
        for (path, keys) in &*self.context.tables.borrow() {
            let Some(table) = self.root.get(path).and_then(Node::table) else { continue };
            for (key, node) in table.iter().filter(|(key, _)| !keys.used.contains(*key)) {
                let shown = without_secrets(key);
                let reason = if path.0.is_empty() {
                    format!("unknown key `{shown}`")
                } else {
                    format!("unknown key `{shown}` in `{path}`")
                };
                let problem = Problem::new(reason).nearest(key, keys.known.iter().map(String::as_str));
                self.problems.push(problem.at(node.origin.clone()));
            }
        }
        if self.problems.is_empty() {
            return Ok(self.settings);
        }
        let mut problems: Vec<Problem> = Vec::new();
        for problem in self.problems {
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        problems.sort_by_key(|problem| problem.place.clone().unwrap_or(Origin::Default));
        Err(problems)
    }

    fn node(&self, at: &KeyPath) -> Node {
        let node = self.root.get(at).filter(|node| node.table().is_some());
        node.cloned().unwrap_or_else(|| Node::empty_table(self.root.origin_of(at)))
    }

    /// Makes the name of a table or a list known in its parent.
    fn know(&self, at: &KeyPath) {
        if let Some((parent, name)) = at.split_last() {
            self.context.know(&parent, name);
            if let Some(keys) = self.context.tables.borrow_mut().get_mut(&parent) {
                keys.used.insert(name.to_owned());
            }
        }
    }

    fn expect_table(&mut self, at: &KeyPath) {
        self.know(at);
        if let Some(node) = self.root.get(at).filter(|node| node.table().is_none()) {
            let problem = Problem::new(format!("`{at}` must be a table")).at(node.origin.clone());
            self.problems.push(problem);
        }
    }

    /// `own` is the table without those that it overrides.
    fn section<T: Section>(&mut self, node: &Node, at: &KeyPath, own: Option<&Node>) -> Option<T> {
        let before = self.problems.len();
        let section = loop {
            match T::deserialize(ValueDeserializer::new(node, at.clone(), &self.context)) {
                Ok(section) => break Some(section),
                Err(error) => {
                    let (problem, spoiled) = error.into_problem();
                    let is_new = spoiled.is_some_and(|field| self.context.spoiled.borrow_mut().insert(field));
                    if is_new {
                        self.problems.extend(problem);
                    } else {
                        // A required field with a problem.
                        break None;
                    }
                }
            }
        };
        if self.problems.len() > before {
            return None;
        }
        let section = section?;
        section.validate(&mut Checks { node, problems: &mut self.problems });
        if let Ok(value) = serde_json::to_value(&section) {
            self.show(node, own, at, &KeyPath::default(), value);
        }
        Some(section)
    }

    /// Records the values of a section, with their origins.
    fn show(&mut self, node: &Node, own: Option<&Node>, at: &KeyPath, inside: &KeyPath, value: Json) {
        match value {
            Json::Null => {}
            Json::Object(fields) if !fields.is_empty() => {
                for (name, value) in fields {
                    self.show(node, own, at, &inside.key(&name), value);
                }
            }
            value => {
                let origin_in =
                    |node: &Node| alternatives(inside).iter().find_map(|key| node.get(key)).map(|it| it.origin.clone());
                if own.is_some_and(|own| origin_in(own).is_none()) {
                    return;
                }
                let path = KeyPath(at.0.iter().chain(&inside.0).cloned().collect());
                self.settings.push(Setting { path, value, origin: origin_in(node).unwrap_or(Origin::Default) });
            }
        }
    }
}

/// The keys that can set a field.
pub(crate) fn alternatives(field: &KeyPath) -> Vec<KeyPath> {
    let Some((table, name)) = field.split_last() else { return vec![field.clone()] };
    let singular = name.strip_suffix('s').unwrap_or(name);
    let names =
        [name, singular].into_iter().flat_map(|name| [name.to_owned(), format!("{name}_file"), format!("{name}_env")]);
    names.map(|name| table.key(&name)).collect()
}
