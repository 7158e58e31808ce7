//! Whether consumers get every message until it is acknowledged.

use async_nats::jetstream::consumer::{self, AckPolicy};
use relevo_core::operate::Severity;
use relevo_core::report::Report;

use crate::config::Config;
use crate::snapshot::Snapshot;

/// Looks at one durable consumer, whoever made it.
pub(super) fn examine(info: &consumer::Info, report: &mut Report) {
    if info.config.durable_name.is_none() {
        return;
    }
    let name = format!("consumer `{}` of stream `{}`", info.name, info.stream_name);
    if info.config.ack_policy == AckPolicy::None {
        let what = format!("{name} takes every message as acknowledged when it is sent: a crash loses it");
        let fix = "make it again with `ack_policy` `explicit`".to_owned();
        report.told(Severity::Warning, "consumer-ack", what, fix);
    } else {
        report.good("consumer-ack", name.clone());
    }
    if info.config.max_deliver > 0 {
        let what = format!(
            "{name} gets a message at most {} times; then the server gives it up and puts it nowhere",
            info.config.max_deliver
        );
        let fix = "remove `max_deliver`: Relevo's consumers reject to the stream of dead letters".to_owned();
        report.told(Severity::Warning, "delivery-limit-drops", what, fix);
    } else {
        report.good("delivery-limit-drops", name);
    }
}

/// Looks at what the configured groups need of the server.
pub(super) fn examine_groups(config: &Config, seen: &Snapshot, report: &mut Report) {
    for group in &config.topology.groups {
        let name = format!("group `{}`", group.name);
        if group.subjects.len() > 1 && seen.version < (2, 10) {
            let what = format!("{name} reads {} subjects: the server ignores them and sends all", group.subjects.len());
            let fix = "upgrade the server to 2.10 or later, or read one subject, with wildcards, a group".to_owned();
            report.told(Severity::Danger, "settings-ignored", what, fix);
        } else {
            report.good("settings-ignored", name);
        }
    }
}
