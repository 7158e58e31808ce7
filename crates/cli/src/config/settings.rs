//! What was set, where, and what it is otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::keys::{Found, INDEX, Key, Kind, NAME, SECTIONS, Section, find};
use super::problem::Problem;
use super::secret::{Secret, shown};

/// One step of a [`Path`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Name(String),
    Index(usize),
}

/// Where a value stands, as `outboxes.shop.schema`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path(Vec<Step>);

impl Path {
    /// A path of names only.
    pub(crate) fn of(names: &[&str]) -> Self {
        Self(names.iter().map(|name| Step::Name((*name).to_owned())).collect())
    }

    pub(crate) fn name(&self, name: &str) -> Self {
        self.step(Step::Name(name.to_owned()))
    }

    pub(crate) fn index(&self, index: usize) -> Self {
        self.step(Step::Index(index))
    }

    fn step(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Whether it leads into a list, as a route's keys do.
    pub(crate) fn is_in_list(&self) -> bool {
        self.0.iter().any(|step| matches!(step, Step::Index(_)))
    }
}

impl fmt::Display for Path {
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

/// A value of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Secret(Secret),
    Integer(i64),
    Boolean(bool),
}

impl Value {
    /// From a text that a variable, a flag or the table holds.
    pub(crate) fn parse(key: &Key, text: &str) -> Result<Self, Problem> {
        let wrong = || Problem::new(format!("`{}` is {}", key.name, key.kind.describe()));
        let value = match key.kind {
            Kind::Text | Kind::Choice(_) => Self::Text(text.to_owned()),
            Kind::Secret => Self::Secret(Secret::new(text)),
            Kind::Integer { .. } => Self::Integer(text.trim().parse().map_err(|_| wrong())?),
            Kind::Boolean => Self::Boolean(text.trim().parse().map_err(|_| wrong())?),
        };
        value.checked(key)
    }

    /// The value, if the key takes it.
    pub(crate) fn checked(self, key: &Key) -> Result<Self, Problem> {
        let wrong = || Problem::new(format!("`{}` is {}", key.name, key.kind.describe()));
        match (key.kind, &self) {
            (Kind::Text, Self::Text(_)) | (Kind::Secret, Self::Secret(_)) | (Kind::Boolean, Self::Boolean(_)) => {}
            (Kind::Integer { min, max }, Self::Integer(number)) if (min..=max).contains(number) => {}
            (Kind::Integer { .. }, Self::Integer(number)) => {
                return Err(Problem::new(format!("`{}` is {}, not {number}", key.name, key.kind.describe())));
            }
            (Kind::Choice(words), Self::Text(text)) => {
                if !words.contains(&text.as_str()) {
                    let what = format!("`{}` is {}, not `{}`", key.name, key.kind.describe(), shown(text));
                    return Err(Problem::new(what).nearest(text, words.iter().copied()));
                }
            }
            (
                Kind::Text | Kind::Secret | Kind::Boolean | Kind::Integer { .. } | Kind::Choice(_),
                Self::Text(_) | Self::Secret(_) | Self::Boolean(_) | Self::Integer(_),
            ) => return Err(wrong()),
        }
        Ok(self)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Secret(secret) => write!(f, "\"{secret}\""),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Boolean(yes) => write!(f, "{yes}"),
        }
    }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File { file: String, line: usize },
    Variable(String),
    Flag(String),
}

impl Origin {
    /// The word that JSON has for it.
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File { .. } => "file",
            Self::Variable(_) => "variable",
            Self::Flag(_) => "flag",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line } => write!(f, "{file}:{line}"),
            Self::Variable(name) => write!(f, "variable `{name}`"),
            Self::Flag(flag) => write!(f, "flag `{flag}`"),
        }
    }
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// Everything that is set; later sources replace what earlier ones said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    values: BTreeMap<Path, Setting>,
    /// Sections that are there, though nothing in them may be set.
    headings: BTreeMap<Path, Origin>,
    /// Keys whose value was refused, and told; that they are missing is no further problem.
    spoiled: BTreeSet<Path>,
}

