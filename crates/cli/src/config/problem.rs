//! What is wrong with a configuration.

use std::fmt;

/// One thing that is wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) what: String,
    pub(crate) place: Option<String>,
    pub(crate) hint: Option<String>,
}

impl Problem {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), place: None, hint: None }
    }

    pub(crate) fn at(mut self, place: impl fmt::Display) -> Self {
        self.place = Some(place.to_string());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Names what was probably meant.
    pub(crate) fn nearest<'a>(self, wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        match nearest(wrong, known) {
            Some(name) => self.hint(format!("did you mean `{name}`?")),
            None => self,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(place) = &self.place {
            write!(f, " at {place}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "; hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

/// Everything that is wrong with one configuration; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problems {
    all: Vec<Problem>,
    /// What is not wrong by itself, but may explain the rest.
    pub(crate) warnings: Vec<Problem>,
}

impl Problems {
    pub(crate) const fn new(all: Vec<Problem>, warnings: Vec<Problem>) -> Self {
        Self { all, warnings }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.all.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self::new(vec![problem], Vec::new())
    }
}

/// The known name that is most like a wrong one, if any is like it.
fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.into_iter().map(|name| (strsim::damerau_levenshtein(wrong, name), name));
    let (distance, name) = scored.min()?;
    // A third of the letters may be wrong; more is another word.
    (distance <= wrong.chars().count().max(name.chars().count()).div_ceil(3)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_told_and_a_strange_one_is_not_guessed() {
        let known = ["lease_ms", "lease_every_ms", "page_messages"];
        assert_eq!(nearest("lease_sm", known), Some("lease_ms"));
        assert_eq!(nearest("page_mesages", known), Some("page_messages"));
        assert_eq!(nearest("colour", known), None);
    }

    #[test]
    fn a_problem_is_what_where_and_what_to_do() {
        let problem = Problem::new("unknown key `lease_sm`").at("relevo.toml:12").nearest("lease_sm", ["lease_ms"]);
        assert_eq!(problem.to_string(), "unknown key `lease_sm` at relevo.toml:12; hint: did you mean `lease_ms`?");
    }
}
