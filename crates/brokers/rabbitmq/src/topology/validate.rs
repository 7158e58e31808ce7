//! Validates a topology before any request to the broker.

use std::collections::BTreeSet;

use super::{BindingTarget, ExchangeKind, QueueKind, Topology};

/// Names and routing keys are short strings in AMQP.
const NAME_BYTES_MAX: usize = 255;
/// The broker's limit for a time to live.
const RETRY_DELAY_MS_MAX: u128 = 4_294_967_295;

/// Why a topology is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// An exchange, a queue or a policy has no name.
    #[error("an exchange, a queue or a policy of the topology has no name")]
    Nameless,
    /// A name or key is too long.
    #[error("`{0}` is longer than 255 bytes")]
    TooLong(String),
    /// A name starts with the prefix that the broker reserves.
    #[error("`{0}`: names that begin with `amq.` are the broker's own")]
    Reserved(String),
    /// Two objects would have the same name. The names of lanes, retry queues and dead-letter queues count too.
    #[error("two {what}s of the topology are called `{name}`")]
    Twice {
        /// The type of the objects.
        what: &'static str,
        /// The common name.
        name: String,
    },
    /// The number of lanes is zero or too high.
    #[error("queue `{queue}` has {lanes} lanes: 1 to 256 are possible")]
    Lanes {
        /// The name of the queue.
        queue: String,
        /// The number of lanes.
        lanes: u16,
    },
    /// A retry delay is too short or too long.
    #[error("queue `{0}`: a rung of the retry ladder lasts from 1 millisecond to 49 days")]
    Rung(String),
    /// A classic queue has no delivery limit.
    #[error("queue `{0}` is classic: only quorum queues have a delivery limit")]
    NoDeliveryLimit(String),
    /// An exchange that ignores routing keys cannot choose a lane.
    #[error(
        "binding of `{queue}` to `{exchange}`: a {kind} exchange does not look at the routing key, so every lane would get every message"
    )]
    NoLanes {
        /// The queue with lanes.
        queue: String,
        /// The exchange.
        exchange: String,
        /// The type of the exchange.
        kind: &'static str,
    },
    /// The default exchange accepts no bindings.
    #[error("binding of `{0}`: everything is bound to the default exchange by its own name, and by nothing else")]
    DefaultExchange(String),
}

impl Topology {
    /// Rejects an invalid topology, with the reason.
    pub fn validate(&self) -> Result<(), Wrong> {
        self.validate_queues()?;
        let declared = self.declarations();
        let exchanges = declared.exchanges.iter().map(|exchange| exchange.name.as_str());
        validate_names("exchange", exchanges)?;
        validate_names("queue", declared.queues.iter().map(|queue| queue.name.as_str()))?;
        validate_names("policy", declared.policies.iter().map(|policy| policy.name.as_str()))?;
        self.validate_bindings()?;
        let short = declared.bindings.iter().flat_map(|binding| {
            let (BindingTarget::Queue(to) | BindingTarget::Exchange(to)) = &binding.to;
            [&binding.key, &binding.exchange, to].into_iter().chain(binding.arguments.keys())
        });
        match short.into_iter().find(|text| text.len() > NAME_BYTES_MAX) {
            Some(text) => Err(Wrong::TooLong(text.clone())),
            None => Ok(()),
        }
    }

    fn validate_queues(&self) -> Result<(), Wrong> {
        for queue in &self.queues {
            if queue.name.is_empty() {
                return Err(Wrong::Nameless);
            }
            if let Some(lanes) = queue.lanes.filter(|lanes| !(1..=256).contains(lanes)) {
                return Err(Wrong::Lanes { queue: queue.name.clone(), lanes });
            }
            if queue.retry_delays.iter().any(|rung| !(1..=RETRY_DELAY_MS_MAX).contains(&rung.as_millis())) {
                return Err(Wrong::Rung(queue.name.clone()));
            }
            if queue.kind == QueueKind::Classic && queue.delivery_limit.is_some() {
                return Err(Wrong::NoDeliveryLimit(queue.name.clone()));
            }
        }
        Ok(())
    }

