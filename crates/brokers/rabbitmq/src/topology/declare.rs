//! The declarations of a topology: each exchange, queue and binding with all its arguments.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Binding, Exchange, Policy, Queue, QueueKind, Target, Topology};
use super::{lane_key, lane_queue, retry_queue};

/// The arguments of a declaration, by their AMQP names.
pub(crate) type Arguments = BTreeMap<String, Value>;

/// The declarations of a topology, in the order of creation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declared {
    /// The exchanges.
    pub exchanges: Vec<DeclaredExchange>,
    /// The queues. A dead-letter queue comes before the queues that use it.
    pub queues: Vec<DeclaredQueue>,
    /// The bindings.
    pub bindings: Vec<DeclaredBinding>,
    /// The policies.
    pub policies: Vec<Policy>,
}

/// One exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredExchange {
    /// The name.
    pub name: String,
    /// The exchange type in AMQP.
    pub kind: &'static str,
    /// The arguments.
    pub arguments: Arguments,
}

/// One queue.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredQueue {
    /// The name.
    pub name: String,
    /// The arguments, including the queue type.
    pub arguments: Arguments,
    /// Whether consumers read from it. A retry queue or dead-letter queue is not consumed.
    pub work: bool,
}

/// One binding.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredBinding {
    /// The source exchange.
    pub exchange: String,
    /// The destination. A lane is its own queue here.
    pub to: Target,
    /// The routing key.
    pub key: String,
    /// The arguments.
    pub arguments: Arguments,
}

impl Topology {
    /// All declarations.
    pub fn declared(&self) -> Declared {
        Declared {
            exchanges: self.exchanges.iter().map(Exchange::declared).collect(),
            queues: self.queues.iter().flat_map(Queue::declared).collect(),
            bindings: self.bindings.iter().flat_map(|binding| binding.declared(&self.queues)).collect(),
            policies: self.policies.clone(),
        }
    }
}

impl Exchange {
    fn declared(&self) -> DeclaredExchange {
        let alternate = self.alternate.iter().map(|name| ("alternate-exchange".to_owned(), json!(name)));
        DeclaredExchange { name: self.name.clone(), kind: self.kind.word(), arguments: alternate.collect() }
    }
}

impl Queue {
    /// The queues that this one consists of.
    pub fn declared(&self) -> Vec<DeclaredQueue> {
        let mut queues = Vec::new();
        if let Some(name) = self.dead_letters.clone() {
            let arguments = Arguments::from([("x-queue-type".to_owned(), json!("quorum"))]);
            queues.push(DeclaredQueue { name, arguments: self.sized(arguments), work: false });
        }
        for work in self.work_queues() {
            queues.push(DeclaredQueue { name: work.clone(), arguments: self.work_arguments(), work: true });
            let rungs = self.retry.iter().map(|rung| self.rung(&work, *rung));
            queues.extend(rungs);
        }
        queues
    }

    fn work_arguments(&self) -> Arguments {
        let mut arguments = Arguments::from([("x-queue-type".to_owned(), json!(self.kind.word()))]);
        if self.is_ordered() {
            arguments.insert("x-single-active-consumer".to_owned(), json!(true));
        }
        if let Some(dead) = &self.dead_letters {
            arguments.insert("x-dead-letter-exchange".to_owned(), json!(""));
            arguments.insert("x-dead-letter-routing-key".to_owned(), json!(dead));
        }
        // At-least-once dead-lettering needs `reject-publish`; without it the broker silently uses at-most-once.
        if self.dead_letters.is_some() && self.kind == QueueKind::Quorum {
            arguments.insert("x-dead-letter-strategy".to_owned(), json!("at-least-once"));
            arguments.insert("x-overflow".to_owned(), json!("reject-publish"));
        }
        let limits = [("x-max-length", self.max_length), ("x-max-length-bytes", self.max_bytes)];
        for (name, limit) in limits {
            if let Some(limit) = limit {
                arguments.insert(name.to_owned(), json!(limit));
                arguments.insert("x-overflow".to_owned(), json!("reject-publish"));
            }
        }
        if let Some(limit) = self.delivery_limit {
            arguments.insert("x-delivery-limit".to_owned(), json!(limit));
        }
        if self.kind == QueueKind::Quorum { self.sized(arguments) } else { arguments }
    }

    /// A retry queue: a message returns to `work` when its delay ends.
    fn rung(&self, work: &str, rung: Duration) -> DeclaredQueue {
        let pause = u64::try_from(rung.as_millis()).unwrap_or(u64::MAX);
        let arguments = Arguments::from([
            ("x-queue-type".to_owned(), json!("quorum")),
            ("x-message-ttl".to_owned(), json!(pause)),
            ("x-dead-letter-exchange".to_owned(), json!("")),
            ("x-dead-letter-routing-key".to_owned(), json!(work)),
            ("x-dead-letter-strategy".to_owned(), json!("at-least-once")),
            ("x-overflow".to_owned(), json!("reject-publish")),
        ]);
        DeclaredQueue { name: retry_queue(work, rung), arguments: self.sized(arguments), work: false }
    }

