//! Checks the delivery limit of a queue.

use relevo_core::operate::Severity;
use relevo_core::report::Report;
use serde_json::Value;

use super::Look;
use crate::examine::{Role, server};

/// The default limit of quorum queues in RabbitMQ 4.0 and later.
const BROKERS_LIMIT: i64 = 20;
/// Not `-1`: before 4.0 that limit is reached at the first return, and not every 4.x accepts it in a policy.
const RAISE_LIMIT: &str = "set `delivery_limit` in the topology before the queue is made, or `delivery-limit` in the policy that \
     applies to it, to what is never reached, such as 1000000";

impl Look<'_> {
    /// The effective delivery limit; `None` without a limit.
    pub(super) fn delivery_limit_set(&self) -> Option<i64> {
        if self.queue.kind != "quorum" {
            return None;
        }
        let is_4 = server::version(&self.seen.version) >= (4, 0);
        let number = |value: Option<&Value>| value.and_then(Value::as_i64);
        let (argument, policy) = self.seen.both(self.queue, "delivery-limit");
        let set = match (number(argument), number(policy)) {
            // From 4.0 on a negative value means no limit, and a real limit takes precedence.
            (Some(a), Some(b)) if is_4 && (a < 0 || b < 0) => Some(a.max(b)),
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        match set {
            None => is_4.then_some(BROKERS_LIMIT),
            Some(limit) if is_4 => (limit >= 0).then_some(limit),
            // Before 4.0 a negative value has the effect of zero.
            Some(limit) => Some(limit.max(0)),
        }
    }

    /// Checks whether the limit drops messages, and whether it was set explicitly.
    pub(super) fn delivery_limit(&self, role: Role, report: &mut Report) {
        let is_unset = self.setting("delivery-limit").is_none();
        // No consumer returns messages to an auxiliary queue, so the default limit does not matter there. An explicit
        // limit does.
        let limit = self.delivery_limit_set().filter(|_| role == Role::Work || !is_unset);
        let has_end = self.seen.text(self.queue, "dead-letter-exchange").is_some();
        match limit {
            Some(limit) if !has_end => {
                let what = format!("drops a message that was returned more than {limit} times");
                let fix = if is_unset { RAISE_LIMIT } else { "remove the delivery limit" };
                let fix = format!("give it dead letters, or {fix}");
                self.told(Severity::Danger, "delivery-limit-drops", &what, &fix, report);
            }
            _ => self.good("delivery-limit-drops", report),
        }
        match limit {
            Some(limit) if is_unset && has_end => {
                let what = format!(
                    "has the delivery limit that RabbitMQ {} gives where nobody sets one: what came back more than {limit} times, \
                     because consumers were killed or `consumer_timeout` passed, is dead-lettered, and no inbox knows of it",
                    self.seen.version
                );
                self.told(Severity::Warning, "delivery-limit-default", &what, RAISE_LIMIT, report);
            }
            // A worse problem was already reported.
            Some(_) if is_unset => {}
            _ => self.good("delivery-limit-default", report),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{bad, bad_as, quorum, safe, snapshot};
    use super::*;
    use crate::management::{SeenPolicy, SeenQueue, Snapshot};

    #[test]
    fn from_4_0_on_every_quorum_queue_has_a_delivery_limit() {
        let mut seen = snapshot(quorum(&json!({}), 1), 1);
        let missing = (Severity::Warning, "dead-letter-missing".to_owned());
        assert_eq!(bad(&seen), std::slice::from_ref(&missing));
        seen.version = "4.1.0".to_owned();
        let drops = (Severity::Danger, "delivery-limit-drops".to_owned());
        assert_eq!(bad(&seen), [drops.clone(), missing]);
        // A dead-letter queue has no dead-letter queue of its own, and no consumer that returns messages.
        assert_eq!(bad_as(&seen, Role::Side), []);
        let limited = snapshot(quorum(&json!({ "x-delivery-limit": 3 }), 1), 1);
        assert_eq!(bad_as(&limited, Role::Side), [drops]);
    }

    /// A snapshot from a server of this version, with a consumed queue that has a dead-letter queue.
    fn limited(version: &str, argument: Option<i64>, policy: Option<i64>) -> Snapshot {
        let mut arguments = safe();
        if let Some(limit) = argument {
            arguments["x-delivery-limit"] = json!(limit);
        }
        let definition = policy.map(|limit| ("delivery-limit".to_owned(), json!(limit))).into_iter().collect();
        let policy = SeenPolicy { name: "limits".to_owned(), definition, ..SeenPolicy::default() };
        let mut seen = snapshot(SeenQueue { policy: Some("limits".to_owned()), ..quorum(&arguments, 1) }, 1);
        seen.policies.insert("limits".to_owned(), policy);
        seen.version = version.to_owned();
        seen
    }

    #[test]
    fn a_limit_that_the_broker_brings_itself_is_told_until_somebody_sets_one() {
        let default = [(Severity::Warning, "delivery-limit-default".to_owned())];
        for version in ["4.0.1", "4.1.8", "4.3.0"] {
            assert_eq!(bad(&limited(version, None, None)), default, "{version}");
            assert_eq!(bad_as(&limited(version, None, None), Role::Side), [], "{version}");
            assert_eq!(bad(&limited(version, Some(1_000_000), None)), [], "{version}");
            assert_eq!(bad(&limited(version, None, Some(1_000_000))), [], "{version}");
        }
        for version in ["3.10.8", "3.13.7"] {
            assert_eq!(bad(&limited(version, None, None)), [], "{version}");
        }
        let classic = SeenQueue { kind: "classic".to_owned(), ..quorum(&json!({}), 1) };
        let seen = Snapshot { version: "4.1.8".to_owned(), ..snapshot(classic, 1) };
        assert!(!bad(&seen).contains(&default[0]), "only quorum queues have one");
    }

    #[test]
    fn a_limit_below_zero_is_none_from_4_0_on_and_zero_before() {
        let of = |version, argument, policy| {
            let seen = limited(version, argument, policy);
            Look { seen: &seen, queue: &seen.queues["q"], name: String::new() }.delivery_limit_set()
        };
        assert_eq!((of("4.1.8", Some(-1), None), of("4.1.8", None, Some(-1))), (None, None));
        assert_eq!((of("4.1.8", Some(-1), Some(5)), of("4.1.8", Some(5), Some(-1))), (Some(5), Some(5)));
        assert_eq!((of("4.1.8", Some(3), Some(5)), of("4.1.8", None, None)), (Some(3), Some(20)));
        assert_eq!((of("3.10.8", Some(-1), None), of("3.10.8", None, None)), (Some(0), None));
    }
}