impl Settings {
    pub(crate) fn set(&mut self, path: Path, value: Value, origin: Origin) {
        for depth in 1..path.steps().len() {
            self.head(Path(path.steps()[..depth].to_vec()), origin.clone());
        }
        self.values.insert(path, Setting { value, origin });
    }

    /// A section is there.
    pub(crate) fn head(&mut self, path: Path, origin: Origin) {
        self.headings.entry(path).or_insert(origin);
    }

    /// A key was given a value that it does not take.
    pub(crate) fn spoil(&mut self, path: Path) {
        self.spoiled.insert(path);
    }

    /// Whether a key was given a value, good or bad.
    pub(crate) fn is_given(&self, path: &Path) -> bool {
        self.values.contains_key(path) || self.spoiled.contains(path)
    }

    pub(crate) fn get(&self, path: &Path) -> Option<&Setting> {
        self.values.get(path)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Path, &Setting)> {
        self.values.iter()
    }

    /// Where a section was first mentioned.
    pub(crate) fn origin(&self, path: &Path) -> Origin {
        self.headings.get(path).cloned().unwrap_or(Origin::Default)
    }

    /// The names right under a section.
    pub(crate) fn names(&self, of: &Path) -> Vec<String> {
        let under = self.headings.keys().filter(|path| path.0.len() == of.0.len() + 1 && path.0.starts_with(&of.0));
        let names = under.filter_map(|path| match path.0.last() {
            Some(Step::Name(name)) => Some(name.clone()),
            _ => None,
        });
        names.collect()
    }

    /// How long a list is.
    pub(crate) fn len_of(&self, list: &Path) -> usize {
        let under = self.headings.keys().filter(|path| path.0.len() == list.0.len() + 1 && path.0.starts_with(&list.0));
        under.count()
    }

    /// Every section that is there, whether anything in it is set or not.
    fn sections(&self) -> Vec<(Path, &'static Section)> {
        let mut paths: BTreeSet<Path> = self.headings.keys().cloned().collect();
        paths.extend(SECTIONS.iter().filter(|it| !it.path.contains(&NAME)).map(|it| Path::of(it.path)));
        let known = |path: &Path| {
            let pattern = pattern_of(path);
            SECTIONS.iter().find(|section| section.path == pattern)
        };
        paths.into_iter().filter_map(|path| known(&path).map(|section| (path, section))).collect()
    }

    /// Every key that could be set in the sections that are there.
    pub(crate) fn possible(&self) -> Vec<Path> {
        let sections = self.sections().into_iter();
        sections.flat_map(|(path, section)| section.keys.iter().map(move |key| path.name(key.name))).collect()
    }

    /// Fills in what nobody set, in every section that is there.
    pub(crate) fn fill_in(&mut self) {
        for (path, section) in self.sections() {
            // What a destination's relay does not say is what `[relay]` says.
            if section.path.len() > 1 && section.path.last() == Some(&"relay") {
                continue;
            }
            for key in section.keys {
                let Some(default) = key.default else { continue };
                let value = Value::parse(key, default.trim_matches('"')).expect("the table's defaults are good");
                let setting = Setting { value, origin: Origin::Default };
                self.values.entry(path.name(key.name)).or_insert(setting);
            }
        }
    }
}

/// The table's words for a path; an unknown name stands for itself.
pub(crate) fn pattern_of(path: &Path) -> Vec<&str> {
    let mut pattern: Vec<&str> = Vec::new();
    for step in path.steps() {
        let word = match step {
            Step::Index(_) => INDEX,
            Step::Name(name) => match find(&pattern, name) {
                Found::Heading if is_named(&pattern, name) => NAME,
                Found::Heading | Found::Key(_) | Found::Nothing(_) => name,
            },
        };
        pattern.push(word);
    }
    pattern
}

fn is_named(pattern: &[&str], name: &str) -> bool {
    let words = SECTIONS.iter().filter(|it| it.path.len() > pattern.len() && it.path.starts_with(pattern));
    !words.into_iter().any(|it| it.path[pattern.len()] == name)
}
