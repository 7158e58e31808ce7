//! A text that is never shown.

use std::fmt;

/// What stands for a secret wherever it would be shown.
pub(crate) const HIDDEN: &str = "<secret>";

/// A text that neither `Debug` nor `Display` show.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for whoever must have it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

/// A text that people wrote where no secret belongs, for an error; what looks like a URL with a password is not shown.
pub(crate) fn shown(text: &str) -> &str {
    if text.contains("://") || text.contains('@') { HIDDEN } else { text }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::new("sesame");
        assert_eq!((format!("{secret:?}"), secret.to_string()), (HIDDEN.to_owned(), HIDDEN.to_owned()));
    }

    #[test]
    fn what_looks_like_a_url_is_not_shown_wherever_it_stands() {
        assert_eq!(shown("shop"), "shop");
        for text in ["postgres://me:sesame@db/shop", "me:sesame@db"] {
            assert_eq!(shown(text), HIDDEN);
        }
    }
}
