//! Checks whether the server's settings keep the guarantees. Each failed check has a fix.

use std::collections::BTreeSet;

use async_nats::jetstream::stream;
use relevo_core::address_template::AddressTemplate;
use relevo_core::broker::admin::ExamineContext;
use relevo_core::finding::{Finding, Findings, Severity, join_limited};

use crate::config::Config;
use crate::consume::lane_store;
use crate::server_state::ServerState;
use crate::topology::validate::pattern_words;

mod consumers;
mod flush_interval;
mod server;
mod streams;

pub(crate) use flush_interval::FlushInterval;

/// Runs all checks.
pub(crate) fn examine(
    config: &Config,
    context: &ExamineContext,
    server: &ServerState,
    flush_interval: &FlushInterval,
) -> Vec<Finding> {
    let mut findings = Findings::default();
    server::examine(config, server, &mut findings);
    let topology = &config.topology;
    let mut names: BTreeSet<String> = topology.streams.iter().map(|stream| stream.name.clone()).collect();
    names.extend(topology.groups.iter().map(|group| group.stream.clone()));
    if !topology.groups.is_empty()
        && let Some(bucket) = server.streams.get(&lane_store::stream_name())
    {
        streams::examine_bucket(bucket, server, &mut findings);
    }
    for address in &context.addresses {
        names.extend(examine_address(config, address, server, &mut findings));
    }
    let published: Vec<String> = context.addresses.iter().flat_map(|address| subjects(config, address)).collect();
    for name in names {
        let Some(info) = server.streams.get(&name) else {
            let problem = format!("stream `{name}` of the topology does not exist");
            findings.problem(Severity::Warning, "stream-missing", problem, "run `relevo topology apply`".to_owned());
            continue;
        };
        streams::examine(info, &published, server, context, flush_interval, &mut findings);
        for (_, consumer) in server.consumers.iter().filter(|((stream, _), _)| *stream == name) {
            consumers::examine(consumer, &mut findings);
        }
    }
    consumers::examine_groups(config, server, &mut findings);
    consumers::examine_lanes(config, &context.addresses, server, &mut findings);
    findings.into_sorted()
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
    stream.subjects.iter().any(|pattern| template.can_match(&pattern_words(pattern)))
}

/// Returns the streams that store a route's address. Reports a problem if none does, or not the expected one.
fn examine_address(config: &Config, address: &str, server: &ServerState, findings: &mut Findings) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut unbound = Vec::new();
    let mut unexpected = BTreeSet::new();
    for subject in subjects(config, address) {
        let stores = |info: &&stream::Info| stores_subject(&info.config, &subject);
        let streams: Vec<String> =
            server.streams.values().filter(stores).map(|info| info.config.name.clone()).collect();
        if streams.is_empty() {
            unbound.push(format!("`{subject}`"));
        }
        if config.stream.as_ref().is_some_and(|expected| !streams.contains(expected)) {
            unexpected.extend(streams.iter().map(|name| format!("`{name}`")));
        }
        reached.extend(streams);
    }
    let is_good = unbound.is_empty() && unexpected.is_empty();
    findings.check(is_good, Severity::Danger, "route-unbound", format!("address `{address}`"), || {
        let problem = if unbound.is_empty() {
            let streams: Vec<String> = unexpected.into_iter().collect();
            let expected = config.stream.as_deref().unwrap_or_default();
            format!("address `{address}` is stored by {}, not by the expected `{expected}`", join_limited(&streams))
        } else {
            format!("address `{address}`: no stream stores the subject {}", join_limited(&unbound))
        };
        (problem, "declare a stream with that subject in the topology, or correct the route's address".to_owned())
    });
    reached
}
