//! The declarations of a topology: each exchange, queue and binding with its name and all its arguments.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Binding, BindingTarget, Exchange, Policy, Queue, QueueKind, Topology};

/// The arguments of a declaration, by their AMQP names.
pub(crate) type Arguments = BTreeMap<String, Value>;

/// The declarations of a topology, in the order of creation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declarations {
    /// The exchanges.
    pub exchanges: Vec<ExchangeDeclaration>,
    /// The queues. A dead-letter queue comes before the queues that use it.
    pub queues: Vec<QueueDeclaration>,
    /// The bindings.
    pub bindings: Vec<BindingDeclaration>,
    /// The policies.
    pub policies: Vec<Policy>,
}

/// One exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeDeclaration {
    /// The name.
    pub name: String,
    /// The exchange type in AMQP.
    pub kind: &'static str,
    /// The arguments.
    pub arguments: Arguments,
    /// Whether only `exchange` of the configuration names it. It is created if it is missing, and any existing exchange
    /// of this name is accepted.
    pub implied: bool,
}

/// One queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueDeclaration {
    /// The name.
    pub name: String,
    /// The arguments, including the queue type.
    pub arguments: Arguments,
    /// Whether consumers read from it. A retry queue or dead-letter queue is not consumed.
    pub consumed: bool,
}

/// One binding.
#[derive(Clone, Debug, PartialEq)]
pub struct BindingDeclaration {
    /// The source exchange.
    pub exchange: String,
    /// The destination. A lane is its own queue here.
    pub to: BindingTarget,
    /// The routing key.
    pub key: String,
}

impl Topology {
    /// All declarations.
    pub fn declarations(&self) -> Declarations {
        Declarations {
            exchanges: self.exchanges.iter().map(Exchange::declaration).collect(),
            queues: self.queues.iter().flat_map(Queue::declarations).collect(),
            bindings: self.bindings.iter().flat_map(|binding| binding.declarations(&self.queues)).collect(),
            policies: self.policies.clone(),
        }
    }
}

impl Declarations {
    /// Adds the exchange that addresses use by default, unless the topology or the broker itself declares it.
    pub(crate) fn imply_exchange(&mut self, name: &str) {
        let is_declared = self.exchanges.iter().any(|exchange| exchange.name == name);
        if !name.is_empty() && !name.starts_with("amq.") && !is_declared {
            let exchange = Exchange::new(name).declaration();
            self.exchanges.push(ExchangeDeclaration { implied: true, ..exchange });
        }
    }
}

impl Exchange {
    fn declaration(&self) -> ExchangeDeclaration {
        let alternate = self.alternate.iter().map(|name| ("alternate-exchange".to_owned(), json!(name)));
        ExchangeDeclaration {
            name: self.name.clone(),
            kind: self.kind.as_str(),
            arguments: alternate.collect(),
            implied: false,
        }
    }
}

impl Queue {
    /// The queues that this one consists of.
    pub fn declarations(&self) -> Vec<QueueDeclaration> {
        let mut queues = Vec::new();
        if let Some(name) = self.dead_letter_queue.clone() {
            let arguments = Arguments::from([("x-queue-type".to_owned(), json!("quorum"))]);
            queues.push(QueueDeclaration { name, arguments: self.with_group_size(arguments), consumed: false });
        }
        for name in self.consumed_queues() {
            let retries: Vec<_> = self.retry_delays.iter().map(|delay| self.retry_declaration(&name, *delay)).collect();
            queues.push(QueueDeclaration { name, arguments: self.consumed_arguments(), consumed: true });
            queues.extend(retries);
        }
        queues
    }

