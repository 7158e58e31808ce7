//! Checks, before any message exists, whether an address of a route can match a broker's pattern.

use std::collections::BTreeSet;

/// A route's configured address. `{topic}`, `{type}` and `{key}` match any text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressTemplate(Vec<TemplatePart>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TemplatePart {
    Char(char),
    Any,
}

/// One word of a broker's pattern. Dots separate the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternWord<'a> {
    /// Exactly this word.
    Literal(&'a str),
    /// Any one word.
    One,
    /// Zero or more words.
    ZeroOrMore,
    /// One or more words.
    OneOrMore,
}

/// A pattern as a list of characters and wildcards. Each word ends with a dot.
#[derive(Clone, Copy)]
enum Atom {
    Char(char),
    /// Any characters within one word.
    Inside,
    /// Whole words.
    Words,
}

impl AddressTemplate {
    /// Parses an address.
    pub fn new(address: &str) -> Self {
        let mut pieces = Vec::new();
        let mut rest = address;
        while let Some(first) = rest.chars().next() {
            let placeholder = ["{topic}", "{type}", "{key}"].into_iter().find(|name| rest.starts_with(name));
            pieces.push(placeholder.map_or(TemplatePart::Char(first), |_| TemplatePart::Any));
            rest = &rest[placeholder.map_or(first.len_utf8(), str::len)..];
        }
        Self(pieces)
    }

    /// Whether the address has no placeholders.
    pub fn is_fixed(&self) -> bool {
        !self.0.contains(&TemplatePart::Any)
    }

    /// Whether the address can be equal to this text.
    pub fn can_equal(&self, text: &str) -> bool {
        let atoms: Vec<Atom> = text.chars().chain(text.chars().next().map(|_| '.')).map(Atom::Char).collect();
        self.overlaps(&atoms)
    }

    /// Whether the address can match these pattern words. An empty text has no words.
    pub fn can_match(&self, words: &[PatternWord<'_>]) -> bool {
        let mut atoms = Vec::new();
        for word in words {
            match word {
                PatternWord::Literal(text) => {
                    atoms.extend(text.chars().map(Atom::Char));
                    atoms.push(Atom::Char('.'));
                }
                PatternWord::One => atoms.extend([Atom::Inside, Atom::Char('.')]),
                PatternWord::ZeroOrMore => atoms.push(Atom::Words),
                PatternWord::OneOrMore => atoms.extend([Atom::Inside, Atom::Char('.'), Atom::Words]),
            }
        }
        self.overlaps(&atoms)
    }

    /// Walks through the pattern and the template together. A state is a position in both, plus whether a pattern word
    /// has begun.
    fn overlaps(&self, atoms: &[Atom]) -> bool {
        let mut pieces = self.0.clone();
        if !pieces.is_empty() {
            pieces.push(TemplatePart::Char('.'));
        }
        let mut visited = BTreeSet::new();
        let mut states = vec![(0, false, 0)];
        while let Some((at, begun, piece)) = states.pop() {
            if !visited.insert((at, begun, piece)) {
                continue;
            }
            let (atom, tip) = (atoms.get(at).copied(), pieces.get(piece).copied());
            if atom.is_none() && tip.is_none() {
                return true;
            }
            if tip == Some(TemplatePart::Any) {
                states.push((at, begun, piece + 1));
            }
            match atom {
                Some(Atom::Inside) => states.push((at + 1, false, piece)),
                Some(Atom::Words) if !begun => states.push((at + 1, false, piece)),
                _ => {}
            }
            match (atom, tip) {
                (Some(Atom::Char(a)), Some(TemplatePart::Char(b))) if a == b => states.push((at + 1, false, piece + 1)),
                (Some(Atom::Char(_)), Some(TemplatePart::Any)) => states.push((at + 1, false, piece)),
                (Some(Atom::Inside), Some(TemplatePart::Char(b))) if b != '.' => states.push((at, false, piece + 1)),
                (Some(Atom::Words), Some(TemplatePart::Char(b))) => states.push((at, b != '.', piece + 1)),
                (Some(Atom::Words), Some(TemplatePart::Any)) => states.extend([(at, false, piece), (at, true, piece)]),
                _ => {}
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pattern: &str) -> Vec<PatternWord<'_>> {
        let word = |word| match word {
            "*" => PatternWord::One,
            "#" => PatternWord::ZeroOrMore,
            ">" => PatternWord::OneOrMore,
            text => PatternWord::Literal(text),
        };
        if pattern.is_empty() { Vec::new() } else { pattern.split('.').map(word).collect() }
    }

    #[test]
    fn fixed_addresses_match_as_at_a_broker() {
        let table = [
            ("a.b", "a.b", true),
            ("a.b", "a.*", true),
            ("a.b", "a.c", false),
            ("a.b", "a", false),
            ("a", "a.b", false),
            ("a", "a.#", true),
            ("a.b.c", "a.#", true),
            ("a.b.c", "#.c", true),
            ("a.b.c", "a.#.c", true),
            ("a.c", "a.#.c", true),
            ("ab.c", "a.#.c", false),
            ("ab", "a.#", false),
            ("a", "a.>", false),
            ("a.b.c", "a.>", true),
            ("", "", true),
            ("", "#", true),
            ("", "*", false),
            ("a", "", false),
            ("a.b", "*", false),
        ];
        for (address, pattern, expected) in table {
            assert_eq!(AddressTemplate::new(address).can_match(&words(pattern)), expected, "{address} {pattern}");
        }
    }

    #[test]
    fn placeholders_stand_for_any_text() {
        let table = [
            ("{topic}", "a.b.c", true),
            ("{topic}", "*", true),
            ("{topic}", "#", true),
            ("orders.{type}", "orders.*", true),
            ("orders.{type}", "orders.paid.eu", true),
            ("orders.{type}", "invoices.*", false),
            ("orders.{type}", "orders", false),
            ("o{type}", "orders.#", true),
            ("{topic}.3", "orders.*.3", true),
            ("{topic}.3", "orders.*.4", false),
            ("{topic}.eu.{key}", "*.eu.#", true),
            ("{topic}.eu.{key}", "*.us", false),
            ("{topics}", "a", false),
        ];
        for (address, pattern, expected) in table {
            assert_eq!(AddressTemplate::new(address).can_match(&words(pattern)), expected, "{address} {pattern}");
        }
    }

    #[test]
    fn whole_texts_are_compared() {
        assert!(AddressTemplate::new("a.b").can_equal("a.b"));
        assert!(!AddressTemplate::new("a.b").can_equal("a.bc"));
        assert!(AddressTemplate::new("{topic}.0").can_equal("orders.eu.0"));
        assert!(!AddressTemplate::new("{topic}.0").can_equal("orders.1"));
        assert!(AddressTemplate::new("").can_equal("") && !AddressTemplate::new("").can_equal("a"));
        assert!(AddressTemplate::new("a").is_fixed() && !AddressTemplate::new("{key}").is_fixed());
    }
}
