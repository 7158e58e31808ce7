//! Checks whether each queue keeps confirmed messages, and their order, until they are handled.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::address_template::AddressTemplate;
use relevo_core::finding::{Findings, Severity};
use serde_json::Value;

use super::routes::ReachableQueues;
use super::{QueueRole, routes, server};
use crate::management::{QueueInfo, ServerState};
use crate::topology::AT_LEAST_ONCE_FLAG;

/// The default limit of quorum queues in RabbitMQ 4.0 and later.
const SERVER_DEFAULT_LIMIT: i64 = 20;
/// Not `-1`: before 4.0 that limit is reached at the first return, and not every 4.x accepts it in a policy.
const RAISE_LIMIT: &str = "set `delivery_limit` in the topology before the queue is created, or `delivery-limit` in the policy that \
     applies to it, to a value that is never reached, such as 1000000";

/// Checks these queues, and the queues that they dead-letter to. Returns the exchanges on the way.
pub(super) fn examine(
    server: &ServerState,
    mut roles: BTreeMap<String, QueueRole>,
    findings: &mut Findings,
) -> BTreeSet<String> {
    let mut exchanges = BTreeSet::new();
    let mut examined = BTreeSet::new();
    while let Some((name, role)) = roles.pop_first() {
        if !examined.insert(name.clone()) {
            continue;
        }
        let Some(queue) = server.queues.get(&name) else {
            let detail = format!("queue `{name}` of the topology does not exist");
            findings.problem(Severity::Warning, "queue-missing", detail, "run `relevo topology apply`".to_owned());
            continue;
        };
        let check = QueueCheck { server_state: server, queue, name: format!("queue `{name}`") };
        check.durability(findings);
        check.kind(findings);
        check.replicas(findings);
        check.overflow(findings);
        let reachable = check.dead_letters(role, findings);
        exchanges.extend(reachable.exchanges);
        for target in reachable.queues {
            roles.entry(target).or_insert(QueueRole::Auxiliary);
        }
        check.message_ttl(role, findings);
        check.delivery_limit(role, findings);
        check.single_active_consumer(role, findings);
    }
    exchanges
}

/// A failed check: its severity, the detail after the name of the queue, and the fix.
type Problem = (Severity, String, String);

fn problem(severity: Severity, detail: impl Into<String>, fix: impl Into<String>) -> Problem {
    (severity, detail.into(), fix.into())
}

struct QueueCheck<'a> {
    server_state: &'a ServerState,
    queue: &'a QueueInfo,
    /// The display name.
    name: String,
}

