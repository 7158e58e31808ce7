//! Checks whether each queue keeps confirmed messages until they are handled.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::operate::Severity;
use relevo_core::report::Report;
use relevo_core::template::Template;
use serde_json::Value;

use super::routing::Ways;
use super::{Role, routing, server};
use crate::management::{SeenQueue, Snapshot};
use crate::topology::AT_LEAST_ONCE_FLAG;

mod limit;

/// Checks these queues, and the queues that they dead-letter to. Returns the exchanges on the way.
pub(super) fn examine(seen: &Snapshot, mut roles: BTreeMap<String, Role>, report: &mut Report) -> BTreeSet<String> {
    let mut exchanges = BTreeSet::new();
    let mut done = BTreeMap::new();
    while let Some((name, role)) = roles.pop_first() {
        if done.insert(name.clone(), role).is_some() {
            continue;
        }
        let Some(queue) = seen.queues.get(&name) else {
            let what = format!("queue `{name}` of the topology is not there");
            report.told(Severity::Warning, "queue-missing", what, "run `relevo topology apply`".to_owned());
            continue;
        };
        let look = Look { seen, queue, name: format!("queue `{name}`") };
        look.permanence(report);
        look.kind(report);
        look.copies(report);
        look.overflow(report);
        let ways = look.dead_letters(role, report);
        exchanges.extend(ways.exchanges);
        for target in ways.queues {
            roles.entry(target).or_insert(Role::Side);
        }
        look.ageing(role, report);
        look.delivery_limit(role, report);
    }
    exchanges
}

struct Look<'a> {
    seen: &'a Snapshot,
    queue: &'a SeenQueue,
    /// The display name.
    name: String,
}

impl Look<'_> {
    fn setting(&self, name: &str) -> Option<&Value> {
        self.seen.setting(self.queue, name)
    }

    fn good(&self, subject: &'static str, report: &mut Report) {
        report.good(subject, self.name.clone());
    }

    fn told(&self, severity: Severity, subject: &str, what: &str, fix: &str, report: &mut Report) {
        report.told(severity, subject, format!("{} {what}", self.name), fix.to_owned());
    }

    /// Checks whether the queue is permanent.
    fn permanence(&self, report: &mut Report) {
        let again = "delete it and declare it durable, best as a quorum queue";
        if !self.queue.durable || self.queue.exclusive {
            let what = "is not durable or exclusive: it is gone with the next restart or disconnection";
            self.told(Severity::Danger, "queue-durable", what, again, report);
        } else {
            self.good("queue-durable", report);
        }
        if self.queue.auto_delete {
            let what = "is auto-delete: it is gone when its last consumer leaves";
            self.told(Severity::Danger, "queue-auto-delete", what, again, report);
        } else if let Some(expires) = self.setting("expires") {
            let what = format!("is deleted, with its messages, after {expires} ms without consumers");
            let fix = "remove `x-expires` or the policy's `expires`";
            self.told(Severity::Danger, "queue-auto-delete", &what, fix, report);
        } else {
            self.good("queue-auto-delete", report);
        }
    }

    /// Checks whether the queue type keeps confirmed messages.
    fn kind(&self, report: &mut Report) {
        if self.setting("ha-mode").is_some() && self.queue.kind == "classic" {
            let what = "is a mirrored classic queue: confirmed messages can be lost when a mirror takes over";
            let fix = "remove `ha-mode` from its policy, and move to a quorum queue";
            self.told(Severity::Danger, "queue-mirrored", what, fix, report);
        } else {
            self.good("queue-mirrored", report);
        }
        if self.queue.kind == "classic" {
            let what = "is classic: it lives on one node and cannot dead-letter at least once";
            self.told(Severity::Warning, "queue-classic", what, "move to a quorum queue", report);
        } else {
            self.good("queue-classic", report);
        }
    }

    /// Checks whether the queue survives the loss of one node.
    fn copies(&self, report: &mut Report) {
        let Some(nodes) = self.seen.node_count().filter(|nodes| *nodes > 1) else {
            if self.seen.nodes.is_some() {
                self.good("queue-replicas", report);
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
                self.told(Severity::Danger, "queue-replicas", &what, fix, report);
            }
            2 => {
                let what = "has two copies: it stands still when one of the two nodes is down";
                self.told(Severity::Warning, "queue-replicas", what, fix, report);
            }
            _ => self.good("queue-replicas", report),
        }
    }

    /// Checks whether a full queue refuses new messages and does not drop old ones.
    fn overflow(&self, report: &mut Report) {
        let limits = ["max-length", "max-length-bytes", "max-age"].map(|name| (name, self.setting(name)));
        let limit = limits.into_iter().find_map(|(name, value)| value.map(|value| format!("`{name}` {value}")));
        let refuses = self.seen.text(self.queue, "overflow").is_some_and(|how| how.starts_with("reject-publish"));
        match limit {
            Some(limit) if self.queue.kind == "stream" => {
                let what = format!("is a stream with {limit}: what is older is dropped, read or not");
                let fix = "make the limit larger than any consumer can fall behind, or remove it";
                self.told(Severity::Danger, "overflow-drops", &what, fix, report);
            }
            Some(limit) if !refuses => {
                let what = format!("has {limit} and drops its oldest messages when it is full");
                let fix = "set `x-overflow`, or the policy's `overflow`, to `reject-publish`";
                self.told(Severity::Danger, "overflow-drops", &what, fix, report);
            }
            _ => self.good("overflow-drops", report),
        }
    }

    /// Checks where its dead letters go. Returns what they can reach.
    fn dead_letters(&self, role: Role, report: &mut Report) -> Ways {
        let Some(exchange) = self.seen.text(self.queue, "dead-letter-exchange") else {
            if role == Role::Work {
                let fix = "declare it with `dead_letters` in the topology, or set `dead-letter-exchange` by a policy";
                let what = "has no dead letters: what a consumer rejects at the broker is lost";
                self.told(Severity::Warning, "dead-letter-missing", what, fix, report);
            }
            return Ways::default();
        };
        let key = self.seen.text(self.queue, "dead-letter-routing-key").unwrap_or("{topic}");
        let ways = routing::reached(self.seen, exchange, &Template::new(key));
        if ways.queues.is_empty() {
            let what = format!("dead-letters to exchange `{exchange}`, from where no queue gets anything");
            let severity = if self.drops() { Severity::Danger } else { Severity::Warning };
            self.told(severity, "dead-letter-missing", &what, "declare and bind the queue for them", report);
        } else {
            self.good("dead-letter-missing", report);
        }
        let fix = "declare it as a quorum queue with `x-dead-letter-strategy` `at-least-once` and `x-overflow` \
                   `reject-publish`";
        match self.at_most_once() {
            Some(why) => {
                let what = format!("dead-letters at most once, so some may be lost: {why}");
                self.told(Severity::Warning, "dead-letter-at-most-once", &what, fix, report);
            }
            None => self.good("dead-letter-at-most-once", report),
        }
        ways
    }

    /// Why dead letters may be lost; `None` if they cannot.
    fn at_most_once(&self) -> Option<&'static str> {
        if self.queue.kind != "quorum" {
            Some("only quorum queues can do it at least once")
        } else if self.seen.text(self.queue, "dead-letter-strategy") != Some("at-least-once") {
            Some("`dead-letter-strategy` is not `at-least-once`")
        } else if self.seen.text(self.queue, "overflow") != Some("reject-publish") {
            Some("`overflow` is not `reject-publish`, and the broker falls back without a word")
        } else if server::version(&self.seen.version) < (3, 13) && self.seen.lacks(AT_LEAST_ONCE_FLAG) {
            Some("the feature flag `stream_queue` is disabled: `rabbitmqctl enable_feature_flag stream_queue`")
        } else {
            None
        }
    }

    /// Whether the broker itself removes messages.
    fn drops(&self) -> bool {
        self.setting("message-ttl").is_some() || self.delivery_limit_set().is_some()
    }

    /// Checks whether messages can expire.
    fn ageing(&self, role: Role, report: &mut Report) {
        let fix = "remove `x-message-ttl`, or the policy's `message-ttl`, from the queue";
        match (self.setting("message-ttl"), self.seen.text(self.queue, "dead-letter-exchange")) {
            (Some(ttl), None) => {
                let what = format!("drops messages that nobody took within {ttl} ms");
                self.told(Severity::Danger, "message-ttl", &what, fix, report);
            }
            (Some(ttl), Some(_)) if role == Role::Work => {
                let what = format!("gives messages up, as dead letters, that nobody took within {ttl} ms");
                self.told(Severity::Warning, "message-ttl", &what, fix, report);
            }
            _ => self.good("message-ttl", report),
        }
    }
}

