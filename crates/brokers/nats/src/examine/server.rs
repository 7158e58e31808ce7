//! Checks the transport and the version of the server.

use relevo_core::finding::{Findings, Severity};
use relevo_core::host_scope::Transport;

use crate::config::Config;
use crate::server_state::ServerState;
use crate::topology::ATOMIC_FROM;

/// Checks the transport and the server version.
pub(super) fn examine(config: &Config, server: &ServerState, findings: &mut Findings) {
    examine_transport(config, server.server.tls_required, findings);
    let version = &server.server.version;
    let (limitation, fix) = if server.version < (2, 10) {
        (
            "it ignores all but one subject of a consumer, and its sync interval cannot be set",
            "upgrade to 2.10 or later",
        )
    } else if server.version < ATOMIC_FROM {
        ("it has no atomic batches, which reduce the cost of `sync_interval: always`", "upgrade to 2.12 or later")
    } else {
        findings.passed("server-version", format!("NATS {version}"));
        return;
    };
    findings.problem(Severity::Note, "server-version", format!("NATS {version}: {limitation}"), fix.to_owned());
    for stream in config.topology.streams.iter().filter(|stream| stream.allow_atomic_publish) {
        let problem = format!(
            "stream `{}` is created without `allow_atomic_publish`, which NATS {version} does not support",
            stream.name
        );
        findings.problem(Severity::Note, "settings-ignored", problem, "upgrade to 2.12 or later".to_owned());
    }
}

/// Checks whether the connection is encrypted. It is if the server requires TLS, whatever the URL contains.
fn examine_transport(config: &Config, required: bool, findings: &mut Findings) {
    for transport in config.transports() {
        Transport { encrypted: transport.encrypted || required, ..transport }.examine(findings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain_text_findings(url: &str, required: bool) -> Vec<Severity> {
        let mut findings = Findings::default();
        examine_transport(&Config::new(url), required, &mut findings);
        let all = findings.into_sorted();
        let found = all.iter().filter(|one| one.severity != Severity::Ok && one.subject == "plain-text");
        found.map(|one| one.severity).collect()
    }

    #[test]
    fn plain_text_is_a_warning_in_a_private_network_and_a_danger_in_a_public_one() {
        for url in ["nats://localhost:4222", "nats://127.0.0.2:4222", "nats://[::1]:4222", "tls://nats.example:4222"] {
            assert_eq!(plain_text_findings(url, false), [], "{url}");
        }
        assert_eq!(plain_text_findings("nats://10.0.0.1:4222", false), [Severity::Warning]);
        assert_eq!(plain_text_findings("nats://nats.example:4222", false), [Severity::Danger]);
        assert_eq!(plain_text_findings("nats://nats.example:4222", true), []);
    }
}
