//! Checks the transport and the version of the server.

use std::net::IpAddr;

use relevo_core::finding::Findings;
use relevo_core::finding::Severity;

use crate::config::Config;
use crate::connection;
use crate::server_state::ServerState;
use crate::topology::ATOMIC_FROM;

/// Checks the transport and the server version.
pub(super) fn examine(config: &Config, seen: &ServerState, report: &mut Findings) {
    examine_transport(config, seen.server.tls_required, report);
    let version = &seen.server.version;
    let (what, fix) = if seen.version < (2, 10) {
        ("it ignores several subjects of a consumer, and its sync interval cannot be set", "upgrade to 2.10 or later")
    } else if seen.version < ATOMIC_FROM {
        (
            "it cannot store batches all or nothing, which makes up for `sync_interval: always`",
            "upgrade to 2.12 or later",
        )
    } else {
        report.passed("server-version", format!("NATS {version}"));
        return;
    };
    report.problem(Severity::Note, "server-version", format!("NATS {version}: {what}"), fix.to_owned());
    for stream in config.topology.streams.iter().filter(|stream| stream.allow_atomic_publish) {
        let what =
            format!("stream `{}` is made without `allow_atomic_publish`, which NATS {version} lacks", stream.name);
        report.problem(Severity::Note, "settings-ignored", what, "upgrade to 2.12 or later".to_owned());
    }
}

/// Checks whether the connection is encrypted. A server that requires TLS gets it, whatever the URL says.
fn examine_transport(config: &Config, required: bool, report: &mut Findings) {
    for server in connection::servers(config).unwrap_or_default() {
        let host = server.host();
        let encrypted = server.tls_required() || config.tls.required || config.tls.handshake_first || required;
        if encrypted || is_loopback(host) {
            report.passed("plain-text", format!("NATS at `{host}`"));
        } else {
            let what = format!("messages and login go to `{host}` in plain text");
            let fix = "use a `tls://` URL; the server needs a `tls` block".to_owned();
            report.problem(Severity::Danger, "plain-text", what, fix);
        }
    }
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(url: &str, required: bool) -> usize {
        let mut report = Findings::default();
        examine_transport(&Config::new(url), required, &mut report);
        let found = report.into_sorted();
        found.iter().filter(|one| one.severity == Severity::Danger && one.subject == "plain-text").count()
    }

    #[test]
    fn plain_text_is_for_loopback_only() {
        for url in ["nats://localhost:4222", "nats://127.0.0.2:4222", "nats://[::1]:4222", "tls://nats.example:4222"] {
            assert_eq!(plain(url, false), 0, "{url}");
        }
        assert_eq!(plain("nats://nats.example:4222", false), 1);
        assert_eq!(plain("nats://nats.example:4222", true), 0);
    }
}
