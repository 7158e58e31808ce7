//! Checks whether the server's settings keep the guarantees. Each failed check says how to fix it.

use std::collections::BTreeSet;

use async_nats::jetstream::stream;
use relevo_core::address_template::AddressTemplate;
use relevo_core::broker::admin::ExamineContext;
use relevo_core::finding::{Finding, Severity};
use relevo_core::finding::{Findings, join_limited};

use crate::config::Config;
use crate::consume::lane_store;
use crate::server_state::ServerState;
use crate::topology::validate::words;

mod consumers;
mod flush_interval;
mod server;
mod streams;

pub(crate) use flush_interval::FlushInterval;

/// Runs all checks.
pub(crate) fn examine(
    config: &Config,
    expectations: &ExamineContext,
    seen: &ServerState,
    sync: &FlushInterval,
) -> Vec<Finding> {
    let mut report = Findings::default();
    server::examine(config, seen, &mut report);
    let mut names: BTreeSet<String> = BTreeSet::new();
    for stream in &config.topology.streams {
        names.insert(stream.name.clone());
    }
    for group in &config.topology.groups {
        names.insert(group.stream.clone());
    }
    if !config.topology.groups.is_empty()
        && let Some(bucket) = seen.streams.get(&lane_store::stream_name())
    {
        streams::examine_bucket(bucket, seen, &mut report);
    }
    for address in &expectations.addresses {
        names.extend(examine_address(config, address, seen, &mut report));
    }
    let sent: Vec<String> = expectations.addresses.iter().flat_map(|address| subjects(config, address)).collect();
    for name in names {
        let Some(info) = seen.streams.get(&name) else {
            let what = format!("stream `{name}` of the topology is not there");
            report.problem(Severity::Warning, "stream-missing", what, "run `relevo topology apply`".to_owned());
            continue;
        };
        streams::examine(info, &sent, seen, expectations, sync, &mut report);
        let of_it = seen.consumers.iter().filter(|((stream, _), _)| *stream == name);
        for (_, consumer) in of_it {
            consumers::examine(consumer, &mut report);
        }
    }
    consumers::examine_groups(config, seen, &mut report);
    consumers::examine_lanes(config, &expectations.addresses, seen, &mut report);
    report.into_sorted()
}

/// Whether a stream could store one of these addresses.
pub(crate) fn is_published_to(config: &Config, addresses: &[String], stream: &stream::Config) -> bool {
    addresses.iter().flat_map(|address| subjects(config, address)).any(|subject| stores_subject(stream, &subject))
}

/// The subjects of an address: one per lane.
fn subjects(config: &Config, address: &str) -> Vec<String> {
    match config.lanes {
        None => vec![address.to_owned()],
        Some(lanes) => (0..lanes).map(|lane| format!("{address}.{lane}")).collect(),
    }
}

fn stores_subject(stream: &stream::Config, subject: &str) -> bool {
    let template = AddressTemplate::new(subject);
    stream.subjects.iter().any(|pattern| template.can_match(&words(pattern)))
}

/// Returns the streams that store a route's address. Reports a finding if none does.
fn examine_address(config: &Config, address: &str, seen: &ServerState, report: &mut Findings) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut unbound = Vec::new();
    let mut elsewhere = BTreeSet::new();
    for subject in subjects(config, address) {
        let takes = |info: &&stream::Info| stores_subject(&info.config, &subject);
        let streams: Vec<String> = seen.streams.values().filter(takes).map(|info| info.config.name.clone()).collect();
        if streams.is_empty() {
            unbound.push(format!("`{subject}`"));
        }
        if config.stream.as_ref().is_some_and(|expected| !streams.contains(expected)) {
            elsewhere.extend(streams.iter().map(|name| format!("`{name}`")));
        }
        reached.extend(streams);
    }
    let fix = || "declare a stream with that subject in the topology, or mend the route's address".to_owned();
    match &config.stream {
        _ if !unbound.is_empty() => {
            let what = format!("address `{address}`: no stream stores the subject {}", join_limited(&unbound));
            report.problem(Severity::Danger, "route-unbound", what, fix());
        }
        Some(expected) if !elsewhere.is_empty() => {
            let streams: Vec<String> = elsewhere.into_iter().collect();
            let what = format!(
                "address `{address}` is stored by {}, not by the expected `{expected}`",
                join_limited(&streams)
            );
            report.problem(Severity::Danger, "route-unbound", what, fix());
        }
        _ => report.passed("route-unbound", format!("address `{address}`")),
    }
    reached
}
