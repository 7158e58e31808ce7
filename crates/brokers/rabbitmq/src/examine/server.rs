//! Checks the transport, the version and the cluster of the broker.

use relevo_core::finding::{Findings, Severity};
use serde_json::Value;

use crate::config::Config;
use crate::management::ServerState;

/// Checks the transport and the server.
pub(super) fn examine(config: &Config, server: &ServerState, findings: &mut Findings) {
    examine_transport(config, findings);
    let name = format!("RabbitMQ {}", server.version);
    findings.check(version(&server.version) >= (3, 10), Severity::Warning, "server-version", name, || {
        let detail = format!("RabbitMQ {}: quorum queues dead-letter at least once only from 3.10 on", server.version);
        (detail, "upgrade RabbitMQ to 3.10 or later".to_owned())
    });
    match &server.nodes {
        None => findings.problem(
            Severity::Note,
            "management",
            "the user lacks the tag `monitoring`: the nodes are not visible, and replicas were not compared with the cluster"
                .to_owned(),
            "give the user the tag `monitoring`".to_owned(),
        ),
        Some(nodes) => {
            findings.passed("management", format!("{} node(s)", nodes.len()));
            for (node, _) in nodes.iter().filter(|(_, running)| !**running) {
                let detail = format!("node `{node}` of the cluster is down");
                findings.problem(Severity::Warning, "cluster-node", detail, format!("start `{node}`"));
            }
        }
    }
    // From 3.13 on the flag is not needed.
    if server.flags.is_none() && version(&server.version) < (3, 13) {
        let detail = "the user lacks the tag `administrator`: the feature flags are not visible, and whether dead letters move \
                    at least once was not checked";
        let fix = "give the user the tag `administrator`, or run `rabbitmqctl list_feature_flags`".to_owned();
        findings.problem(Severity::Note, "management", detail.to_owned(), fix);
    }
    // A policy selects queues by a regular expression, which the API does not resolve.
    for policy in server.operator_policies.iter().flatten() {
        let definition = Value::from_iter(policy.definition.clone());
        let detail = format!(
            "operator policy `{}` sets {definition} for names that match `{}`: not considered by other checks",
            policy.name, policy.pattern
        );
        let can_drop = policy
            .definition
            .keys()
            .any(|setting| setting.starts_with("max-length") || matches!(setting.as_str(), "message-ttl" | "expires"));
        let severity = if can_drop { Severity::Warning } else { Severity::Note };
        let fix = "check that it neither drops nor expires messages of your queues".to_owned();
        findings.problem(severity, "operator-policy", detail, fix);
    }
}

/// Checks whether the connection is encrypted.
pub(super) fn examine_transport(config: &Config, findings: &mut Findings) {
    for transport in config.transports() {
        transport.examine(findings);
    }
}

/// The major and minor version; zeros if the text is not a version.
pub(super) fn version(text: &str) -> (u32, u32) {
    let mut numbers = text.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use relevo_core::finding::Finding;

    use super::*;
    use crate::management::PolicyInfo;

    fn plain(url: &str, management: Option<&str>) -> Vec<Finding> {
        let config =
            Config { management_urls: management.into_iter().map(str::to_owned).collect(), ..Config::new(url) };
        let mut findings = Findings::default();
        examine_transport(&config, &mut findings);
        findings.into_sorted().into_iter().filter(|finding| finding.severity != Severity::Ok).collect()
    }

    #[test]
    fn plain_text_is_a_warning_in_a_private_network_and_a_danger_in_a_public_one() {
        for url in ["amqp://localhost", "amqp://127.0.0.1:5673/v", "amqp://[::1]:5672", "amqps://rabbit.example"] {
            assert_eq!(plain(url, Some("http://u:p@127.0.0.1:15672")), [], "{url}");
        }
        let found = plain("amqp://u:swordfish@rabbit.example", Some("http://u:swordfish@10.0.0.1:15672/x"));
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|finding| finding.subject == "plain-text" && finding.fix.is_some()));
        assert_eq!((found[0].severity, found[1].severity), (Severity::Danger, Severity::Warning));
        assert!(found[0].detail.contains("`rabbit.example`") && found[1].detail.contains("`10.0.0.1`"), "{found:?}");
        assert!(!format!("{found:?}").contains("swordfish"));
    }

    #[test]
    fn dropping_operator_policies_and_hidden_feature_flags_are_reported() {
        let policy = |setting: &str| PolicyInfo {
            name: setting.to_owned(),
            definition: [(setting.to_owned(), 5.into())].into(),
            ..PolicyInfo::default()
        };
        let server = ServerState {
            version: "3.10.8".to_owned(),
            operator_policies: Some(
                ["max-length", "message-ttl", "expires", "max-in-memory-length"].map(policy).into(),
            ),
            nodes: Some(std::iter::once(("a".to_owned(), true)).collect()),
            ..ServerState::default()
        };
        let mut findings = Findings::default();
        examine(&Config::new("amqp://localhost"), &server, &mut findings);
        let found = findings.into_sorted();
        let of = |subject: &str, severity| {
            found.iter().filter(|one| one.subject == subject && one.severity == severity).count()
        };
        assert_eq!((of("operator-policy", Severity::Warning), of("operator-policy", Severity::Note)), (3, 1));
        assert_eq!(of("management", Severity::Note), 1, "{found:?}");
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(version("3.9.29") < (3, 10) && version("3.10.8") >= (3, 10) && version("4.0.2") > (3, 13));
    }
}