    fn consumed_arguments(&self) -> Arguments {
        let mut arguments = Arguments::from([("x-queue-type".to_owned(), json!(self.kind.as_str()))]);
        if self.is_ordered() {
            arguments.insert("x-single-active-consumer".to_owned(), json!(true));
        }
        if let Some(name) = &self.dead_letter_queue {
            arguments.insert("x-dead-letter-exchange".to_owned(), json!(""));
            arguments.insert("x-dead-letter-routing-key".to_owned(), json!(name));
        }
        // At-least-once dead-lettering needs `reject-publish`; without it the broker silently uses at-most-once.
        if self.dead_letter_queue.is_some() && self.kind == QueueKind::Quorum {
            arguments.insert("x-dead-letter-strategy".to_owned(), json!("at-least-once"));
            arguments.insert("x-overflow".to_owned(), json!("reject-publish"));
        }
        let limits = [("x-max-length", self.max_length), ("x-max-length-bytes", self.max_length_bytes)];
        for (name, limit) in limits {
            if let Some(limit) = limit {
                arguments.insert(name.to_owned(), json!(limit));
                arguments.insert("x-overflow".to_owned(), json!("reject-publish"));
            }
        }
        if let Some(limit) = self.delivery_limit {
            arguments.insert("x-delivery-limit".to_owned(), json!(limit));
        }
        if self.kind == QueueKind::Quorum { self.with_group_size(arguments) } else { arguments }
    }

    /// A retry queue: a message returns to `queue` when its delay ends.
    fn retry_declaration(&self, queue: &str, delay: Duration) -> QueueDeclaration {
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        let arguments = Arguments::from([
            ("x-queue-type".to_owned(), json!("quorum")),
            ("x-message-ttl".to_owned(), json!(delay_ms)),
            ("x-dead-letter-exchange".to_owned(), json!("")),
            ("x-dead-letter-routing-key".to_owned(), json!(queue)),
            ("x-dead-letter-strategy".to_owned(), json!("at-least-once")),
            ("x-overflow".to_owned(), json!("reject-publish")),
        ]);
        QueueDeclaration {
            name: retry_queue_name(queue, delay),
            arguments: self.with_group_size(arguments),
            consumed: false,
        }
    }

    fn with_group_size(&self, mut arguments: Arguments) -> Arguments {
        if let Some(size) = self.quorum_initial_group_size {
            arguments.insert("x-quorum-initial-group-size".to_owned(), json!(size));
        }
        arguments
    }
}

impl Binding {
    fn declarations(&self, queues: &[Queue]) -> Vec<BindingDeclaration> {
        let lanes = match &self.to {
            BindingTarget::Queue(name) => queues.iter().find(|queue| queue.name == *name).and_then(|queue| queue.lanes),
            BindingTarget::Exchange(_) => None,
        };
        let (Some(lanes), BindingTarget::Queue(name)) = (lanes, &self.to) else {
            return vec![self.declaration(self.to.clone(), self.key.clone())];
        };
        let lane = |lane| {
            self.declaration(BindingTarget::Queue(lane_queue_name(name, lane)), lane_routing_key(&self.key, lane))
        };
        (0..lanes).map(lane).collect()
    }

    fn declaration(&self, to: BindingTarget, key: String) -> BindingDeclaration {
        BindingDeclaration { exchange: self.exchange.clone(), to, key }
    }
}

/// The queue of one lane.
pub fn lane_queue_name(queue: &str, lane: u16) -> String {
    format!("{queue}.{lane}")
}

/// The routing key of one lane: the lane is its last word.
pub fn lane_routing_key(key: &str, lane: u16) -> String {
    if key.is_empty() { lane.to_string() } else { format!("{key}.{lane}") }
}

/// The queue in which messages of `queue`, which may be a lane, wait for this delay before they return.
pub fn retry_queue_name(queue: &str, delay: Duration) -> String {
    format!("{queue}.retry.{}", delay.as_millis())
}

