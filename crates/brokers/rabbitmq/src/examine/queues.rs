//! Checks whether each queue keeps confirmed messages until they are handled.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::address_template::AddressTemplate;
use relevo_core::finding::Findings;
use relevo_core::finding::Severity;
use serde_json::Value;

use super::routes::ReachableQueues;
use super::{QueueRole, routes, server};
use crate::management::{QueueInfo, ServerState};
use crate::topology::AT_LEAST_ONCE_FLAG;

/// The default limit of quorum queues in RabbitMQ 4.0 and later.
const SERVER_DEFAULT_LIMIT: i64 = 20;
/// Not `-1`: before 4.0 that limit is reached at the first return, and not every 4.x accepts it in a policy.
const RAISE_LIMIT: &str = "set `delivery_limit` in the topology before the queue is made, or `delivery-limit` in the policy that \
     applies to it, to what is never reached, such as 1000000";

/// Checks these queues, and the queues that they dead-letter to. Returns the exchanges on the way.
pub(super) fn examine(
    seen: &ServerState,
    mut roles: BTreeMap<String, QueueRole>,
    report: &mut Findings,
) -> BTreeSet<String> {
    let mut exchanges = BTreeSet::new();
    let mut done = BTreeMap::new();
    while let Some((name, role)) = roles.pop_first() {
        if done.insert(name.clone(), role).is_some() {
            continue;
        }
        let Some(queue) = seen.queues.get(&name) else {
            let what = format!("queue `{name}` of the topology is not there");
            report.problem(Severity::Warning, "queue-missing", what, "run `relevo topology apply`".to_owned());
            continue;
        };
        let look = QueueCheck { server_state: seen, queue, name: format!("queue `{name}`") };
        look.durability(report);
        look.kind(report);
        look.replicas(report);
        look.overflow(report);
        let ways = look.dead_letters(role, report);
        exchanges.extend(ways.exchanges);
        for target in ways.queues {
            roles.entry(target).or_insert(QueueRole::Auxiliary);
        }
        look.message_ttl(role, report);
        look.delivery_limit(role, report);
    }
    exchanges
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

    fn passed(&self, subject: &'static str, report: &mut Findings) {
        report.passed(subject, self.name.clone());
    }

    fn problem(&self, severity: Severity, subject: &str, what: &str, fix: &str, report: &mut Findings) {
        report.problem(severity, subject, format!("{} {what}", self.name), fix.to_owned());
    }

    /// Checks whether the queue is permanent.
    fn durability(&self, report: &mut Findings) {
        let again = "delete it and declare it durable, best as a quorum queue";
        if !self.queue.durable || self.queue.exclusive {
            let what = "is not durable or exclusive: it is gone with the next restart or disconnection";
            self.problem(Severity::Danger, "queue-durable", what, again, report);
        } else {
            self.passed("queue-durable", report);
        }
        if self.queue.auto_delete {
            let what = "is auto-delete: it is gone when its last consumer leaves";
            self.problem(Severity::Danger, "queue-auto-delete", what, again, report);
        } else if let Some(expires) = self.setting("expires") {
            let what = format!("is deleted, with its messages, after {expires} ms without consumers");
            let fix = "remove `x-expires` or the policy's `expires`";
            self.problem(Severity::Danger, "queue-auto-delete", &what, fix, report);
        } else {
            self.passed("queue-auto-delete", report);
        }
    }

    /// Checks whether the queue type keeps confirmed messages.
    fn kind(&self, report: &mut Findings) {
        if self.setting("ha-mode").is_some() && self.queue.kind == "classic" {
            let what = "is a mirrored classic queue: confirmed messages can be lost when a mirror takes over";
            let fix = "remove `ha-mode` from its policy, and move to a quorum queue";
            self.problem(Severity::Danger, "queue-mirrored", what, fix, report);
        } else {
            self.passed("queue-mirrored", report);
        }
        if self.queue.kind == "classic" {
            let what = "is classic: it lives on one node and cannot dead-letter at least once";
            self.problem(Severity::Warning, "queue-classic", what, "move to a quorum queue", report);
        } else {
            self.passed("queue-classic", report);
        }
    }

    /// Checks whether the queue survives the loss of one node.
    fn replicas(&self, report: &mut Findings) {
        let Some(nodes) = self.server_state.node_count().filter(|nodes| *nodes > 1) else {
            if self.server_state.nodes.is_some() {
                self.passed("queue-replicas", report);
            }
            return;
        };
        let mirrored = self.setting("ha-mode").is_some();
        let copies = if self.queue.kind == "classic" { 1 } else { self.queue.members.len() };
        let fix = "use a quorum queue on three nodes or more: `rabbitmq-queues add_member` adds one";
        match copies {
            // A worse problem was already reported.
            1 if mirrored => {}
            0 | 1 => {
                let what = format!("has one copy in a cluster of {nodes} nodes: its node's end is its own");
                self.problem(Severity::Danger, "queue-replicas", &what, fix, report);
            }
            2 => {
                let what = "has two copies: it stands still when one of the two nodes is down";
                self.problem(Severity::Warning, "queue-replicas", what, fix, report);
            }
            _ => self.passed("queue-replicas", report),
        }
    }

    /// Checks whether a full queue refuses new messages and does not drop old ones.
    fn overflow(&self, report: &mut Findings) {
        let limits = ["max-length", "max-length-bytes", "max-age"].map(|name| (name, self.setting(name)));
        let limit = limits.into_iter().find_map(|(name, value)| value.map(|value| format!("`{name}` {value}")));
        let refuses =
            self.server_state.text_setting(self.queue, "overflow").is_some_and(|how| how.starts_with("reject-publish"));
        match limit {
            Some(limit) if self.queue.kind == "stream" => {
                let what = format!("is a stream with {limit}: what is older is dropped, read or not");
                let fix = "make the limit larger than any consumer can fall behind, or remove it";
                self.problem(Severity::Danger, "overflow-drops", &what, fix, report);
            }
            Some(limit) if !refuses => {
                let what = format!("has {limit} and drops its oldest messages when it is full");
                let fix = "set `x-overflow`, or the policy's `overflow`, to `reject-publish`";
                self.problem(Severity::Danger, "overflow-drops", &what, fix, report);
            }
            _ => self.passed("overflow-drops", report),
        }
    }

    /// Checks where its dead letters go. Returns what they can reach.
    fn dead_letters(&self, role: QueueRole, report: &mut Findings) -> ReachableQueues {
        let Some(exchange) = self.server_state.text_setting(self.queue, "dead-letter-exchange") else {
            if role == QueueRole::Consumed {
                let fix = "declare it with `dead_letters` in the topology, or set `dead-letter-exchange` by a policy";
                let what = "has no dead letters: what a consumer rejects at the broker is lost";
                self.problem(Severity::Warning, "dead-letter-missing", what, fix, report);
            }
            return ReachableQueues::default();
        };
        let key = self.server_state.text_setting(self.queue, "dead-letter-routing-key").unwrap_or("{topic}");
        let ways = routes::reachable_queues(self.server_state, exchange, &AddressTemplate::new(key));
        if ways.queues.is_empty() {
            let what = format!("dead-letters to exchange `{exchange}`, from where no queue gets anything");
            let severity = if self.drops_messages() { Severity::Danger } else { Severity::Warning };
            self.problem(severity, "dead-letter-missing", &what, "declare and bind the queue for them", report);
        } else {
            self.passed("dead-letter-missing", report);
        }
        let fix = "declare it as a quorum queue with `x-dead-letter-strategy` `at-least-once` and `x-overflow` \
                   `reject-publish`";
        match self.at_most_once() {
            Some(why) => {
                let what = format!("dead-letters at most once, so some may be lost: {why}");
                self.problem(Severity::Warning, "dead-letter-at-most-once", &what, fix, report);
            }
            None => self.passed("dead-letter-at-most-once", report),
        }
        ways
    }

    /// Why dead letters may be lost; `None` if they cannot.
    fn at_most_once(&self) -> Option<&'static str> {
        if self.queue.kind != "quorum" {
            Some("only quorum queues can do it at least once")
        } else if self.server_state.text_setting(self.queue, "dead-letter-strategy") != Some("at-least-once") {
            Some("`dead-letter-strategy` is not `at-least-once`")
        } else if self.server_state.text_setting(self.queue, "overflow") != Some("reject-publish") {
            Some("`overflow` is not `reject-publish`, and the broker falls back without a word")
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
    fn message_ttl(&self, role: QueueRole, report: &mut Findings) {
        let fix = "remove `x-message-ttl`, or the policy's `message-ttl`, from the queue";
        match (self.setting("message-ttl"), self.server_state.text_setting(self.queue, "dead-letter-exchange")) {
            (Some(ttl), None) => {
                let what = format!("drops messages that nobody took within {ttl} ms");
                self.problem(Severity::Danger, "message-ttl", &what, fix, report);
            }
            (Some(ttl), Some(_)) if role == QueueRole::Consumed => {
                let what = format!("gives messages up, as dead letters, that nobody took within {ttl} ms");
                self.problem(Severity::Warning, "message-ttl", &what, fix, report);
            }
            _ => self.passed("message-ttl", report),
        }
    }

    /// The effective delivery limit; `None` without a limit.
    fn configured_delivery_limit(&self) -> Option<i64> {
        if self.queue.kind != "quorum" {
            return None;
        }
        let is_4 = server::version(&self.server_state.version) >= (4, 0);
        let number = |value: Option<&Value>| value.and_then(Value::as_i64);
        let (argument, policy) = self.server_state.argument_and_policy(self.queue, "delivery-limit");
        let set = match (number(argument), number(policy)) {
            // From 4.0 on a negative value means no limit, and a real limit takes precedence.
            (Some(a), Some(b)) if is_4 && (a < 0 || b < 0) => Some(a.max(b)),
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        match set {
            None => is_4.then_some(SERVER_DEFAULT_LIMIT),
            Some(limit) if is_4 => (limit >= 0).then_some(limit),
            // Before 4.0 a negative value has the effect of zero.
            Some(limit) => Some(limit.max(0)),
        }
    }

    /// Checks whether the limit drops messages, and whether it was set explicitly.
    fn delivery_limit(&self, role: QueueRole, report: &mut Findings) {
        let is_unset = self.setting("delivery-limit").is_none();
        // No consumer returns messages to an auxiliary queue, so the default limit does not matter there. An explicit
        // limit does.
        let limit = self.configured_delivery_limit().filter(|_| role == QueueRole::Consumed || !is_unset);
        let has_end = self.server_state.text_setting(self.queue, "dead-letter-exchange").is_some();
        match limit {
            Some(limit) if !has_end => {
                let what = format!("drops a message that was returned more than {limit} times");
                let fix = if is_unset { RAISE_LIMIT } else { "remove the delivery limit" };
                let fix = format!("give it dead letters, or {fix}");
                self.problem(Severity::Danger, "delivery-limit-drops", &what, &fix, report);
            }
            _ => self.passed("delivery-limit-drops", report),
        }
        match limit {
            Some(limit) if is_unset && has_end => {
                let what = format!(
                    "has the delivery limit that RabbitMQ {} gives where nobody sets one: what came back more than {limit} times, \
                     because consumers were killed or `consumer_timeout` passed, is dead-lettered, and no inbox knows of it",
                    self.server_state.version
                );
                self.problem(Severity::Warning, "delivery-limit-default", &what, RAISE_LIMIT, report);
            }
            // A worse problem was already reported.
            Some(_) if is_unset => {}
            _ => self.passed("delivery-limit-default", report),
        }
    }
}

#[cfg(test)]
mod tests;
