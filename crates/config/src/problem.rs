//! A problem of a configuration.

use std::fmt;

use crate::Origin;

/// One problem: the reason, the place and a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The reason.
    pub reason: String,
    /// The place, such as `relevo.toml:12`.
    pub place: Option<Origin>,
    /// How to fix it.
    pub hint: Option<String>,
}

impl Problem {
    /// A problem without a place.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), place: None, hint: None }
    }

    /// With this place. A default has none.
    #[must_use]
    pub fn at(mut self, place: Origin) -> Self {
        self.place = Some(place).filter(|place| *place != Origin::Default);
        self
    }

    /// With this hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Suggests the known name that is nearest to a wrong one, if one is near.
    #[must_use]
    pub fn nearest<'a>(self, wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        match nearest(wrong, known) {
            Some(name) => self.hint(format!("did you mean `{name}`?")),
            None => self,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
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

fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.into_iter().map(|name| (strsim::damerau_levenshtein(wrong, name), name));
    let (distance, name) = scored.min()?;
    // Names with more than a third of different letters are other words.
    (distance <= wrong.chars().count().max(name.chars().count()).div_ceil(3)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested_unless_it_is_another_word() {
        let known = ["lease_duration", "lease_margin", "page_messages"];
        assert_eq!(nearest("lease_duraton", known), Some("lease_duration"));
        assert_eq!(nearest("page_mesages", known), Some("page_messages"));
        assert_eq!(nearest("colour", known), None);
    }
}