/// The default name of the dead-letter queue. The lanes of a queue share one.
pub fn dead_letter_queue_name(queue: &str) -> String {
    format!("{queue}.dead")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(queues: &[QueueDeclaration]) -> Vec<&str> {
        queues.iter().map(|queue| queue.name.as_str()).collect()
    }

    #[test]
    fn a_queue_has_a_dead_letter_queue_and_retry_queues() {
        let queues = Queue::new("billing").declarations();
        let expected =
            ["billing.dead", "billing", "billing.retry.60000", "billing.retry.300000", "billing.retry.900000"];
        assert_eq!(names(&queues), expected);
        let consumed = &queues[1];
        assert!(consumed.consumed);
        let expected = json!({
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "billing.dead",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-single-active-consumer": true,
        });
        assert_eq!(json!(consumed.arguments), expected);
        let expected = json!({
            "x-queue-type": "quorum",
            "x-message-ttl": 60_000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "billing",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        });
        assert_eq!(json!(queues[2].arguments), expected);
        assert_eq!(json!(queues[0].arguments), json!({ "x-queue-type": "quorum" }));
    }

    #[test]
    fn dead_letters_go_to_the_configured_queue() {
        let queue = Queue {
            dead_letter_queue: Some("billing.dlq".to_owned()),
            retry_delays: Vec::new(),
            ..Queue::new("billing")
        };
        let queues = queue.declarations();
        assert_eq!(names(&queues), ["billing.dlq", "billing"]);
        assert_eq!(queues[1].arguments["x-dead-letter-routing-key"], json!("billing.dlq"));
    }

    #[test]
    fn each_lane_has_retry_queues_and_all_share_the_dead_letter_queue() {
        let queue = Queue { lanes: Some(2), retry_delays: vec![Duration::from_secs(2)], ..Queue::new("billing") };
        let queues = queue.declarations();
        let expected = ["billing.dead", "billing.0", "billing.0.retry.2000", "billing.1", "billing.1.retry.2000"];
        assert_eq!(names(&queues), expected);
        assert_eq!(queues[3].arguments["x-single-active-consumer"], json!(true));
        assert_eq!(queues[3].arguments["x-dead-letter-routing-key"], json!("billing.dead"));
        assert_eq!(queues[4].arguments["x-dead-letter-routing-key"], json!("billing.1"));
    }

    #[test]
    fn a_binding_to_lanes_becomes_one_binding_per_lane() {
        let topology = Topology {
            queues: vec![Queue { lanes: Some(2), ..Queue::new("billing") }],
            bindings: vec![Binding::to_queue("orders", "order.*", "billing")],
            ..Topology::default()
        };
        let bindings = topology.declarations().bindings;
        let actual: Vec<_> = bindings.iter().map(|binding| (&binding.to, binding.key.as_str())).collect();
        let [first, second] =
            [BindingTarget::Queue("billing.0".to_owned()), BindingTarget::Queue("billing.1".to_owned())];
        assert_eq!(actual, [(&first, "order.*.0"), (&second, "order.*.1")]);
    }

    #[test]
    fn a_classic_queue_has_no_quorum_arguments() {
        let queue = Queue {
            kind: QueueKind::Classic,
            max_length: Some(10),
            quorum_initial_group_size: Some(3),
            retry_delays: Vec::new(),
            ..Queue::new("billing")
        };
        let expected = json!({
            "x-queue-type": "classic",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "billing.dead",
            "x-max-length": 10,
            "x-overflow": "reject-publish",
            "x-single-active-consumer": true,
        });
        assert_eq!(json!(queue.declarations()[1].arguments), expected);
    }

    #[test]
    fn limits_and_sizes_become_arguments() {
        let queue = Queue {
            max_length_bytes: Some(1_000),
            delivery_limit: Some(5),
            quorum_initial_group_size: Some(3),
            dead_letter_queue: None,
            retry_delays: Vec::new(),
            ..Queue::new("billing")
        };
        let expected = json!({
            "x-queue-type": "quorum",
            "x-max-length-bytes": 1_000,
            "x-overflow": "reject-publish",
            "x-delivery-limit": 5,
            "x-quorum-initial-group-size": 3,
            "x-single-active-consumer": true,
        });
        assert_eq!(json!(queue.declarations()[0].arguments), expected);
    }
}
