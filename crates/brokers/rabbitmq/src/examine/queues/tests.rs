//! Tests of the queue checks.

use relevo_core::finding::Finding;
use serde_json::json;

use super::*;
use crate::management::PolicyInfo;

fn quorum(arguments: &Value, members: usize) -> QueueInfo {
    let arguments = serde_json::from_value(arguments.clone()).expect("a map");
    QueueInfo {
        name: "q".to_owned(),
        durable: true,
        kind: "quorum".to_owned(),
        arguments,
        members: (0..members).map(|member| format!("node{member}")).collect(),
        ..QueueInfo::default()
    }
}

fn problems(server: &ServerState) -> Vec<(Severity, String)> {
    problems_in_role(server, QueueRole::Consumed)
}

fn problems_in_role(server: &ServerState, role: QueueRole) -> Vec<(Severity, String)> {
    let mut report = Findings::default();
    examine(server, BTreeMap::from([("q".to_owned(), role)]), &mut report);
    let is_bad = |finding: &Finding| finding.severity > Severity::Ok;
    report.into_sorted().into_iter().filter(is_bad).map(|finding| (finding.severity, finding.subject)).collect()
}

fn server_state(queue: QueueInfo, nodes: usize) -> ServerState {
    ServerState {
        queues: BTreeMap::from([("q".to_owned(), queue)]),
        nodes: Some((0..nodes).map(|node| (format!("node{node}"), true)).collect()),
        flags: Some(BTreeSet::from([AT_LEAST_ONCE_FLAG.to_owned()])),
        version: "3.10.8".to_owned(),
        ..ServerState::default()
    }
}

fn safe_arguments() -> Value {
    json!({
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "q",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    })
}

#[test]
fn a_cluster_needs_three_replicas() {
    assert_eq!(problems(&server_state(quorum(&safe_arguments(), 1), 1)), []);
    assert_eq!(problems(&server_state(quorum(&safe_arguments(), 3), 3)), []);
    let replicas = "queue-replicas".to_owned();
    assert_eq!(problems(&server_state(quorum(&safe_arguments(), 2), 3)), [(Severity::Warning, replicas.clone())]);
    assert_eq!(problems(&server_state(quorum(&safe_arguments(), 1), 3)), [(Severity::Danger, replicas)]);
}

#[test]
fn a_disabled_feature_flag_means_at_most_once() {
    let mut server = server_state(quorum(&safe_arguments(), 1), 1);
    server.flags = Some(BTreeSet::new());
    assert_eq!(problems(&server), [(Severity::Warning, "dead-letter-at-most-once".to_owned())]);
}

#[test]
fn from_4_0_on_every_quorum_queue_has_a_delivery_limit() {
    let mut server = server_state(quorum(&json!({}), 1), 1);
    let missing = (Severity::Warning, "dead-letter-missing".to_owned());
    assert_eq!(problems(&server), std::slice::from_ref(&missing));
    server.version = "4.1.0".to_owned();
    let drops = (Severity::Danger, "delivery-limit-drops".to_owned());
    assert_eq!(problems(&server), [drops.clone(), missing]);
    // A dead-letter queue has no dead-letter queue of its own, and no consumer that returns messages.
    assert_eq!(problems_in_role(&server, QueueRole::Auxiliary), []);
    let limited = server_state(quorum(&json!({ "x-delivery-limit": 3 }), 1), 1);
    assert_eq!(problems_in_role(&limited, QueueRole::Auxiliary), [drops]);
}

/// The state of a server of this version, with a consumed queue that has a dead-letter queue.
fn with_delivery_limit(version: &str, argument: Option<i64>, policy: Option<i64>) -> ServerState {
    let mut arguments = safe_arguments();
    if let Some(limit) = argument {
        arguments["x-delivery-limit"] = json!(limit);
    }
    let definition = policy.map(|limit| ("delivery-limit".to_owned(), json!(limit))).into_iter().collect();
    let policy = PolicyInfo { name: "limits".to_owned(), definition, ..PolicyInfo::default() };
    let mut server = server_state(QueueInfo { policy: Some("limits".to_owned()), ..quorum(&arguments, 1) }, 1);
    server.policies.insert("limits".to_owned(), policy);
    server.version = version.to_owned();
    server
}

#[test]
fn the_default_delivery_limit_of_the_server_is_reported_until_a_limit_is_set() {
    let default = [(Severity::Warning, "delivery-limit-default".to_owned())];
    for version in ["4.0.1", "4.1.8", "4.3.0"] {
        assert_eq!(problems(&with_delivery_limit(version, None, None)), default, "{version}");
        assert_eq!(problems_in_role(&with_delivery_limit(version, None, None), QueueRole::Auxiliary), [], "{version}");
        assert_eq!(problems(&with_delivery_limit(version, Some(1_000_000), None)), [], "{version}");
        assert_eq!(problems(&with_delivery_limit(version, None, Some(1_000_000))), [], "{version}");
    }
    for version in ["3.10.8", "3.13.7"] {
        assert_eq!(problems(&with_delivery_limit(version, None, None)), [], "{version}");
    }
    let classic = QueueInfo { kind: "classic".to_owned(), ..quorum(&json!({}), 1) };
    let server = ServerState { version: "4.1.8".to_owned(), ..server_state(classic, 1) };
    assert!(!problems(&server).contains(&default[0]), "only quorum queues have one");
}

#[test]
fn a_negative_limit_means_unlimited_from_4_0_on_and_zero_before() {
    let of = |version, argument, policy| {
        let server = with_delivery_limit(version, argument, policy);
        QueueCheck { server_state: &server, queue: &server.queues["q"], name: String::new() }
            .configured_delivery_limit()
    };
    assert_eq!((of("4.1.8", Some(-1), None), of("4.1.8", None, Some(-1))), (None, None));
    assert_eq!((of("4.1.8", Some(-1), Some(5)), of("4.1.8", Some(5), Some(-1))), (Some(5), Some(5)));
    assert_eq!((of("4.1.8", Some(3), Some(5)), of("4.1.8", None, None)), (Some(3), Some(20)));
    assert_eq!((of("3.10.8", Some(-1), None), of("3.10.8", None, None)), (Some(0), None));
}

#[test]
fn an_ordered_queue_needs_a_single_active_consumer() {
    let mut arguments = safe_arguments();
    let unordered = server_state(quorum(&arguments, 1), 1);
    let danger = [(Severity::Danger, "queue-unordered".to_owned())];
    assert_eq!(problems_in_role(&unordered, QueueRole::Ordered), danger);
    assert_eq!(problems_in_role(&unordered, QueueRole::Consumed), []);
    arguments["x-single-active-consumer"] = json!(true);
    assert_eq!(problems_in_role(&server_state(quorum(&arguments, 1), 1), QueueRole::Ordered), []);
}
