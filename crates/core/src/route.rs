//! Routes map messages to broker addresses.

use std::sync::Arc;

use crate::header_rules::HeaderRules;
use crate::message::Message;
use crate::retry::RetryPolicy;

crate::text_enum! {
    /// The treatment of a key after one of its messages is dead-lettered.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum AfterDead {
        /// The key waits until an operator redrives or discards the message. This keeps the order.
        #[default]
        Hold = "hold",
        /// The key continues without the message. Order is no longer guaranteed for this key.
        Continue = "continue",
    }
}

/// One rule: which messages it matches, their address, and their retry policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The route's name in metrics and errors.
    pub name: String,
    /// The topics it matches. Dots separate segments. `*` matches one segment; `**` at the end matches the rest.
    pub topic: String,
    /// The types it matches, with the same patterns.
    pub kind: String,
    /// The broker's address. `{topic}`, `{type}` and `{key}` are replaced.
    pub address: String,
    /// The header changes.
    pub headers: Arc<HeaderRules>,
    /// When messages are retried and dead-lettered.
    pub policy: RetryPolicy,
    /// The treatment of the key of a dead-lettered message.
    pub after_dead: AfterDead,
}

impl Route {
    /// A route that publishes every message to the address named like its topic.
    pub fn catch_all() -> Self {
        Self {
            name: "everything".to_owned(),
            topic: "**".to_owned(),
            kind: "**".to_owned(),
            address: "{topic}".to_owned(),
            headers: Arc::default(),
            policy: RetryPolicy::default(),
            after_dead: AfterDead::default(),
        }
    }

    /// Whether the route matches the message.
    pub fn matches(&self, message: &Message) -> bool {
        pattern_matches(&self.topic, &message.topic) && pattern_matches(&self.kind, &message.kind)
    }

    /// The address of this message.
    pub fn address_of(&self, message: &Message) -> Arc<str> {
        self.fill_address([("{topic}", &message.topic), ("{type}", &message.kind), ("{key}", &message.key)]).into()
    }

    /// The same address with `{key}` in place of the key, for outputs that must not contain keys. `None` if the address
    /// has no key.
    pub fn address_without_key(&self, message: &Message) -> Option<Arc<str>> {
        let has_key = self.address.contains("{key}");
        has_key.then(|| {
            self.fill_address([("{topic}", &message.topic), ("{type}", &message.kind), ("{key}", "{key}")]).into()
        })
    }

    /// The address before any message exists, with the fixed parts of the patterns filled in. For topics
    /// `invoices.*.eu`, `{topic}` becomes `invoices.{topic}.eu`. The remaining placeholders match any text.
    pub fn address_template(&self) -> String {
        let (topic, kind) = (pattern_as_template(&self.topic, "{topic}"), pattern_as_template(&self.kind, "{type}"));
        self.fill_address([("{topic}", &topic), ("{type}", &kind), ("{key}", "{key}")])
    }

    fn fill_address(&self, known: [(&str, &str); 3]) -> String {
        let mut address = String::with_capacity(self.address.len() + 16);
        let mut rest = self.address.as_str();
        while let Some(start) = rest.find('{') {
            let (before, tail) = rest.split_at(start);
            address.push_str(before);
            if let Some((name, value)) = known.into_iter().find(|(name, _)| tail.starts_with(name)) {
                address.push_str(value);
                rest = &tail[name.len()..];
            } else {
                address.push('{');
                rest = &tail[1..];
            }
        }
        address.push_str(rest);
        address
    }
}

/// A pattern as text, with the placeholder in place of each wildcard.
fn pattern_as_template(pattern: &str, placeholder: &str) -> String {
    let mut template = String::new();
    for word in pattern.split('.') {
        // `**` may match no segment, so no dot precedes it.
        if !template.is_empty() && word != "**" {
            template.push('.');
        }
        template.push_str(if matches!(word, "*" | "**") { placeholder } else { word });
        if word == "**" {
            break;
        }
    }
    template
}

/// The routes of a destination. The first match wins.
#[derive(Clone, Debug, PartialEq)]
pub struct Routes(Vec<Arc<Route>>);

impl Routes {
    /// Creates a list of routes. They are tried in this order.
    pub fn new(routes: Vec<Route>) -> Self {
        Self(routes.into_iter().map(Arc::new).collect())
    }

