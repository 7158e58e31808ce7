//! Validates a topology before any request to the broker.

use std::collections::BTreeSet;

use super::{BindingTarget, ExchangeKind, QueueKind, Topology};
use crate::classify::Error;
use crate::config::NAME_BYTES_MAX;

/// The broker's limit for a time to live.
const RETRY_DELAY_MS_MAX: u128 = 4_294_967_295;

impl Topology {
    /// Rejects an invalid topology, with the reason.
    pub fn validate(&self) -> Result<(), Error> {
        self.validate_queues()?;
        let declarations = self.declarations();
        let exchanges = declarations.exchanges.iter().map(|exchange| exchange.name.as_str());
        validate_names("exchange", exchanges)?;
        validate_names("queue", declarations.queues.iter().map(|queue| queue.name.as_str()))?;
        validate_names("policy", declarations.policies.iter().map(|policy| policy.name.as_str()))?;
        self.validate_bindings()?;
        let mut names = declarations.bindings.iter().flat_map(|binding| {
            let (BindingTarget::Queue(to) | BindingTarget::Exchange(to)) = &binding.to;
            [&binding.key, &binding.exchange, to]
        });
        match names.find(|text| text.len() > NAME_BYTES_MAX) {
            Some(text) => Err(too_long(text)),
            None => Ok(()),
        }
    }

    fn validate_queues(&self) -> Result<(), Error> {
        for queue in &self.queues {
            if queue.name.is_empty() {
                return Err(without_name());
            }
            if let Some(lanes) = queue.lanes.filter(|lanes| !(1..=256).contains(lanes)) {
                return invalid(format!("queue `{}` has {lanes} lanes: 1 to 256 are possible", queue.name));
            }
            if queue.retry_delays.iter().any(|delay| !(1..=RETRY_DELAY_MS_MAX).contains(&delay.as_millis())) {
                return invalid(format!("queue `{}`: a retry delay is between 1 millisecond and 49 days", queue.name));
            }
            if queue.kind == QueueKind::Classic && queue.delivery_limit.is_some() {
                return invalid(format!("queue `{}` is classic: only quorum queues have a delivery limit", queue.name));
            }
        }
        Ok(())
    }

    fn validate_bindings(&self) -> Result<(), Error> {
        for binding in &self.bindings {
            let (BindingTarget::Queue(to) | BindingTarget::Exchange(to)) = &binding.to;
            if binding.exchange.is_empty() || to.is_empty() {
                return invalid(format!("binding of `{to}`: the default exchange accepts no bindings"));
            }
            let exchange = self.exchanges.iter().find(|exchange| exchange.name == binding.exchange);
            let kind = exchange.map_or(ExchangeKind::Topic, |exchange| exchange.kind);
            let ignores_key = matches!(kind, ExchangeKind::Fanout | ExchangeKind::Headers);
            let lanes = |name: &str| self.queues.iter().any(|queue| queue.name == name && queue.lanes.is_some());
            if let BindingTarget::Queue(queue) = &binding.to
                && ignores_key
                && lanes(queue)
            {
                return invalid(format!(
                    "binding of `{queue}` to `{}`: a {} exchange ignores the routing key, so every lane would get every \
                     message",
                    binding.exchange,
                    kind.as_str()
                ));
            }
        }
        Ok(())
    }
}

fn validate_names<'a>(what: &'static str, names: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let mut known = BTreeSet::new();
    for name in names {
        if name.is_empty() {
            return Err(without_name());
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(too_long(name));
        }
        if name.starts_with("amq.") {
            return invalid(format!("`{name}`: names that begin with `amq.` are reserved for the broker"));
        }
        if !known.insert(name) {
            return invalid(format!("the topology has two {what}s with the name `{name}`"));
        }
    }
    Ok(())
}

fn invalid(problem: String) -> Result<(), Error> {
    Err(Error::Config(problem))
}

fn without_name() -> Error {
    Error::Config("an exchange, a queue or a policy of the topology has no name".to_owned())
}

fn too_long(text: &str) -> Error {
    Error::Config(format!("`{text}` is longer than {NAME_BYTES_MAX} bytes"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::topology::{Binding, Exchange, Queue};

    fn topology_with(queues: Vec<Queue>) -> Topology {
        Topology { queues, ..Topology::default() }
    }

    /// Checks that a topology is refused, and that the error names these parts.
    #[track_caller]
    fn assert_refused(topology: &Topology, parts: &[&str]) {
        let problem = topology.validate().expect_err("it is invalid").to_string();
        assert!(parts.iter().all(|part| problem.contains(part)), "{problem}");
    }

    #[test]
    fn a_plain_topology_is_possible() {
        let topology = Topology {
            exchanges: vec![Exchange::new("orders")],
            queues: vec![Queue { lanes: Some(4), ..Queue::new("billing") }],
            bindings: vec![Binding::to_queue("orders", "order.*", "billing")],
            ..Topology::default()
        };
        assert!(topology.validate().is_ok());
    }

    #[test]
    fn invalid_names_are_reported() {
        assert_refused(&topology_with(vec![Queue::new("")]), &["has no name"]);
        assert_refused(&topology_with(vec![Queue::new("amq.x")]), &["`amq.x.dead`", "reserved"]);
        let long = "q".repeat(255);
        assert_refused(&topology_with(vec![Queue::new(&long)]), &[&format!("`{long}.dead`"), "longer than 255 bytes"]);
        assert_refused(&topology_with(vec![Queue::new("a"), Queue::new("a.dead")]), &["two queues", "`a.dead`"]);
        let bound = |exchange: &str, key: &str| Topology {
            bindings: vec![Binding::to_queue(exchange, key, "a")],
            ..Topology::default()
        };
        assert_refused(&bound("a", &"k".repeat(256)), &["longer than 255 bytes"]);
        assert_refused(&bound("", "a"), &["binding of `a`", "default exchange"]);
    }

    #[test]
    fn lanes_retry_delays_and_limits_have_bounds() {
        for lanes in [0, 257] {
            let queue = Queue { lanes: Some(lanes), ..Queue::new("a") };
            assert_refused(&topology_with(vec![queue]), &["queue `a`", &format!("{lanes} lanes")]);
        }
        let short = Queue { retry_delays: vec![Duration::from_micros(1)], ..Queue::new("a") };
        assert_refused(&topology_with(vec![short]), &["queue `a`", "retry delay"]);
        let classic = Queue { kind: QueueKind::Classic, delivery_limit: Some(1), ..Queue::new("a") };
        assert_refused(&topology_with(vec![classic]), &["queue `a`", "delivery limit"]);
    }

    #[test]
    fn lanes_need_an_exchange_that_uses_routing_keys() {
        let topology = Topology {
            exchanges: vec![Exchange { kind: ExchangeKind::Fanout, ..Exchange::new("all") }],
            queues: vec![Queue { lanes: Some(2), ..Queue::new("billing") }],
            bindings: vec![Binding::to_queue("all", "", "billing")],
            ..Topology::default()
        };
        assert_refused(&topology, &["`billing`", "`all`", "fanout"]);
    }
}
