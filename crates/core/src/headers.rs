//! What a route changes in the headers that its messages travel with.

use std::collections::BTreeMap;

use crate::message::Message;

/// Headers beside a message's own, and other names for those. The default changes nothing.
///
/// What CloudEvents and Relevo send under their own names stays as it is: receivers know messages by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderRules {
    /// Names and values of further headers. `{id}`, `{topic}`, `{type}`, `{key}` and `{header:NAME}` are replaced; a value
    /// that asks for a header that the message has not got is left out.
    pub add: BTreeMap<String, String>,
    /// New names of the writer's own headers, by their old ones.
    pub rename: BTreeMap<String, String>,
}

impl HeaderRules {
    /// Calls `put` with the writer's headers as these rules have them, and then with those that they add: each name once.
    pub fn for_each(&self, message: &Message, mut put: impl FnMut(&str, &str)) {
        for (name, value) in &message.headers {
            match self.rename.get(name) {
                Some(new) if !self.add.contains_key(new) => put(new, value),
                None if !self.add.contains_key(name) && !self.is_taken(name, message) => put(name, value),
                _ => {}
            }
        }
        for (name, template) in &self.add {
            if let Some(value) = fill(template, message) {
                put(name, &value);
            }
        }
    }

    /// Whether another of the message's headers gets this name.
    fn is_taken(&self, name: &str, message: &Message) -> bool {
        self.rename.iter().any(|(old, new)| new == name && message.headers.contains_key(old))
    }
}

/// The placeholders of a header's value, beside `{header:NAME}`.
pub const PLACEHOLDERS: [&str; 4] = ["{id}", "{topic}", "{type}", "{key}"];

/// The template with its placeholders replaced; whatever else stands in braces stays as it is.
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
    use bytes::Bytes;

    use super::*;
    use crate::message::{Headers, MessageId};

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn sent(rules: &HeaderRules, own: &[(&str, &str)]) -> Vec<(String, String)> {
        let message = Message {
            id: MessageId::v7(0, [0; 10]),
            kind: "OrderPlaced".into(),
            key: "o-1".into(),
            topic: "orders".into(),
            payload: Bytes::new(),
            content_type: "application/json".into(),
            headers: map(own) as Headers,
            created_at: jiff::Timestamp::UNIX_EPOCH,
        };
        let mut headers = Vec::new();
        rules.for_each(&message, |name, value| headers.push((name.to_owned(), value.to_owned())));
        headers
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn without_rules_headers_stay_as_they_are() {
        assert_eq!(sent(&HeaderRules::default(), &[("b", "2"), ("a", "1")]), pairs(&[("a", "1"), ("b", "2")]));
    }

    #[test]
    fn headers_are_added_with_what_the_message_has() {
        let add = map(&[("x-event-id", "{id}"), ("x-what", "{type} of {topic}/{key} {other}{")]);
        let rules = HeaderRules { add, ..HeaderRules::default() };
        let id = "00000000-0000-7000-8000-000000000000";
        let what = "OrderPlaced of orders/o-1 {other}{";
        assert_eq!(sent(&rules, &[]), pairs(&[("x-event-id", id), ("x-what", what)]));
    }

    #[test]
    fn one_that_asks_for_a_missing_header_is_left_out() {
        let rules = HeaderRules { add: map(&[("x-c", "{header:c}")]), ..HeaderRules::default() };
        assert_eq!(sent(&rules, &[]), pairs(&[]));
        assert_eq!(sent(&rules, &[("c", "7")]), pairs(&[("c", "7"), ("x-c", "7")]));
    }

    #[test]
    fn each_name_is_sent_once() {
        let rules = HeaderRules { add: map(&[("z", "added")]), rename: map(&[("a", "b"), ("y", "z")]) };
        let own = [("a", "renamed"), ("b", "own"), ("y", "renamed"), ("z", "own")];
        assert_eq!(sent(&rules, &own), pairs(&[("b", "renamed"), ("z", "added")]));
        assert_eq!(sent(&rules, &[("b", "own")]), pairs(&[("b", "own"), ("z", "added")]));
    }
}