    /// The routes, in the order in which they are tried.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.0.iter().map(|route| &**route)
    }

    /// The first matching route. A message without a route is not published to this destination.
    pub fn find(&self, message: &Message) -> Option<&Arc<Route>> {
        self.0.iter().find(|route| route.matches(message))
    }
}

impl Default for Routes {
    fn default() -> Self {
        Self::new(vec![Route::catch_all()])
    }
}

/// Whether dot-separated text matches a pattern. `*` matches one segment; `**` matches the rest.
pub fn pattern_matches(pattern: &str, text: &str) -> bool {
    if pattern == "**" {
        return true;
    }
    let mut segments = text.split('.');
    for part in pattern.split('.') {
        if part == "**" {
            return true;
        }
        match segments.next() {
            Some(segment) if part == "*" || part == segment => {}
            _ => return false,
        }
    }
    segments.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address_template::AddressTemplate;
    use crate::draft::Draft;
    use crate::message::MessageId;
    use proptest::prelude::*;

    fn message(topic: &str, kind: &str) -> Message {
        let draft = Draft::json(topic, "k", kind, "");
        draft.into_message(MessageId::v7(0, [0; 10]), jiff::Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn patterns_match_segment_by_segment() {
        for (pattern, text, expected) in [
            ("orders", "orders", true),
            ("orders", "orders.eu", false),
            ("orders.*", "orders.eu", true),
            ("orders.*", "orders", false),
            ("orders.*", "orders.eu.es", false),
            ("orders.**", "orders.eu.es", true),
            ("orders.**", "orders", true),
            ("*.eu", "orders.eu", true),
            ("**", "anything.at.all", true),
            ("ord*", "orders", false),
        ] {
            assert_eq!(pattern_matches(pattern, text), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn the_first_matching_route_wins() {
        let named = |name: &str, topic: &str| Route { name: name.into(), topic: topic.into(), ..Route::catch_all() };
        let routes = Routes::new(vec![named("a", "orders.*"), named("b", "orders.**")]);
        assert_eq!(routes.find(&message("orders.eu", "T")).map(|route| route.name.as_str()), Some("a"));
        assert_eq!(routes.find(&message("orders.eu.es", "T")).map(|route| route.name.as_str()), Some("b"));
        assert_eq!(routes.find(&message("invoices", "T")), None);
    }

    #[test]
    fn placeholders_are_replaced_once() {
        let route = Route { address: "x.{topic}.{type}/{key}{other}{".into(), ..Route::catch_all() };
        assert_eq!(&*route.address_of(&message("{type}", "T")), "x.{type}.T/k{other}{");
    }

    #[test]
    fn an_address_template_contains_the_literals_of_its_patterns() {
        for (topic, kind, address, expected) in [
            ("**", "**", "shop/{topic}.{type}.{key}", "shop/{topic}.{type}.{key}"),
            ("orders.eu", "Placed", "{topic}.{type}", "orders.eu.Placed"),
            ("invoices.**", "**", "{topic}", "invoices{topic}"),
            ("invoices.*.eu", "**", "x.{topic}", "x.invoices.{topic}.eu"),
            ("*.eu", "**", "{topic}", "{topic}.eu"),
            ("{type}", "T", "{topic}", "{type}"),
            ("orders", "**", "audit", "audit"),
        ] {
            let route = Route { topic: topic.into(), kind: kind.into(), address: address.into(), ..Route::catch_all() };
            assert_eq!(route.address_template(), expected, "{topic} {kind} {address}");
        }
    }

    proptest! {
        #[test]
        fn every_address_of_a_route_can_equal_its_template(
            pattern in "([ab]|\\*)(\\.([ab]|\\*)){0,2}(\\.\\*\\*)?",
            topic in "[ab](\\.[ab]){0,4}",
        ) {
            let route = Route { topic: pattern, address: "x.{topic}.{key}".into(), ..Route::catch_all() };
            let message = message(&topic, "T");
            if route.matches(&message) {
                let address = route.address_of(&message);
                prop_assert!(AddressTemplate::new(&route.address_template()).can_equal(&address), "{} {address}", route.address_template());
            }
        }

        #[test]
        fn a_topic_matches_itself_and_the_pattern_for_all(topic in "[a-z]{1,8}(\\.[a-z]{1,8}){0,4}") {
            prop_assert!(pattern_matches(&topic, &topic));
            prop_assert!(pattern_matches("**", &topic));
            let longer = topic.clone() + ".more";
            prop_assert!(!pattern_matches(&longer, &topic));
        }
    }
}