    fn validate_bindings(&self) -> Result<(), Wrong> {
        for binding in &self.bindings {
            let (BindingTarget::Queue(to) | BindingTarget::Exchange(to)) = &binding.to;
            if binding.exchange.is_empty() || to.is_empty() {
                return Err(Wrong::DefaultExchange(to.clone()));
            }
            let exchange = self.exchanges.iter().find(|exchange| exchange.name == binding.exchange);
            let kind = exchange.map_or(ExchangeKind::Topic, |exchange| exchange.kind);
            let blind = matches!(kind, ExchangeKind::Fanout | ExchangeKind::Headers);
            let lanes = |name: &str| self.queues.iter().any(|queue| queue.name == name && queue.lanes.is_some());
            if let BindingTarget::Queue(queue) = &binding.to
                && blind
                && lanes(queue)
            {
                let (queue, exchange) = (queue.clone(), binding.exchange.clone());
                return Err(Wrong::NoLanes { queue, exchange, kind: kind.as_str() });
            }
        }
        Ok(())
    }
}

fn validate_names<'a>(what: &'static str, names: impl Iterator<Item = &'a str>) -> Result<(), Wrong> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() {
            return Err(Wrong::Nameless);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(Wrong::TooLong(name.to_owned()));
        }
        if name.starts_with("amq.") {
            return Err(Wrong::Reserved(name.to_owned()));
        }
        if !seen.insert(name) {
            return Err(Wrong::Twice { what, name: name.to_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::topology::{Binding, Exchange, Queue};

    fn topology_with(queues: Vec<Queue>) -> Topology {
        Topology { queues, ..Topology::default() }
    }

    #[test]
    fn a_plain_topology_is_possible() {
        let topology = Topology {
            exchanges: vec![Exchange::new("orders")],
            queues: vec![Queue { lanes: Some(4), ..Queue::new("billing") }],
            bindings: vec![Binding::to_queue("orders", "order.*", "billing")],
            ..Topology::default()
        };
        assert_eq!(topology.validate(), Ok(()));
    }

    #[test]
    fn invalid_names_are_reported() {
        assert_eq!(topology_with(vec![Queue::new("")]).validate(), Err(Wrong::Nameless));
        assert_eq!(topology_with(vec![Queue::new("amq.x")]).validate(), Err(Wrong::Reserved("amq.x.dead".to_owned())));
        let long = "q".repeat(255);
        assert_eq!(topology_with(vec![Queue::new(&long)]).validate(), Err(Wrong::TooLong(format!("{long}.dead"))));
        let twice = Wrong::Twice { what: "queue", name: "a.dead".to_owned() };
        assert_eq!(topology_with(vec![Queue::new("a"), Queue::new("a.dead")]).validate(), Err(twice));
        let mut by_header = Binding::to_queue("a", "", "a");
        by_header.headers.insert("h".repeat(256), "x".to_owned());
        let bound = Topology { bindings: vec![by_header], ..Topology::default() };
        assert_eq!(bound.validate(), Err(Wrong::TooLong("h".repeat(256))));
        let bound = Topology { bindings: vec![Binding::to_queue("", "a", "a")], ..Topology::default() };
        assert_eq!(bound.validate(), Err(Wrong::DefaultExchange("a".to_owned())));
    }

    #[test]
    fn lanes_retry_delays_and_limits_have_bounds() {
        let none = Queue { lanes: Some(0), ..Queue::new("a") };
        assert_eq!(topology_with(vec![none]).validate(), Err(Wrong::Lanes { queue: "a".to_owned(), lanes: 0 }));
        let short = Queue { retry_delays: vec![Duration::from_micros(1)], ..Queue::new("a") };
        assert_eq!(topology_with(vec![short]).validate(), Err(Wrong::Rung("a".to_owned())));
        let classic = Queue { kind: QueueKind::Classic, delivery_limit: Some(1), ..Queue::new("a") };
        assert_eq!(topology_with(vec![classic]).validate(), Err(Wrong::NoDeliveryLimit("a".to_owned())));
    }

    #[test]
    fn lanes_need_an_exchange_that_uses_routing_keys() {
        let topology = Topology {
            exchanges: vec![Exchange { kind: ExchangeKind::Fanout, ..Exchange::new("all") }],
            queues: vec![Queue { lanes: Some(2), ..Queue::new("billing") }],
            bindings: vec![Binding::to_queue("all", "", "billing")],
            ..Topology::default()
        };
        let wrong = Wrong::NoLanes { queue: "billing".to_owned(), exchange: "all".to_owned(), kind: "fanout" };
        assert_eq!(topology.validate(), Err(wrong));
    }
}
