//! Everything that `status` and `top` show, at one moment.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use relevo_admin::{ConsumerRates, ProcessStatus, RelayRates};
use relevo_core::dead_letters::{DeadLetterFilter, DeadLetterState, DeadLetterSummary};
use relevo_core::inbox::admin::ConsumerDetails;
use relevo_core::outbox::OutboxOperator;
use relevo_core::outbox::inspect::{DestinationInfo, MessageStatus, MessageSummary, ShardInfo};
use relevo_core::outbox::sample::{DestinationSample, OutboxSample};
use relevo_core::outbox::search::MessageFilter;

use super::admin_client::{AdminClient, AdminReply};
use crate::connect::{ANSWER_TIMEOUT, OutboxLocation};

/// Time limit of the search for the heads of parked keys.
const SEARCH_TIMEOUT: Duration = Duration::from_millis(200);
/// The states of the first message of a parked key.
const HEADS: [MessageStatus; 3] = [MessageStatus::Retrying, MessageStatus::Held, MessageStatus::Quarantined];

/// An outbox and its consumers, from the database and from admin ports.
pub(super) struct Snapshot {
    pub(super) taken_at: Timestamp,
    pub(super) destinations: Vec<DestinationSnapshot>,
    pub(super) outbox_sample: OutboxSample,
    pub(super) consumers: Vec<ConsumerDetails>,
    pub(super) replies: Vec<AdminReply>,
    /// The name of the outbox at the admin ports, if the user named it.
    pub(super) outbox: Option<String>,
    /// Maximum number of rows of lists that may be long.
    pub(super) limit: usize,
}

/// One destination.
pub(super) struct DestinationSnapshot {
    pub(super) destination: DestinationInfo,
    pub(super) sample: DestinationSample,
    pub(super) shards: Vec<ShardInfo>,
    /// The first messages of parked keys.
    pub(super) heads: Vec<MessageSummary>,
    /// The oldest dead letters without a mark.
    pub(super) dead_letters: Vec<DeadLetterSummary>,
}

/// Takes snapshots.
pub(super) struct Poller {
    place: OutboxLocation,
    client: AdminClient,
    limit: usize,
    outbox: Option<String>,
    opened: Option<Arc<dyn OutboxOperator>>,
}

impl Poller {
    /// Lists have at most `limit` rows. `outbox` is the name of the outbox at the admin ports.
    pub(super) fn new(place: OutboxLocation, client: AdminClient, limit: usize, outbox: Option<String>) -> Self {
        Self { place, client, limit, outbox, opened: None }
    }

    /// The location of the outbox, without a password.
    pub(super) fn location(&self) -> String {
        self.place.location()
    }

    pub(super) async fn poll(&mut self) -> Result<Snapshot> {
        let (mut replies, outbox, limit) = (self.client.fetch_all().await, self.outbox.clone(), self.limit);
        let database = self.place.location();
        for status in replies.iter_mut().filter_map(|reply| reply.status.as_mut().ok()) {
            status.relays.retain(|relay| self.client.accepts(relay, &database));
        }
        let operator = self.place.consumers().await?;
        let mut consumers = Vec::new();
        for consumer in operator.list_consumers().await? {
            consumers.extend(operator.get_consumer(&consumer.name, limit).await?);
        }
        let opened = self.open().await?;
        let (known, outbox_sample) = (opened.destinations().await?, opened.sample_outbox().await?);
        let mut destinations = Vec::new();
        for destination in known {
            destinations.push(destination_snapshot(opened, destination, limit).await?);
        }
        Ok(Snapshot { taken_at: Timestamp::now(), destinations, outbox_sample, consumers, replies, outbox, limit })
    }

    /// Opens the outbox once.
    async fn open(&mut self) -> Result<&dyn OutboxOperator> {
        let opened = if let Some(opened) = self.opened.take() {
            opened
        } else {
            let opened = self.place.open(ANSWER_TIMEOUT).await;
            opened.with_context(|| format!("the outbox at {}", self.place.location()))?
        };
        Ok(&**self.opened.insert(opened))
    }
}

