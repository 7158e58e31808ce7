//! Checks whether the broker's settings keep the guarantees. Each failed check says how to fix it.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::address_template::AddressTemplate;
use relevo_core::broker::admin::ExamineContext;
use relevo_core::finding::{Finding, Findings, Severity, join_limited};

use crate::address;
use crate::config::Config;
use crate::management::ServerState;
use crate::topology::lane_routing_key;

mod queues;
pub(crate) mod routes;
mod server;

use routes::ReachableQueues;

/// The purpose of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum QueueRole {
    /// Messages wait there for a retry delay, or for an operator.
    Auxiliary,
    /// Consumers read from it.
    Consumed,
    /// Consumers read from it, and the topology lets one of them at a time.
    Ordered,
}

/// Runs all checks with data from the management API.
pub(crate) fn with_management(config: &Config, context: &ExamineContext, server: &ServerState) -> Vec<Finding> {
    let mut findings = Findings::default();
    server::examine(config, server, &mut findings);
    let mut roles = BTreeMap::new();
    for queue in config.topology.declarations().queues {
        let role = match queue.arguments.contains_key("x-single-active-consumer") {
            true => QueueRole::Ordered,
            false if queue.consumed => QueueRole::Consumed,
            false => QueueRole::Auxiliary,
        };
        roles.insert(queue.name, role);
    }
    let mut exchanges = BTreeSet::new();
    for address in &context.addresses {
        let reachable = examine_address(config, address, server, &mut findings);
        exchanges.extend(reachable.exchanges);
        for queue in reachable.queues {
            roles.entry(queue).or_insert(QueueRole::Consumed);
        }
    }
    exchanges.extend(queues::examine(server, roles, &mut findings));
    for exchange in &exchanges {
        examine_durability(exchange, server, &mut findings);
    }
    findings.into_sorted()
}

/// Runs the checks that do not need the management API.
pub(crate) fn without_management(config: &Config) -> Vec<Finding> {
    let mut findings = Findings::default();
    server::examine_transport(config, &mut findings);
    findings.problem(
        Severity::Note,
        "management",
        "no `management_url` is configured: queues, bindings, policies and the cluster were not checked".to_owned(),
        "set `management_url` to the management API, with a user that has the tag `monitoring`".to_owned(),
    );
    findings.into_sorted()
}

/// Returns what a route's address can reach. Reports a finding if it reaches no queue.
fn examine_address(config: &Config, address: &str, server: &ServerState, findings: &mut Findings) -> ReachableQueues {
    let (exchange, key) = address::split_address(address, config);
    if !AddressTemplate::new(exchange).is_fixed() {
        let detail = format!("the exchange of address `{address}` depends on each message: not checked");
        let fix = "name the exchange in the route's address, before the first slash".to_owned();
        findings.problem(Severity::Note, "route-unbound", detail, fix);
        return ReachableQueues::default();
    }
    if !examine_exchange(exchange, address, server, findings) {
        return ReachableQueues::default();
    }
    let keys: Vec<String> = match config.lanes {
        None => vec![key.to_owned()],
        Some(lanes) => (0..lanes).map(|lane| lane_routing_key(key, lane)).collect(),
    };
    let mut reached = ReachableQueues::default();
    let mut unbound = Vec::new();
    for key in keys {
        let reachable = routes::reachable_queues(server, exchange, &AddressTemplate::new(&key));
        if reachable.queues.is_empty() {
            unbound.push(format!("`{key}`"));
        }
        reached.queues.extend(reachable.queues);
        reached.exchanges.extend(reachable.exchanges);
    }
    findings.check(unbound.is_empty(), Severity::Danger, "route-unbound", format!("address `{address}`"), || {
        let keys = join_limited(&unbound);
        let detail =
            format!("address `{address}`: no queue is bound to exchange `{exchange}` for the routing key {keys}");
        let fix = if exchange.is_empty() {
            "declare a queue of that name, or give the route's address an exchange".to_owned()
        } else {
            format!("bind a queue to `{exchange}`, for example with `bind` of a queue in the topology")
        };
        (detail, fix)
    });
    reached
}

/// Checks whether messages can be published to an exchange.
fn examine_exchange(exchange: &str, address: &str, server: &ServerState, findings: &mut Findings) -> bool {
    if exchange.is_empty() {
        return true;
    }
    let name = format!("exchange `{exchange}`");
    let existing = server.exchanges.get(exchange);
    findings.check(existing.is_some(), Severity::Danger, "exchange-missing", name.clone(), || {
        let fix = format!("declare `{exchange}` in the topology, or correct the route's address");
        (format!("address `{address}`: exchange `{exchange}` does not exist"), fix)
    });
    let Some(existing) = existing else { return false };
    findings.check(!existing.internal, Severity::Danger, "exchange-internal", name, || {
        let detail =
            format!("address `{address}`: exchange `{exchange}` is internal and accepts no published messages");
        (detail, format!("declare `{exchange}` again without `internal`, or publish to another exchange"))
    });
    true
}

/// Checks whether an exchange on the path is permanent.
fn examine_durability(exchange: &str, server: &ServerState, findings: &mut Findings) {
    let Some(existing) = server.exchanges.get(exchange) else { return };
    let is_permanent = existing.durable && !existing.auto_delete;
    findings.check(is_permanent, Severity::Danger, "exchange-durable", format!("exchange `{exchange}`"), || {
        let kind = if existing.durable { "auto-delete" } else { "not durable" };
        let detail = format!("exchange `{exchange}` is {kind}: it can be deleted, and its bindings with it");
        (detail, format!("delete `{exchange}` and declare it durable, without auto-delete"))
    });
}
