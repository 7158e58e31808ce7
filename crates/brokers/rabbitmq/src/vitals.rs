//! What is sampled for those who watch, from the management API; without it nothing is told.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use relevo_core::failure::Failure;
use relevo_core::sample::{BrokerVitals, Nodes, SampleBroker};
use serde_json::Value;

use crate::administer::RabbitAdmin;
use crate::classify::Error;
use crate::management::SeenQueue;
use crate::topology::{Declared, dead_queue};

impl RabbitAdmin {
    async fn sampled(&self) -> Result<BrokerVitals, Error> {
        let Some(management) = &self.management else { return Ok(BrokerVitals::default()) };
        let nodes = management.nodes().await?.map(|nodes| Nodes {
            running: nodes.iter().filter(|node| node.running).count() as u64,
            known: nodes.len() as u64,
        });
        let names = self.config.topology.queues.iter().filter(|queue| queue.dead_letters);
        let dead: BTreeSet<String> = names.map(|queue| dead_queue(&queue.name)).collect();
        Ok(BrokerVitals { nodes, dead: dead_letters(&management.queues().await?, &self.declared, dead) })
    }
}

#[async_trait]
impl SampleBroker for RabbitAdmin {
    async fn vitals(&self) -> Result<BrokerVitals, Failure> {
        Ok(self.sampled().await?)
    }
}

/// The queues that hold dead letters: those of the topology, and those that another queue sends its dead letters straight to.
/// A queue with a time to live is a pause rather than an end; so is one that passes on what it gets, or that is worked on.
fn dead_letters(queues: &[SeenQueue], declared: &Declared, mut dead: BTreeSet<String>) -> Vec<(String, u64)> {
    let text = |queue: &SeenQueue, name: &str| queue.arguments.get(name).and_then(Value::as_str).map(str::to_owned);
    let seen: BTreeMap<&str, &SeenQueue> = queues.iter().map(|queue| (queue.name.as_str(), queue)).collect();
    let is_work = |name: &str| declared.queues.iter().any(|queue| queue.work && queue.name == name);
    for queue in queues.iter().filter(|queue| !queue.arguments.contains_key("x-message-ttl")) {
        let straight = text(queue, "x-dead-letter-exchange").is_some_and(|exchange| exchange.is_empty());
        let Some(target) = text(queue, "x-dead-letter-routing-key").filter(|_| straight) else { continue };
        let passes_on = |it: &&SeenQueue| it.arguments.contains_key("x-dead-letter-exchange");
        if !is_work(&target) && !seen.get(target.as_str()).is_some_and(passes_on) {
            dead.insert(target);
        }
    }
    dead.into_iter().filter_map(|name| seen.get(name.as_str()).map(|queue| (name.clone(), queue.messages))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::topology::{Queue, Topology};

    fn queue(name: &str, messages: u64, arguments: Value) -> SeenQueue {
        let arguments = serde_json::from_value(arguments).expect("an object");
        SeenQueue { name: name.to_owned(), messages, arguments, ..SeenQueue::default() }
    }

    #[test]
    fn ends_hold_dead_letters_and_pauses_do_not() {
        let to = |key: &str| json!({ "x-dead-letter-exchange": "", "x-dead-letter-routing-key": key });
        let mut pause = to("billing");
        pause["x-message-ttl"] = json!(2000);
        let queues = [
            queue("billing", 5, to("billing.dead")),
            queue("billing.dead", 3, json!({})),
            queue("billing.retry.2000", 7, pause),
            queue("other", 1, to("graveyard")),
            queue("graveyard", 2, json!({})),
            queue("plain", 9, json!({})),
        ];
        let topology = Topology { queues: vec![Queue::new("billing")], ..Topology::default() };
        let found = dead_letters(&queues, &topology.declared(), BTreeSet::from(["billing.dead".to_owned()]));
        assert_eq!(found, [("billing.dead".to_owned(), 3), ("graveyard".to_owned(), 2)]);
    }

    #[test]
    fn a_queue_that_is_not_there_is_not_told() {
        let declared = Topology::default().declared();
        assert!(dead_letters(&[], &declared, BTreeSet::from(["billing.dead".to_owned()])).is_empty());
    }
}
