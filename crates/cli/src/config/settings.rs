//! What was set, where, and what it is otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::keys::{Found, INDEX, NAME, SECTIONS, Section, find};
use super::value::Value;

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

    /// Where it stands, and its last name.
    pub(crate) fn split_last(&self) -> Option<(Self, &str)> {
        match self.0.split_last() {
            Some((Step::Name(name), rest)) => Some((Self(rest.to_vec()), name)),
            _ => None,
        }
    }

    fn is_under(&self, other: &Self) -> bool {
        self.0.len() > other.0.len() && self.0.starts_with(&other.0)
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
        let mut sections = Vec::new();
        for path in paths {
            let pattern = pattern_of(&path);
            let fitting = SECTIONS.iter().filter(|section| section.path == pattern);
            let known: Vec<_> = fitting.filter(|section| self.is_of_kind(&path, section.of)).collect();
            sections.extend(known.into_iter().map(|section| (path.clone(), section)));
        }
        sections
    }

    /// Whether the broker that a path leads into is of a kind.
    fn is_of_kind(&self, path: &Path, kind: Option<&str>) -> bool {
        let Some(kind) = kind else { return true };
        let steps = path.0.iter().position(|step| *step == Step::Name("broker".to_owned()));
        let broker = steps.map(|at| Path(path.0[..=at].to_vec()));
        let set = broker.and_then(|broker| self.values.get(&broker.name("kind")));
        set.is_some_and(|setting| setting.value == Value::Text(kind.to_owned()))
    }

    /// Sections under another that are there.
    pub(crate) fn headings_under(&self, of: &Path) -> Vec<Path> {
        self.headings.keys().filter(|path| path.is_under(of)).cloned().collect()
    }

    /// Keys under a section that somebody set.
    pub(crate) fn set_under(&self, of: &Path) -> Vec<Path> {
        let set = self.values.iter().filter(|(path, setting)| path.is_under(of) && setting.origin != Origin::Default);
        set.map(|(path, _)| path.clone()).collect()
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
                let Some(value) = Value::default_of(key) else { continue };
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
