//! Header changes that a route applies to its messages.

use std::collections::BTreeMap;

use crate::message::Message;

/// Adds headers to a message and renames existing ones. The default changes nothing.
///
/// Headers of CloudEvents and Relevo never change, because receivers identify messages by them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderRules {
    /// Names and values of further headers. `{id}`, `{topic}`, `{type}`, `{key}` and `{header:NAME}` are replaced. A
    /// header whose value refers to a missing header of the message is omitted.
    pub add: BTreeMap<String, String>,
    /// New names for the message's own headers, by their old names.
    pub rename: BTreeMap<String, String>,
}

impl HeaderRules {
    /// Calls `put` for the renamed headers of the message, then for the added ones. Each name occurs once.
    pub fn for_each(&self, message: &Message, mut put: impl FnMut(&str, &str)) {
        for (name, value) in &message.headers {
            match self.rename.get(name) {
                Some(new) if !self.add.contains_key(new) => put(new, value),
                None if !self.add.contains_key(name) && !self.is_rename_target(name, message) => put(name, value),
                _ => {}
            }
        }
        for (name, template) in &self.add {
            if let Some(value) = fill(template, message) {
                put(name, &value);
            }
        }
    }

    /// Whether a renamed header of the message uses this name.
    fn is_rename_target(&self, name: &str, message: &Message) -> bool {
        self.rename.iter().any(|(old, new)| new == name && message.headers.contains_key(old))
    }
}

/// The placeholders in a header value, in addition to `{header:NAME}`.
pub const PLACEHOLDERS: [&str; 4] = ["{id}", "{topic}", "{type}", "{key}"];

/// Replaces the placeholders. Other text in braces stays unchanged.
fn fill(template: &str, message: &Message) -> Option<String> {
    let mut filled = String::with_capacity(template.len() + 32);
    let mut rest = template;
    while let Some(start) = rest.find('{') {
        let (before, tail) = rest.split_at(start);
        filled.push_str(before);
        let end = tail.find('}').map_or(tail.len(), |end| end + 1);
        match &tail[..end] {
            "{id}" => filled.push_str(&message.id.to_string()),
            "{topic}" => filled.push_str(&message.topic),
            "{type}" => filled.push_str(&message.kind),
            "{key}" => filled.push_str(&message.key),
            other => match other.strip_prefix("{header:").and_then(|name| name.strip_suffix('}')) {
                Some(name) => filled.push_str(message.headers.get(name)?),
                None => filled.push_str(other),
            },
        }
        rest = &tail[end..];
    }
    filled.push_str(rest);
    Some(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Draft;
    use crate::message::MessageId;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn apply_rules(rules: &HeaderRules, own: &[(&str, &str)]) -> Vec<(String, String)> {
        let draft = Draft { headers: map(own), ..Draft::json("orders", "o-1", "OrderPlaced", "") };
        let message = draft.into_message(MessageId::v7(0, [0; 10]), jiff::Timestamp::UNIX_EPOCH);
        let mut headers = Vec::new();
        rules.for_each(&message, |name, value| headers.push((name.to_owned(), value.to_owned())));
        headers
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn without_rules_headers_are_unchanged() {
        assert_eq!(apply_rules(&HeaderRules::default(), &[("b", "2"), ("a", "1")]), pairs(&[("a", "1"), ("b", "2")]));
    }

    #[test]
    fn added_headers_are_filled_from_the_message() {
        let add = map(&[("x-event-id", "{id}"), ("x-summary", "{type} of {topic}/{key} {other}{")]);
        let rules = HeaderRules { add, ..HeaderRules::default() };
        let id = "00000000-0000-7000-8000-000000000000";
        let summary = "OrderPlaced of orders/o-1 {other}{";
        assert_eq!(apply_rules(&rules, &[]), pairs(&[("x-event-id", id), ("x-summary", summary)]));
    }

    #[test]
    fn a_rule_that_needs_a_missing_header_is_skipped() {
        let rules = HeaderRules { add: map(&[("x-c", "{header:c}")]), ..HeaderRules::default() };
        assert_eq!(apply_rules(&rules, &[]), pairs(&[]));
        assert_eq!(apply_rules(&rules, &[("c", "7")]), pairs(&[("c", "7"), ("x-c", "7")]));
    }

    #[test]
    fn each_name_is_sent_once() {
        let rules = HeaderRules { add: map(&[("z", "added")]), rename: map(&[("a", "b"), ("y", "z")]) };
        let own = [("a", "renamed"), ("b", "own"), ("y", "renamed"), ("z", "own")];
        assert_eq!(apply_rules(&rules, &own), pairs(&[("b", "renamed"), ("z", "added")]));
        assert_eq!(apply_rules(&rules, &[("b", "own")]), pairs(&[("b", "own"), ("z", "added")]));
    }
}
