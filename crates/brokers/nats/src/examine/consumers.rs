//! Checks whether consumers receive every message until it is acknowledged.

use async_nats::jetstream::consumer::{self, AckPolicy};
use relevo_core::address_template::AddressTemplate;
use relevo_core::finding::Findings;
use relevo_core::finding::Severity;

use crate::config::Config;
use crate::server_state::ServerState;
use crate::topology::validate::words;

/// Checks one durable consumer, including those that Relevo did not create.
pub(super) fn examine(info: &consumer::Info, report: &mut Findings) {
    if info.config.durable_name.is_none() {
        return;
    }
    let name = format!("consumer `{}` of stream `{}`", info.name, info.stream_name);
    if info.config.ack_policy == AckPolicy::None {
        let what = format!("{name} takes every message as acknowledged when it is sent: a crash loses it");
        let fix = "make it again with `ack_policy` `explicit`".to_owned();
        report.problem(Severity::Warning, "consumer-ack", what, fix);
    } else {
        report.passed("consumer-ack", name.clone());
    }
    if info.config.max_deliver > 0 {
        let what = format!(
            "{name} gets a message at most {} times; then the server gives it up and puts it nowhere",
            info.config.max_deliver
        );
        let fix = "remove `max_deliver`: the inbox keeps what cannot be handled as a dead letter".to_owned();
        report.problem(Severity::Warning, "delivery-limit-drops", what, fix);
    } else {
        report.passed("delivery-limit-drops", name);
    }
}

/// Checks whether the server supports the configured groups.
pub(super) fn examine_groups(config: &Config, seen: &ServerState, report: &mut Findings) {
    for group in &config.topology.groups {
        let name = format!("group `{}`", group.name);
        if group.subjects.len() > 1 && seen.version < (2, 10) {
            let what = format!("{name} reads {} subjects: the server ignores them and sends all", group.subjects.len());
            let fix = "upgrade the server to 2.10 or later, or read one subject, with wildcards, a group".to_owned();
            report.problem(Severity::Danger, "settings-ignored", what, fix);
        } else {
            report.passed("settings-ignored", name);
        }
    }
}

/// Checks whether groups read the same number of lanes as publishers use.
pub(super) fn examine_lanes(config: &Config, addresses: &[String], seen: &ServerState, report: &mut Findings) {
    let told = |lanes: Option<u16>| lanes.map_or("no lanes".to_owned(), |lanes| format!("{lanes} lanes"));
    for group in &config.topology.groups {
        // A group without subjects reads everything that its stream stores.
        let stored = || seen.streams.get(&group.stream).map_or(&[][..], |stream| &stream.config.subjects);
        let subjects = if group.subjects.is_empty() { stored() } else { &group.subjects };
        let reads = |address: &&String| {
            let template = AddressTemplate::new(address);
            // A group without lanes sees the lane of a publisher as a token of the subject.
            let with_lane = config.lanes.map(|_| AddressTemplate::new(&format!("{address}.0")));
            subjects.iter().any(|subject| {
                let words = words(subject);
                template.can_match(&words)
                    || (group.lanes.is_none() && with_lane.as_ref().is_some_and(|subject| subject.can_match(&words)))
            })
        };
        let Some(address) = addresses.iter().find(reads) else { continue };
        if group.lanes == config.lanes {
            report.passed("lanes-differ", format!("group `{}`", group.name));
            continue;
        }
        let what = format!(
            "group `{}` has {} and reads `{address}`, which is published to {}: messages never come, or with a wrong \
             address",
            group.name,
            told(group.lanes),
            told(config.lanes)
        );
        let fix = "give the broker's section and the group the same `lanes`".to_owned();
        report.problem(Severity::Danger, "lanes-differ", what, fix);
    }
}