#[cfg(test)]
mod tests {
    use relevo_core::operate::Finding;
    use serde_json::json;

    use super::*;

    pub(super) fn quorum(arguments: &Value, members: usize) -> SeenQueue {
        let arguments = serde_json::from_value(arguments.clone()).expect("a map");
        SeenQueue {
            name: "q".to_owned(),
            durable: true,
            kind: "quorum".to_owned(),
            arguments,
            members: (0..members).map(|member| format!("node{member}")).collect(),
            ..SeenQueue::default()
        }
    }

    pub(super) fn bad(seen: &Snapshot) -> Vec<(Severity, String)> {
        bad_as(seen, Role::Work)
    }

    pub(super) fn bad_as(seen: &Snapshot, role: Role) -> Vec<(Severity, String)> {
        let mut report = Report::default();
        examine(seen, BTreeMap::from([("q".to_owned(), role)]), &mut report);
        let is_bad = |finding: &Finding| finding.severity > Severity::Good;
        report.findings().into_iter().filter(is_bad).map(|finding| (finding.severity, finding.subject)).collect()
    }

    pub(super) fn snapshot(queue: SeenQueue, nodes: usize) -> Snapshot {
        Snapshot {
            queues: BTreeMap::from([("q".to_owned(), queue)]),
            nodes: Some((0..nodes).map(|node| (format!("node{node}"), true)).collect()),
            flags: Some(BTreeSet::from([AT_LEAST_ONCE_FLAG.to_owned()])),
            version: "3.10.8".to_owned(),
            ..Snapshot::default()
        }
    }

    pub(super) fn safe() -> Value {
        json!({
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "q",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        })
    }

    #[test]
    fn a_cluster_wants_three_copies() {
        assert_eq!(bad(&snapshot(quorum(&safe(), 1), 1)), []);
        assert_eq!(bad(&snapshot(quorum(&safe(), 3), 3)), []);
        let replicas = "queue-replicas".to_owned();
        assert_eq!(bad(&snapshot(quorum(&safe(), 2), 3)), [(Severity::Warning, replicas.clone())]);
        assert_eq!(bad(&snapshot(quorum(&safe(), 1), 3)), [(Severity::Danger, replicas)]);
    }

    #[test]
    fn a_disabled_feature_flag_means_at_most_once() {
        let mut seen = snapshot(quorum(&safe(), 1), 1);
        seen.flags = Some(BTreeSet::new());
        assert_eq!(bad(&seen), [(Severity::Warning, "dead-letter-at-most-once".to_owned())]);
    }
}
