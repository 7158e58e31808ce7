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
pub(super) fn reachable_queues(seen: &ServerState, exchange: &str, key: &AddressTemplate) -> ReachableQueues {
    let mut queues = BTreeSet::new();
    let mut visited = BTreeSet::new();
    let mut open = vec![exchange.to_owned()];
    while let Some(exchange) = open.pop() {
        if !visited.insert(exchange.clone()) {
            continue;
        }
        if exchange.is_empty() {
            queues.extend(seen.queues.keys().filter(|name| key.can_equal(name)).cloned());
            continue;
        }
        let Some(found) = seen.exchanges.get(&exchange) else { continue };
        let mut certain = false;
        let of_it = seen.bindings.iter().filter(|binding| binding.source == exchange);
        for binding in of_it {
            let Some(sure) = binding_matches(found, binding, key) else { continue };
            certain |= sure;
            if binding.destination_type == "exchange" {
                open.push(binding.destination.clone());
            } else if seen.queues.contains_key(&binding.destination) {
                queues.insert(binding.destination.clone());
            }
        }
        // The alternate exchange gets messages without a matching binding.
        if let Some(alternate) = seen.alternate_exchange(found)
            && !certain
        {
            open.push(alternate.to_owned());
        }
    }
    visited.retain(|exchange| seen.exchanges.contains_key(exchange) && !exchange.is_empty());
    ReachableQueues { queues, exchanges: visited }
}

/// Whether a binding matches such messages: `None` for no message, `false` for some, `true` for all.
fn binding_matches(exchange: &ExchangeInfo, binding: &BindingInfo, key: &AddressTemplate) -> Option<bool> {
    let fits = match ExchangeKind::parse(&exchange.kind) {
        Some(ExchangeKind::Fanout) => return Some(true),
        // It depends on headers or on a plugin, so it cannot be known before the message exists.
        Some(ExchangeKind::Headers) | None => return Some(false),
        Some(ExchangeKind::Direct) => key.can_equal(&binding.routing_key),
        Some(ExchangeKind::Topic) => key.can_match(&words(&binding.routing_key)),
    };
    fits.then(|| key.is_fixed() || binding.routing_key == "#")
}

fn words(pattern: &str) -> Vec<PatternWord<'_>> {
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

    fn exchange(seen: &mut ServerState, name: &str, kind: &str, alternate: Option<&str>) {
        let arguments: BTreeMap<_, _> =
            alternate.iter().map(|name| ("alternate-exchange".to_owned(), json!(name))).collect();
        let (of, kind) = (name.to_owned(), kind.to_owned());
        let exchange = ExchangeInfo { name: of, kind, durable: true, arguments, ..ExchangeInfo::default() };
        seen.exchanges.insert(name.to_owned(), exchange);
    }

    fn bind(seen: &mut ServerState, from: &str, key: &str, to: &str, kind: &str) {
        if kind == "queue" {
            seen.queues.insert(to.to_owned(), QueueInfo { name: to.to_owned(), ..QueueInfo::default() });
        }
        seen.bindings.push(BindingInfo {
            source: from.to_owned(),
            destination: to.to_owned(),
            destination_type: kind.to_owned(),
            routing_key: key.to_owned(),
            arguments: BTreeMap::new(),
        });
    }

    fn queues(seen: &ServerState, exchange: &str, key: &str) -> Vec<String> {
        reachable_queues(seen, exchange, &AddressTemplate::new(key)).queues.into_iter().collect()
    }

    #[test]
    fn each_kind_of_exchange_routes_as_the_broker_does() {
        let mut seen = ServerState::default();
        for kind in ["topic", "direct", "fanout", "headers"] {
            exchange(&mut seen, kind, kind, None);
            bind(&mut seen, kind, "a.*", &format!("q-{kind}"), "queue");
        }
        assert_eq!(queues(&seen, "topic", "a.b"), ["q-topic"]);
        assert!(queues(&seen, "topic", "b").is_empty());
        assert!(queues(&seen, "direct", "a.b").is_empty());
        assert_eq!(queues(&seen, "direct", "a.*"), ["q-direct"]);
        assert_eq!(queues(&seen, "direct", "a.{type}"), ["q-direct"]);
        assert_eq!(queues(&seen, "fanout", "x"), ["q-fanout"]);
        assert_eq!(queues(&seen, "headers", "x"), ["q-headers"]);
        assert_eq!(queues(&seen, "", "q-topic"), ["q-topic"]);
        assert!(queues(&seen, "nowhere", "a.b").is_empty());
    }

    #[test]
    fn exchange_bindings_are_followed_even_in_a_cycle() {
        let mut seen = ServerState::default();
        exchange(&mut seen, "a", "topic", None);
        exchange(&mut seen, "b", "direct", None);
        bind(&mut seen, "a", "#", "b", "exchange");
        bind(&mut seen, "b", "k", "a", "exchange");
        assert!(queues(&seen, "a", "k").is_empty());
        bind(&mut seen, "b", "k", "q", "queue");
        assert_eq!(queues(&seen, "a", "k"), ["q"]);
        assert!(queues(&seen, "a", "other").is_empty());
    }

    #[test]
    fn the_alternate_exchange_gets_unmatched_messages() {
        let mut seen = ServerState::default();
        exchange(&mut seen, "a", "topic", Some("rest"));
        exchange(&mut seen, "rest", "fanout", None);
        bind(&mut seen, "a", "orders", "q", "queue");
        bind(&mut seen, "rest", "", "lost", "queue");
        assert_eq!(queues(&seen, "a", "orders"), ["q"]);
        assert_eq!(queues(&seen, "a", "other"), ["lost"]);
        assert_eq!(queues(&seen, "a", "{topic}"), ["lost", "q"]);
    }
}
