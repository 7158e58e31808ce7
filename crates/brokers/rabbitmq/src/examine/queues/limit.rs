//! Checks the delivery limit of a queue.

use relevo_core::finding::Findings;
use relevo_core::finding::Severity;
use serde_json::Value;

use super::QueueCheck;
use crate::examine::{QueueRole, server};

/// The default limit of quorum queues in RabbitMQ 4.0 and later.
const SERVER_DEFAULT_LIMIT: i64 = 20;
/// Not `-1`: before 4.0 that limit is reached at the first return, and not every 4.x accepts it in a policy.
const RAISE_LIMIT: &str = "set `delivery_limit` in the topology before the queue is made, or `delivery-limit` in the policy that \
     applies to it, to what is never reached, such as 1000000";

impl QueueCheck<'_> {
    /// The effective delivery limit; `None` without a limit.
    pub(super) fn configured_delivery_limit(&self) -> Option<i64> {
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
    pub(super) fn delivery_limit(&self, role: QueueRole, report: &mut Findings) {
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
mod tests {
    use serde_json::json;

    use super::super::tests::{problems, problems_in_role, quorum, safe_arguments, server_state};
    use super::*;
    use crate::management::{PolicyInfo, QueueInfo, ServerState};

    #[test]
    fn from_4_0_on_every_quorum_queue_has_a_delivery_limit() {
        let mut seen = server_state(quorum(&json!({}), 1), 1);
        let missing = (Severity::Warning, "dead-letter-missing".to_owned());
        assert_eq!(problems(&seen), std::slice::from_ref(&missing));
        seen.version = "4.1.0".to_owned();
        let drops = (Severity::Danger, "delivery-limit-drops".to_owned());
        assert_eq!(problems(&seen), [drops.clone(), missing]);
        // A dead-letter queue has no dead-letter queue of its own, and no consumer that returns messages.
        assert_eq!(problems_in_role(&seen, QueueRole::Auxiliary), []);
        let limited = server_state(quorum(&json!({ "x-delivery-limit": 3 }), 1), 1);
        assert_eq!(problems_in_role(&limited, QueueRole::Auxiliary), [drops]);
    }

    /// A snapshot from a server of this version, with a consumed queue that has a dead-letter queue.
    fn with_delivery_limit(version: &str, argument: Option<i64>, policy: Option<i64>) -> ServerState {
        let mut arguments = safe_arguments();
        if let Some(limit) = argument {
            arguments["x-delivery-limit"] = json!(limit);
        }
        let definition = policy.map(|limit| ("delivery-limit".to_owned(), json!(limit))).into_iter().collect();
        let policy = PolicyInfo { name: "limits".to_owned(), definition, ..PolicyInfo::default() };
        let mut seen = server_state(QueueInfo { policy: Some("limits".to_owned()), ..quorum(&arguments, 1) }, 1);
        seen.policies.insert("limits".to_owned(), policy);
        seen.version = version.to_owned();
        seen
    }

    #[test]
    fn the_default_delivery_limit_of_the_server_is_reported_until_a_limit_is_set() {
        let default = [(Severity::Warning, "delivery-limit-default".to_owned())];
        for version in ["4.0.1", "4.1.8", "4.3.0"] {
            assert_eq!(problems(&with_delivery_limit(version, None, None)), default, "{version}");
            assert_eq!(
                problems_in_role(&with_delivery_limit(version, None, None), QueueRole::Auxiliary),
                [],
                "{version}"
            );
            assert_eq!(problems(&with_delivery_limit(version, Some(1_000_000), None)), [], "{version}");
            assert_eq!(problems(&with_delivery_limit(version, None, Some(1_000_000))), [], "{version}");
        }
        for version in ["3.10.8", "3.13.7"] {
            assert_eq!(problems(&with_delivery_limit(version, None, None)), [], "{version}");
        }
        let classic = QueueInfo { kind: "classic".to_owned(), ..quorum(&json!({}), 1) };
        let seen = ServerState { version: "4.1.8".to_owned(), ..server_state(classic, 1) };
        assert!(!problems(&seen).contains(&default[0]), "only quorum queues have one");
    }

    #[test]
    fn a_negative_limit_means_unlimited_from_4_0_on_and_zero_before() {
        let of = |version, argument, policy| {
            let seen = with_delivery_limit(version, argument, policy);
            QueueCheck { server_state: &seen, queue: &seen.queues["q"], name: String::new() }
                .configured_delivery_limit()
        };
        assert_eq!((of("4.1.8", Some(-1), None), of("4.1.8", None, Some(-1))), (None, None));
        assert_eq!((of("4.1.8", Some(-1), Some(5)), of("4.1.8", Some(5), Some(-1))), (Some(5), Some(5)));
        assert_eq!((of("4.1.8", Some(3), Some(5)), of("4.1.8", None, None)), (Some(3), Some(20)));
        assert_eq!((of("3.10.8", Some(-1), None), of("3.10.8", None, None)), (Some(0), None));
    }
}
