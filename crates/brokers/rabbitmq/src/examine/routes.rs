//! Computes where the broker would route a message, from its exchanges and bindings.

use std::collections::BTreeSet;

use relevo_core::address_template::{AddressTemplate, PatternWord};

use crate::management::{BindingInfo, ExchangeInfo, ServerState};
use crate::topology::ExchangeKind;

/// What a message can reach.
#[derive(Debug, Default)]
pub(super) struct ReachableQueues {
    pub(super) queues: BTreeSet<String>,
    /// The exchanges on the way, including the first. The default exchange has no name and is left out.
    pub(super) exchanges: BTreeSet<String>,
}

/// What a message with a matching routing key can reach from this exchange.
pub(super) fn reachable_queues(server: &ServerState, exchange: &str, key: &AddressTemplate) -> ReachableQueues {
    let mut queues = BTreeSet::new();
    let mut visited = BTreeSet::new();
    let mut open = vec![exchange.to_owned()];
    while let Some(exchange) = open.pop() {
        if !visited.insert(exchange.clone()) {
            continue;
        }
        if exchange.is_empty() {
            queues.extend(server.queues.keys().filter(|name| key.can_equal(name)).cloned());
            continue;
        }
        let Some(existing) = server.exchanges.get(&exchange) else { continue };
        let mut certain = false;
        for binding in server.bindings.iter().filter(|binding| binding.source == exchange) {
            let Some(matches_all) = binding_matches(existing, binding, key) else { continue };
            certain |= matches_all;
            if binding.destination_type == "exchange" {
                open.push(binding.destination.clone());
            } else if server.queues.contains_key(&binding.destination) {
                queues.insert(binding.destination.clone());
            }
        }
        // The alternate exchange gets messages without a matching binding.
        if let Some(alternate) = server.alternate_exchange(existing)
            && !certain
        {
            open.push(alternate.to_owned());
        }
    }
    visited.retain(|exchange| server.exchanges.contains_key(exchange) && !exchange.is_empty());
    ReachableQueues { queues, exchanges: visited }
}

/// Whether a binding matches such messages: `None` for no message, `false` for some, `true` for all.
fn binding_matches(exchange: &ExchangeInfo, binding: &BindingInfo, key: &AddressTemplate) -> Option<bool> {
    let matches = match ExchangeKind::parse(&exchange.kind) {
        Some(ExchangeKind::Fanout) => return Some(true),
        // It depends on headers or on a plugin, so it cannot be known before the message exists.
        Some(ExchangeKind::Headers) | None => return Some(false),
        Some(ExchangeKind::Direct) => key.can_equal(&binding.routing_key),
        Some(ExchangeKind::Topic) => key.can_match(&words(&binding.routing_key)),
    };
    matches.then(|| key.is_fixed() || binding.routing_key == "#")
}

/// The words of a binding's routing key at a topic exchange.
pub(crate) fn words(pattern: &str) -> Vec<PatternWord<'_>> {
    let word = |word| match word {
        "*" => PatternWord::One,
        "#" => PatternWord::ZeroOrMore,
        text => PatternWord::Literal(text),
    };
    if pattern.is_empty() { Vec::new() } else { pattern.split('.').map(word).collect() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::management::QueueInfo;

    fn exchange(server: &mut ServerState, name: &str, kind: &str, alternate: Option<&str>) {
        let arguments: BTreeMap<_, _> =
            alternate.iter().map(|name| ("alternate-exchange".to_owned(), json!(name))).collect();
        let (of, kind) = (name.to_owned(), kind.to_owned());
        let exchange = ExchangeInfo { name: of, kind, durable: true, arguments, ..ExchangeInfo::default() };
        server.exchanges.insert(name.to_owned(), exchange);
    }

    fn bind(server: &mut ServerState, from: &str, key: &str, to: &str, kind: &str) {
        if kind == "queue" {
            server.queues.insert(to.to_owned(), QueueInfo { name: to.to_owned(), ..QueueInfo::default() });
        }
        server.bindings.push(BindingInfo {
            source: from.to_owned(),
            destination: to.to_owned(),
            destination_type: kind.to_owned(),
            routing_key: key.to_owned(),
            arguments: BTreeMap::new(),
        });
    }

    fn queues(server: &ServerState, exchange: &str, key: &str) -> Vec<String> {
        reachable_queues(server, exchange, &AddressTemplate::new(key)).queues.into_iter().collect()
    }

    #[test]
    fn each_kind_of_exchange_routes_as_the_broker_does() {
        let mut server = ServerState::default();
        for kind in ["topic", "direct", "fanout", "headers"] {
            exchange(&mut server, kind, kind, None);
            bind(&mut server, kind, "a.*", &format!("q-{kind}"), "queue");
        }
        assert_eq!(queues(&server, "topic", "a.b"), ["q-topic"]);
        assert!(queues(&server, "topic", "b").is_empty());
        assert!(queues(&server, "direct", "a.b").is_empty());
        assert_eq!(queues(&server, "direct", "a.*"), ["q-direct"]);
        assert_eq!(queues(&server, "direct", "a.{type}"), ["q-direct"]);
        assert_eq!(queues(&server, "fanout", "x"), ["q-fanout"]);
        assert_eq!(queues(&server, "headers", "x"), ["q-headers"]);
        assert_eq!(queues(&server, "", "q-topic"), ["q-topic"]);
        assert!(queues(&server, "nowhere", "a.b").is_empty());
    }

    #[test]
    fn exchange_bindings_are_followed_even_in_a_cycle() {
        let mut server = ServerState::default();
        exchange(&mut server, "a", "topic", None);
        exchange(&mut server, "b", "direct", None);
        bind(&mut server, "a", "#", "b", "exchange");
        bind(&mut server, "b", "k", "a", "exchange");
        assert!(queues(&server, "a", "k").is_empty());
        bind(&mut server, "b", "k", "q", "queue");
        assert_eq!(queues(&server, "a", "k"), ["q"]);
        assert!(queues(&server, "a", "other").is_empty());
    }

    #[test]
    fn the_alternate_exchange_gets_unmatched_messages() {
        let mut server = ServerState::default();
        exchange(&mut server, "a", "topic", Some("rest"));
        exchange(&mut server, "rest", "fanout", None);
        bind(&mut server, "a", "orders", "q", "queue");
        bind(&mut server, "rest", "", "lost", "queue");
        assert_eq!(queues(&server, "a", "orders"), ["q"]);
        assert_eq!(queues(&server, "a", "other"), ["lost"]);
        assert_eq!(queues(&server, "a", "{topic}"), ["lost", "q"]);
    }
}
