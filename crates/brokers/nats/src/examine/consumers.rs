//! Checks whether consumers receive every message until it is acknowledged.

use async_nats::jetstream::consumer::{self, AckPolicy};
use relevo_core::address_template::AddressTemplate;
use relevo_core::finding::{Findings, Severity};

use crate::config::Config;
use crate::server_state::ServerState;
use crate::topology::validate::pattern_words;

/// Checks one durable consumer, including those that Relevo did not create.
pub(super) fn examine(info: &consumer::Info, findings: &mut Findings) {
    if info.config.durable_name.is_none() {
        return;
    }
    let name = format!("consumer `{}` of stream `{}`", info.name, info.stream_name);
    let acknowledges = info.config.ack_policy != AckPolicy::None;
    findings.check(acknowledges, Severity::Warning, "consumer-ack", name.clone(), || {
        let problem = format!("{name} counts every message as acknowledged when it is sent: a crash loses it");
        (problem, "recreate it with `ack_policy` `explicit`".to_owned())
    });
    let limit = info.config.max_deliver;
    findings.check(limit <= 0, Severity::Warning, "delivery-limit-drops", name.clone(), || {
        let problem = format!("{name} delivers a message at most {limit} times; then the server drops it");
        (problem, "remove `max_deliver`: the inbox dead-letters messages that cannot be handled".to_owned())
    });
}

/// Checks whether the server supports the configured groups.
pub(super) fn examine_groups(config: &Config, server: &ServerState, findings: &mut Findings) {
    for group in &config.topology.groups {
        let name = format!("group `{}`", group.name);
        let subjects = group.subjects.len();
        let is_supported = subjects <= 1 || server.version >= (2, 10);
        findings.check(is_supported, Severity::Danger, "settings-ignored", name.clone(), || {
            let problem =
                format!("{name} reads {subjects} subjects; the server ignores them and delivers all messages");
            let fix = "upgrade the server to 2.10 or later, or give the group one subject with wildcards";
            (problem, fix.to_owned())
        });
    }
}

/// Checks whether groups read the same number of lanes as publishers use.
pub(super) fn examine_lanes(config: &Config, addresses: &[String], server: &ServerState, findings: &mut Findings) {
    let count = |lanes: Option<u16>| lanes.map_or("no lanes".to_owned(), |lanes| format!("{lanes} lanes"));
    for group in &config.topology.groups {
        // A group without subjects reads everything that its stream stores.
        let stored = || server.streams.get(&group.stream).map_or(&[][..], |stream| &stream.config.subjects);
        let subjects = if group.subjects.is_empty() { stored() } else { &group.subjects };
        let reads = |address: &&String| {
            let template = AddressTemplate::new(address);
            // A group without lanes sees the lane of a publisher as a token of the subject.
            let with_lane = config.lanes.map(|_| AddressTemplate::new(&format!("{address}.0")));
            subjects.iter().any(|subject| {
                let words = pattern_words(subject);
                template.can_match(&words)
                    || (group.lanes.is_none() && with_lane.as_ref().is_some_and(|subject| subject.can_match(&words)))
            })
        };
        let Some(address) = addresses.iter().find(reads) else { continue };
        let name = format!("group `{}`", group.name);
        findings.check(group.lanes == config.lanes, Severity::Danger, "lanes-differ", name.clone(), || {
            let problem = format!(
                "{name} has {} and reads `{address}`, which is published with {}: messages are not delivered, or have \
                 a wrong address",
                count(group.lanes),
                count(config.lanes)
            );
            (problem, "set the same `lanes` for the broker and the group".to_owned())
        });
    }
}