    fn sized(&self, mut arguments: Arguments) -> Arguments {
        if let Some(size) = self.initial_group_size {
            arguments.insert("x-quorum-initial-group-size".to_owned(), json!(size));
        }
        arguments
    }
}

impl Binding {
    fn declared(&self, queues: &[Queue]) -> Vec<DeclaredBinding> {
        let lanes = match &self.to {
            Target::Queue(name) => queues.iter().find(|queue| queue.name == *name).and_then(|queue| queue.lanes),
            Target::Exchange(_) => None,
        };
        let (Some(lanes), Target::Queue(name)) = (lanes, &self.to) else {
            return vec![self.bound(self.to.clone(), self.key.clone())];
        };
        let lane = |lane| self.bound(Target::Queue(lane_queue(name, lane)), lane_key(&self.key, lane));
        (0..lanes).map(lane).collect()
    }

    fn bound(&self, to: Target, key: String) -> DeclaredBinding {
        let mut arguments: Arguments = self.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        if !arguments.is_empty() || self.match_any {
            let matching = if self.match_any { "any" } else { "all" };
            arguments.insert("x-match".to_owned(), json!(matching));
        }
        DeclaredBinding { exchange: self.exchange.clone(), to, key, arguments }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(queues: &[DeclaredQueue]) -> Vec<&str> {
        queues.iter().map(|queue| queue.name.as_str()).collect()
    }

    #[test]
    fn a_queue_is_made_with_its_dead_letters_and_its_ladder() {
        let queues = Queue::new("billing").declared();
        let wanted = ["billing.dead", "billing", "billing.retry.60000", "billing.retry.300000", "billing.retry.900000"];
        assert_eq!(names(&queues), wanted);
        let work = &queues[1];
        assert!(work.work);
        let expected = json!({
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "billing.dead",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-single-active-consumer": true,
        });
        assert_eq!(json!(work.arguments), expected);
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
    fn dead_letters_go_where_they_are_chosen_to_go() {
        let queue = Queue { dead_letters: Some("billing.dlq".to_owned()), retry: Vec::new(), ..Queue::new("billing") };
        let queues = queue.declared();
        assert_eq!(names(&queues), ["billing.dlq", "billing"]);
        assert_eq!(queues[1].arguments["x-dead-letter-routing-key"], json!("billing.dlq"));
    }

    #[test]
    fn each_lane_has_a_ladder_and_all_share_the_dead_letters() {
        let queue = Queue { lanes: Some(2), retry: vec![Duration::from_secs(2)], ..Queue::new("billing") };
        let queues = queue.declared();
        let wanted = ["billing.dead", "billing.0", "billing.0.retry.2000", "billing.1", "billing.1.retry.2000"];
        assert_eq!(names(&queues), wanted);
        assert_eq!(queues[3].arguments["x-single-active-consumer"], json!(true));
        assert_eq!(queues[3].arguments["x-dead-letter-routing-key"], json!("billing.dead"));
        assert_eq!(queues[4].arguments["x-dead-letter-routing-key"], json!("billing.1"));
    }

    #[test]
    fn a_binding_to_lanes_is_one_a_lane() {
        let topology = Topology {
            queues: vec![Queue { lanes: Some(2), ..Queue::new("billing") }],
            bindings: vec![Binding::to_queue("orders", "order.*", "billing")],
            ..Topology::default()
        };
        let bindings = topology.declared().bindings;
        let seen: Vec<_> = bindings.iter().map(|binding| (&binding.to, binding.key.as_str())).collect();
        let [first, second] = [Target::Queue("billing.0".to_owned()), Target::Queue("billing.1".to_owned())];
        assert_eq!(seen, [(&first, "order.*.0"), (&second, "order.*.1")]);
    }

    #[test]
    fn a_classic_queue_is_not_asked_for_what_it_cannot_do() {
        let queue = Queue {
            kind: QueueKind::Classic,
            max_length: Some(10),
            initial_group_size: Some(3),
            retry: Vec::new(),
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
        assert_eq!(json!(queue.declared()[1].arguments), expected);
    }

    #[test]
    fn limits_and_sizes_become_arguments() {
        let queue = Queue {
            max_bytes: Some(1_000),
            delivery_limit: Some(5),
            initial_group_size: Some(3),
            dead_letters: None,
            retry: Vec::new(),
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
        assert_eq!(json!(queue.declared()[0].arguments), expected);
    }

    #[test]
    fn headers_are_matched_all_or_any() {
        let mut binding = Binding::to_queue("orders", "", "billing");
        binding.headers.insert("type".to_owned(), "order.paid".to_owned());
        let all = binding.declared(&[]);
        assert_eq!(json!(all[0].arguments), json!({ "type": "order.paid", "x-match": "all" }));
        binding.match_any = true;
        assert_eq!(binding.declared(&[])[0].arguments["x-match"], json!("any"));
    }
}
