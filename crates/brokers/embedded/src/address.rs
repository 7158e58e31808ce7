//! Matches addresses with the patterns of a group.

use relevo_core::route;

/// The patterns of a group, in the pattern language of routes. Dots separate segments; `*` matches one segment, `**`
/// any number of segments at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressPatterns(Vec<String>);

impl AddressPatterns {
    pub(crate) fn new(patterns: Vec<String>) -> Self {
        Self(patterns)
    }

    pub(crate) fn matches(&self, address: &str) -> bool {
        self.0.iter().any(|pattern| route::pattern_matches(pattern, address))
    }

    /// A JSON array of globs that match at least what the patterns match, so that SQLite can skip most other messages.
    /// `None` if a glob matches everything.
    pub(crate) fn globs(&self) -> Option<String> {
        let globs: Vec<String> = self.0.iter().map(|pattern| glob(pattern)).collect();
        (!globs.iter().any(|glob| glob == "*")).then(|| serde_json::json!(globs).to_string())
    }
}

fn glob(pattern: &str) -> String {
    let mut glob = String::new();
    for (index, part) in pattern.split('.').enumerate() {
        if part == "**" {
            // `**` may match nothing at all, and then there is no dot before it.
            return glob + "*";
        }
        if index > 0 {
            glob.push('.');
        }
        if part == "*" {
            glob.push('*');
        } else {
            for letter in part.chars() {
                match letter {
                    '*' | '?' | '[' => glob.extend(['[', letter, ']']),
                    plain => glob.push(plain),
                }
            }
        }
    }
    glob
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_every_matching_address() {
        for (pattern, expected) in [
            ("**", "*"),
            ("orders", "orders"),
            ("orders.*", "orders.*"),
            ("orders.**", "orders*"),
            ("*.eu", "*.eu"),
            ("a*.[b]?", "a[*].[[]b][?]"),
        ] {
            assert_eq!(glob(pattern), expected);
        }
    }

    #[test]
    fn a_catch_all_group_needs_no_filter() {
        assert_eq!(AddressPatterns::new(vec!["a".into(), "**".into()]).globs(), None);
        assert_eq!(AddressPatterns::new(vec!["a".into()]).globs().as_deref(), Some(r#"["a"]"#));
    }

    #[test]
    fn one_matching_pattern_is_enough() {
        let patterns = AddressPatterns::new(vec!["a.*".into(), "b".into()]);
        assert!(patterns.matches("a.x") && patterns.matches("b"));
        assert!(!patterns.matches("a") && !patterns.matches("a.x.y"));
    }
}
