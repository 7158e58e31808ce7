//! Checks whether the broker's settings keep the guarantees. Each failed check says how to fix it.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::address_template::AddressTemplate;
use relevo_core::broker::admin::ExamineContext;
use relevo_core::finding::{Finding, Severity};
use relevo_core::finding::{Findings, join_limited};

use crate::address;
use crate::config::Config;
use crate::management::ServerState;
use crate::topology::lane_routing_key;

mod queues;
mod routes;
mod server;

use routes::ReachableQueues;

/// The purpose of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum QueueRole {
    /// Messages wait there for a retry delay, or for an operator.
    Auxiliary,
    /// Consumers read from it.
    Consumed,
}

/// Runs all checks with data from the management API.
pub(crate) fn with_management(config: &Config, expectations: &ExamineContext, seen: &ServerState) -> Vec<Finding> {
    let mut report = Findings::default();
    server::examine(config, seen, &mut report);
    let mut roles = BTreeMap::new();
    for queue in &config.topology.declarations().queues {
        roles.insert(queue.name.clone(), if queue.consumed { QueueRole::Consumed } else { QueueRole::Auxiliary });
    }
    let mut exchanges = BTreeSet::new();
    for address in &expectations.addresses {
        let ways = examine_address(config, address, seen, &mut report);
        exchanges.extend(ways.exchanges);
        for queue in ways.queues {
            roles.entry(queue).or_insert(QueueRole::Consumed);
        }
    }
    exchanges.extend(queues::examine(seen, roles, &mut report));
    for exchange in &exchanges {
        examine_durability(exchange, seen, &mut report);
    }
    report.into_sorted()
}

/// Runs the checks that do not need the management API.
pub(crate) fn without_management(config: &Config) -> Vec<Finding> {
    let mut report = Findings::default();
    server::examine_transport(config, &mut report);
    report.problem(
        Severity::Note,
        "management",
        "no `management_url` is configured: queues, bindings, policies and the cluster were not looked at".to_owned(),
        "set `management_url` to the management API, with a user who has the tag `monitoring`".to_owned(),
    );
    report.into_sorted()
}

/// Returns what a route's address can reach. Reports a finding if it reaches no queue.
fn examine_address(config: &Config, address: &str, seen: &ServerState, report: &mut Findings) -> ReachableQueues {
    let (exchange, key) = address::split_address(address, config);
    if !AddressTemplate::new(exchange).is_fixed() {
        let what = format!("the exchange of address `{address}` is known only with each message: not looked at");
        let fix = "name the exchange in the route's address, before the first slash".to_owned();
        report.problem(Severity::Note, "route-unbound", what, fix);
        return ReachableQueues::default();
    }
    if !examine_exchange(exchange, address, seen, report) {
        return ReachableQueues::default();
    }
    let keys: Vec<String> = match config.lanes {
        None => vec![key.to_owned()],
        Some(lanes) => (0..lanes).map(|lane| lane_routing_key(key, lane)).collect(),
    };
    let mut reached = ReachableQueues::default();
    let mut unbound = Vec::new();
    for key in keys {
        let ways = routes::reachable_queues(seen, exchange, &AddressTemplate::new(&key));
        if ways.queues.is_empty() {
            unbound.push(format!("`{key}`"));
        }
        reached.queues.extend(ways.queues);
        reached.exchanges.extend(ways.exchanges);
    }
    if unbound.is_empty() {
        report.passed("route-unbound", format!("address `{address}`"));
    } else {
        let keys = join_limited(&unbound);
        let what =
            format!("address `{address}`: no queue is bound to exchange `{exchange}` for the routing key {keys}");
        let fix = if exchange.is_empty() {
            "declare a queue of that name, or give the route's address an exchange".to_owned()
        } else {
            format!("bind a queue to `{exchange}`, as `bind` of a queue in the topology does")
        };
        report.problem(Severity::Danger, "route-unbound", what, fix);
    }
    reached
}

/// Checks whether messages can be published to an exchange.
fn examine_exchange(exchange: &str, address: &str, seen: &ServerState, report: &mut Findings) -> bool {
    if exchange.is_empty() {
        return true;
    }
    let Some(found) = seen.exchanges.get(exchange) else {
        let what = format!("address `{address}`: there is no exchange `{exchange}`");
        let fix = format!("declare `{exchange}` in the topology, or mend the route's address");
        report.problem(Severity::Danger, "exchange-missing", what, fix);
        return false;
    };
    report.passed("exchange-missing", format!("exchange `{exchange}`"));
    if found.internal {
        let what = format!("address `{address}`: exchange `{exchange}` is internal and takes no messages from outside");
        let fix = format!("declare `{exchange}` again without `internal`, or send to another exchange");
        report.problem(Severity::Danger, "exchange-internal", what, fix);
    } else {
        report.passed("exchange-internal", format!("exchange `{exchange}`"));
    }
    true
}

/// Checks whether an exchange on the path is permanent.
fn examine_durability(exchange: &str, seen: &ServerState, report: &mut Findings) {
    let Some(found) = seen.exchanges.get(exchange) else { return };
    if found.durable && !found.auto_delete {
        report.passed("exchange-durable", format!("exchange `{exchange}`"));
    } else {
        let word = if found.durable { "auto-delete" } else { "not durable" };
        let what = format!("exchange `{exchange}` is {word}: one day it is gone, and its bindings with it");
        let fix = format!("delete `{exchange}` and declare it durable, without auto-delete");
        report.problem(Severity::Danger, "exchange-durable", what, fix);
    }
}