async fn destination_snapshot(
    outbox: &dyn OutboxOperator,
    destination: DestinationInfo,
    limit: usize,
) -> Result<DestinationSnapshot> {
    let name = &destination.name;
    let mut heads = Vec::new();
    if let Some(search) = outbox.as_search() {
        for status in HEADS {
            let filter = MessageFilter { status: Some(status), ..MessageFilter::default() };
            heads.extend(search.search(name, &filter, limit, SEARCH_TIMEOUT).await?.messages);
        }
    }
    heads.sort_by_key(|head| head.created_at);
    heads.truncate(limit);
    let unmarked = DeadLetterFilter { states: vec![DeadLetterState::Dead], ..DeadLetterFilter::of_destination(name) };
    Ok(DestinationSnapshot {
        sample: outbox.sample_destination(name).await?,
        shards: outbox.shards(name).await?,
        heads,
        dead_letters: outbox.list_dead_letters(&unmarked, None, limit).await?.letters,
        destination,
    })
}

/// Rate and latencies of a destination or a consumer, over all processes that report it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// Messages per second. `None` if no process reports it.
    pub(super) per_second: Option<f64>,
    /// In seconds. Of several processes, the slowest.
    pub(super) p50: Option<f64>,
    /// In seconds. Of several processes, the slowest.
    pub(super) p99: Option<f64>,
}

impl Rates {
    fn add(self, per_second: f64, p50: Option<f64>, p99: Option<f64>) -> Self {
        let slowest = |one: Option<f64>, other: Option<f64>| one.into_iter().chain(other).reduce(f64::max);
        Self {
            per_second: Some(self.per_second.unwrap_or_default() + per_second),
            p50: slowest(self.p50, p50),
            p99: slowest(self.p99, p99),
        }
    }
}

impl Snapshot {
    /// Confirmed messages of a destination, and the time from emit to the confirmation.
    pub(super) fn published(&self, destination: &str) -> Rates {
        self.relays(destination).fold(Rates::default(), |rates, relay| {
            rates.add(relay.published_per_second, relay.latency_p50_seconds, relay.latency_p99_seconds)
        })
    }

    /// Handled messages of a consumer, and the duration of handler attempts.
    pub(super) fn handled(&self, consumer: &str) -> Rates {
        self.members(consumer).fold(Rates::default(), |rates, member| {
            rates.add(member.handled_per_second, member.handler_p50_seconds, member.handler_p99_seconds)
        })
    }

    /// Messages of a lane that wait at the broker. Each process reports what it last knew.
    pub(super) fn lag(&self, consumer: &str, lane: &str) -> Option<u64> {
        self.members(consumer).filter_map(|member| member.lag.get(lane).copied()).max()
    }

    /// Whether all relays of a destination reach the broker, as the alert has it.
    pub(super) fn broker_up(&self, destination: &str) -> Option<bool> {
        self.relays(destination).filter_map(|relay| relay.broker_up).reduce(|one, other| one && other)
    }

    /// Outboxes that the admin ports report, if it is unknown which of them this one is.
    pub(super) fn ambiguous_outboxes(&self) -> BTreeSet<&str> {
        let names = self.destinations.iter().map(|known| self.outboxes(&known.destination.name));
        names.filter(|outboxes| self.outbox.is_none() && outboxes.len() > 1).flatten().collect()
    }

    /// The relays of a destination. None if it is unknown which of several outboxes this one is.
    fn relays(&self, destination: &str) -> impl Iterator<Item = &RelayRates> {
        let known = self.outboxes(destination);
        let outbox = match &self.outbox {
            Some(outbox) => Some(outbox.as_str()),
            None => known.first().copied().filter(|_| known.len() == 1),
        };
        let relays = self.statuses().flat_map(|status| &status.relays);
        relays.filter(move |relay| relay.destination == destination && Some(relay.outbox.as_str()) == outbox)
    }

    /// The outboxes with a destination of this name that the admin ports report.
    fn outboxes(&self, destination: &str) -> BTreeSet<&str> {
        let relays = self.statuses().flat_map(|status| &status.relays);
        relays.filter(|relay| relay.destination == destination).map(|relay| relay.outbox.as_str()).collect()
    }

    fn members(&self, consumer: &str) -> impl Iterator<Item = &ConsumerRates> {
        self.statuses().flat_map(|status| &status.consumers).filter(move |member| member.consumer == consumer)
    }

    fn statuses(&self) -> impl Iterator<Item = &ProcessStatus> {
        self.replies.iter().filter_map(|reply| reply.status.as_ref().ok())
    }
}