impl QueueCheck<'_> {
    fn setting(&self, name: &str) -> Option<&Value> {
        self.server_state.setting(self.queue, name)
    }

    fn text_setting(&self, name: &str) -> Option<&str> {
        self.server_state.text_setting(self.queue, name)
    }

    /// Records a check, which passed if there is no problem.
    fn record(&self, subject: &'static str, problem: Option<Problem>, findings: &mut Findings) {
        let severity = problem.as_ref().map_or(Severity::Ok, |(severity, ..)| *severity);
        findings.check(problem.is_none(), severity, subject, self.name.clone(), || {
            let (_, detail, fix) = problem.unwrap_or_else(|| unreachable!("the check has failed"));
            (format!("{} {detail}", self.name), fix)
        });
    }

    /// Checks whether the queue is permanent.
    fn durability(&self, findings: &mut Findings) {
        let fix = "delete it and declare it durable, preferably as a quorum queue";
        let durable = if !self.queue.durable || self.queue.exclusive {
            let detail = "is not durable or is exclusive: it is deleted at the next restart or disconnection";
            Some(problem(Severity::Danger, detail, fix))
        } else {
            None
        };
        self.record("queue-durable", durable, findings);
        let permanent = if self.queue.auto_delete {
            Some(problem(Severity::Danger, "is auto-delete: it is deleted when its last consumer disconnects", fix))
        } else if let Some(expires) = self.setting("expires") {
            let detail = format!("is deleted with its messages after {expires} ms without consumers");
            Some(problem(Severity::Danger, detail, "remove `x-expires` or the policy's `expires`"))
        } else {
            None
        };
        self.record("queue-auto-delete", permanent, findings);
    }

    /// Checks whether the queue type keeps confirmed messages.
    fn kind(&self, findings: &mut Findings) {
        let is_classic = self.queue.kind == "classic";
        let mirrored = if is_classic && self.setting("ha-mode").is_some() {
            let detail = "is a mirrored classic queue: confirmed messages can be lost when a mirror takes over";
            Some(problem(Severity::Danger, detail, "remove `ha-mode` from its policy, and move to a quorum queue"))
        } else {
            None
        };
        self.record("queue-mirrored", mirrored, findings);
        let classic = if is_classic {
            let detail = "is classic: it exists on one node and cannot dead-letter at least once";
            Some(problem(Severity::Warning, detail, "move to a quorum queue"))
        } else {
            None
        };
        self.record("queue-classic", classic, findings);
    }

    /// Checks whether the queue survives the loss of one node.
    fn replicas(&self, findings: &mut Findings) {
        let Some(nodes) = self.server_state.node_count() else { return };
        let is_classic = self.queue.kind == "classic";
        let fix = "use a quorum queue on three nodes or more: `rabbitmq-queues add_member` adds a replica";
        let replicas = match if is_classic { 1 } else { self.queue.members.len() } {
            _ if nodes < 2 => None,
            // A worse problem was already reported.
            1 if self.setting("ha-mode").is_some() => return,
            0 | 1 => {
                let detail = format!("has one replica in a cluster of {nodes} nodes and is lost with that node");
                Some(problem(Severity::Danger, detail, fix))
            }
            2 => Some(problem(
                Severity::Warning,
                "has two replicas: it is unavailable while one of the two nodes is down",
                fix,
            )),
            _ => None,
        };
        self.record("queue-replicas", replicas, findings);
    }

    /// Checks whether a full queue refuses new messages and does not drop old ones.
    fn overflow(&self, findings: &mut Findings) {
        let limits = ["max-length", "max-length-bytes", "max-age"].map(|name| (name, self.setting(name)));
        let limit = limits.into_iter().find_map(|(name, value)| value.map(|value| format!("`{name}` {value}")));
        let refuses = self.text_setting("overflow").is_some_and(|how| how.starts_with("reject-publish"));
        let dropped = match limit {
            Some(limit) if self.queue.kind == "stream" => {
                let detail =
                    format!("is a stream with {limit}: it drops older messages, whether they were read or not");
                Some(problem(Severity::Danger, detail, "raise the limit above the largest possible lag, or remove it"))
            }
            Some(limit) if !refuses => {
                let detail = format!("has {limit} and drops its oldest messages when it is full");
                let fix = "set `x-overflow`, or the policy's `overflow`, to `reject-publish`";
                Some(problem(Severity::Danger, detail, fix))
            }
            _ => None,
        };
        self.record("overflow-drops", dropped, findings);
    }

    /// Checks where its dead letters go. Returns what they can reach.
    fn dead_letters(&self, role: QueueRole, findings: &mut Findings) -> ReachableQueues {
        let Some(exchange) = self.text_setting("dead-letter-exchange") else {
            if role != QueueRole::Auxiliary {
                let detail = "has no dead-letter queue: a message that a consumer rejects at the broker is lost";
                let fix = "declare it with `dead_letters` in the topology, or set `dead-letter-exchange` by a policy";
                self.record("dead-letter-missing", Some(problem(Severity::Warning, detail, fix)), findings);
            }
            return ReachableQueues::default();
        };
        let key = self.text_setting("dead-letter-routing-key").unwrap_or("{topic}");
        let reachable = routes::reachable_queues(self.server_state, exchange, &AddressTemplate::new(key));
        let missing = if reachable.queues.is_empty() {
            let detail = format!("dead-letters to exchange `{exchange}`, which routes these messages to no queue");
            let severity = if self.drops_messages() { Severity::Danger } else { Severity::Warning };
            Some(problem(severity, detail, "declare and bind the dead-letter queue"))
        } else {
            None
        };
        self.record("dead-letter-missing", missing, findings);
        let fix = "declare it as a quorum queue with `x-dead-letter-strategy` `at-least-once` and `x-overflow` \
                   `reject-publish`";
        let lossy = self.at_most_once().map(|reason| {
            let detail = format!("dead-letters at most once, so dead letters can be lost: {reason}");
            (Severity::Warning, detail, fix.to_owned())
        });
        self.record("dead-letter-at-most-once", lossy, findings);
        reachable
    }

    /// Why dead letters may be lost; `None` if they cannot.
    fn at_most_once(&self) -> Option<&'static str> {
        if self.queue.kind != "quorum" {
            Some("only quorum queues dead-letter at least once")
        } else if self.text_setting("dead-letter-strategy") != Some("at-least-once") {
            Some("`dead-letter-strategy` is not `at-least-once`")
        } else if self.text_setting("overflow") != Some("reject-publish") {
            Some("`overflow` is not `reject-publish`, and the broker silently falls back")
        } else if server::version(&self.server_state.version) < (3, 13)
            && self.server_state.lacks_feature_flag(AT_LEAST_ONCE_FLAG)
        {
            Some("the feature flag `stream_queue` is disabled: `rabbitmqctl enable_feature_flag stream_queue`")
        } else {
            None
        }
    }

    /// Whether the broker itself removes messages.
    fn drops_messages(&self) -> bool {
        self.setting("message-ttl").is_some() || self.configured_delivery_limit().is_some()
    }

    /// Checks whether messages can expire.
    fn message_ttl(&self, role: QueueRole, findings: &mut Findings) {
        let fix = "remove `x-message-ttl`, or the policy's `message-ttl`, from the queue";
        let expiring = match (self.setting("message-ttl"), self.text_setting("dead-letter-exchange")) {
            (Some(ttl), None) => {
                Some(problem(Severity::Danger, format!("drops messages that are not consumed within {ttl} ms"), fix))
            }
            (Some(ttl), Some(_)) if role != QueueRole::Auxiliary => Some(problem(
                Severity::Warning,
                format!("dead-letters messages that are not consumed within {ttl} ms"),
                fix,
            )),
            _ => None,
        };
        self.record("message-ttl", expiring, findings);
    }

    /// Checks whether two consumers could receive from it at the same time although the topology orders it.
    fn single_active_consumer(&self, role: QueueRole, findings: &mut Findings) {
        if role != QueueRole::Ordered {
            return;
        }
        let is_single = self.queue.arguments.get("x-single-active-consumer") == Some(&Value::Bool(true));
        let unordered = if is_single {
            None
        } else {
            let detail = "has no single active consumer, although the topology orders it: two consumers can handle \
                          messages of one key at the same time";
            let fix = "let consumers drain it, delete it and run `relevo topology apply`; or set `ordered = false` and the \
                       consumers' `order` to none";
            Some(problem(Severity::Danger, detail, fix))
        };
        self.record("queue-unordered", unordered, findings);
    }

    /// The effective delivery limit; `None` without a limit.
    fn configured_delivery_limit(&self) -> Option<i64> {
        if self.queue.kind != "quorum" {
            return None;
        }
        let is_4 = server::version(&self.server_state.version) >= (4, 0);
        let number = |value: Option<&Value>| value.and_then(Value::as_i64);
        let (argument, policy) = self.server_state.argument_and_policy(self.queue, "delivery-limit");
        let limit = match (number(argument), number(policy)) {
            // From 4.0 on a negative value means no limit, and a real limit takes precedence.
            (Some(a), Some(b)) if is_4 && (a < 0 || b < 0) => Some(a.max(b)),
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        match limit {
            None => is_4.then_some(SERVER_DEFAULT_LIMIT),
            Some(limit) if is_4 => (limit >= 0).then_some(limit),
            // Before 4.0 a negative value has the effect of zero.
            Some(limit) => Some(limit.max(0)),
        }
    }

    /// Checks whether the limit drops messages, and whether it was set explicitly.
    fn delivery_limit(&self, role: QueueRole, findings: &mut Findings) {
        let is_default = self.setting("delivery-limit").is_none();
        // No consumer returns messages to an auxiliary queue, so the default limit does not matter there. An explicit
        // limit does.
        let limit = self.configured_delivery_limit().filter(|_| role != QueueRole::Auxiliary || !is_default);
        let has_dead_letters = self.text_setting("dead-letter-exchange").is_some();
        let dropped = limit.filter(|_| !has_dead_letters).map(|limit| {
            let fix = if is_default { RAISE_LIMIT } else { "remove the delivery limit" };
            let detail = format!("drops a message that was returned more than {limit} times");
            (Severity::Danger, detail, format!("give it a dead-letter queue, or {fix}"))
        });
        let is_dropping = dropped.is_some();
        self.record("delivery-limit-drops", dropped, findings);
        let default = limit.filter(|_| is_default).map(|limit| {
            let detail = format!(
                "has the default delivery limit of RabbitMQ {}: a message that was returned more than {limit} times, \
                 because consumers were killed or `consumer_timeout` passed, is dead-lettered without the inbox",
                self.server_state.version
            );
            (Severity::Warning, detail, RAISE_LIMIT.to_owned())
        });
        // If the default limit drops messages, that worse problem was already reported.
        if !(is_dropping && is_default) {
            self.record("delivery-limit-default", default, findings);
        }
    }
}

#[cfg(test)]
mod tests;
