//! Everything that is known at one moment, and what came of two of them.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use relevo_core::dead_letters::{DeadLetterFilter, DeadLetterState, DeadLetterSummary};
use relevo_core::inbox::admin::ConsumerDetails;
use relevo_core::outbox::OutboxOperator;
use relevo_core::outbox::inspect::{DestinationInfo, MessageStatus, MessageSummary, ShardInfo};
use relevo_core::outbox::sample::{DestinationSample, OutboxSample};
use relevo_core::outbox::search::MessageFilter;
use tokio::time::Instant;

use super::exposition::{Exposition, Spread};
use super::ports::{Answer, Ports};
use crate::database::ANSWER_DEADLINE;
use crate::outbox::Place;

/// How long heads of keys are looked for.
const BUDGET: Duration = Duration::from_millis(200);
/// The states of a message that its key waits for.
const HEADS: [MessageStatus; 3] = [MessageStatus::Retrying, MessageStatus::Held, MessageStatus::Quarantined];

/// One look at everything.
pub(super) struct Moment {
    pub(super) at: Instant,
    pub(super) clock: Timestamp,
    pub(super) destinations: Vec<At>,
    pub(super) around: OutboxSample,
    pub(super) consumers: Vec<ConsumerDetails>,
    pub(super) ports: Vec<Answer>,
    /// What the outbox is called at the admin ports, if that was said.
    pub(super) outbox: Option<String>,
    /// So many rows at most are shown of what may be long.
    pub(super) rows: usize,
}

/// A destination at that moment.
pub(super) struct At {
    pub(super) destination: DestinationInfo,
    pub(super) vitals: DestinationSample,
    pub(super) shards: Vec<ShardInfo>,
    /// The first messages of keys that wait.
    pub(super) heads: Vec<MessageSummary>,
    /// The oldest dead letters that nobody marked.
    pub(super) dead: Vec<DeadLetterSummary>,
}

/// Looks again and again.
pub(super) struct Watcher {
    place: Place,
    ports: Ports,
    rows: usize,
    outbox: Option<String>,
    opened: Option<Box<dyn OutboxOperator>>,
}

impl Watcher {
    /// With so many rows at most of what may be long; `outbox` is what the outbox is called at the ports.
    pub(super) fn new(place: Place, ports: Ports, rows: usize, outbox: Option<String>) -> Self {
        Self { place, ports, rows, outbox, opened: None }
    }

    pub(super) fn shown(&self) -> String {
        self.place.shown()
    }

    pub(super) async fn look(&mut self) -> Result<Moment> {
        let (ports, outbox) = (self.ports.ask().await, self.outbox.clone());
        let at = Instant::now();
        let consumers = self.place.consumers().await?;
        let mut shown = Vec::new();
        for consumer in consumers.list_consumers().await? {
            shown.extend(consumers.get_consumer(&consumer.name, self.rows).await?);
        }
        let mut destinations = Vec::new();
        let rows = self.rows;
        let opened = self.opened().await?;
        let (known, around) = (opened.destinations().await?, opened.sample_outbox().await?);
        for destination in known {
            destinations.push(look_at(opened, destination, rows).await?);
        }
        let clock = Timestamp::now();
        Ok(Moment { at, clock, destinations, around, consumers: shown, ports, outbox, rows })
    }

    /// Opened once.
    async fn opened(&mut self) -> Result<&dyn OutboxOperator> {
        if self.opened.is_none() {
            let opened = self.place.open(ANSWER_DEADLINE).await;
            self.opened = Some(opened.with_context(|| format!("the outbox at {}", self.place.shown()))?);
        }
        Ok(&**self.opened.as_ref().expect("it was opened"))
    }
}

async fn look_at(outbox: &dyn OutboxOperator, destination: DestinationInfo, rows: usize) -> Result<At> {
    let name = &destination.name;
    let mut heads = Vec::new();
    if let Some(search) = outbox.as_search() {
        for status in HEADS {
            let filter = MessageFilter { status: Some(status), ..MessageFilter::default() };
            heads.extend(search.search(name, &filter, rows, BUDGET).await?.messages);
        }
    }
    heads.sort_by_key(|listed| listed.created_at);
    heads.truncate(rows);
    let unmarked = DeadLetterFilter { states: vec![DeadLetterState::Dead], ..DeadLetterFilter::of_destination(name) };
    Ok(At {
        vitals: outbox.sample_destination(name).await?,
        shards: outbox.shards(name).await?,
        heads,
        dead: outbox.list_dead_letters(&unmarked, None, rows).await?.letters,
        destination,
    })
}

/// What a destination or a consumer did between two moments, as far as ports told.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Pace {
    /// Messages a second.
    pub(super) rate: Option<f64>,
    /// Seconds.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
}

impl Moment {
    /// The outboxes that ports tell of, of those that have a destination of this name.
    fn outboxes(&self, destination: &str) -> BTreeSet<&str> {
        self.told()
            .flat_map(|(_, told)| told.values("outbox_ready", &[("destination", destination)], "outbox"))
            .collect()
    }

    /// What the outbox is called at the ports; `None` if they tell of several that it could be.
    fn called(&self, destination: &str) -> Option<&str> {
        if let Some(named) = &self.outbox {
            return Some(named);
        }
        let mut known = self.outboxes(destination).into_iter();
        known.next().filter(|_| known.next().is_none())
    }

    /// Outboxes of which it is not known which one this is.
    pub(super) fn unclear(&self) -> BTreeSet<&str> {
        let unclear = self.destinations.iter().map(|at| at.destination.name.as_str()).map(|name| self.outboxes(name));
        let unclear = unclear.filter(|outboxes| self.outbox.is_none() && outboxes.len() > 1);
        unclear.flatten().collect()
    }

    /// Confirmed messages of a destination, and from emit to confirm.
    pub(super) fn published(&self, before: &Self, destination: &str) -> Pace {
        let Some(outbox) = self.called(destination) else { return Pace::default() };
        let labels = [("outbox", outbox), ("destination", destination)];
        self.pace(before, "outbox_published_total", "outbox_publish_latency_seconds", &labels)
    }

    /// Handled messages of a consumer, and how long its handlers took.
    pub(super) fn handled(&self, before: &Self, consumer: &str) -> Pace {
        let labels = [("consumer", consumer), ("outcome", "done")];
        let mut pace = self.pace(before, "inbox_handled_total", "", &labels);
        let took = self.pace(before, "", "inbox_handler_duration_seconds", &labels[..1]);
        (pace.p50, pace.p99) = (took.p50, took.p99);
        pace
    }

    /// What waits for a consumer at the broker, by lane.
    pub(super) fn lag(&self, consumer: &str, lane: &str) -> Option<f64> {
        let labels = [("consumer", consumer), ("lane", lane)];
        self.told().filter_map(|(_, told)| told.sum("inbox_lag_messages", &labels)).reduce(f64::max)
    }

    /// Whether the broker of a destination is there for all of its relays, as the alert has it.
    pub(super) fn broker_up(&self, destination: &str) -> Option<bool> {
        let labels = [("outbox", self.called(destination)?), ("destination", destination)];
        self.told().filter_map(|(_, told)| told.sum("outbox_broker_up", &labels)).reduce(f64::min).map(|up| up > 0.0)
    }

    /// Messages a second that were emitted: what left, and what more waits than before.
    pub(super) fn emitted(&self, before: &Self, at: &At) -> Option<f64> {
        let then = before.destinations.iter().find(|it| it.destination.name == at.destination.name)?;
        let waiting = |at: &At| at.vitals.backlog.exact.then_some(at.vitals.backlog.pending + at.vitals.backlog.parked);
        #[expect(clippy::cast_precision_loss, reason = "a rate may be inexact")]
        let more = (waiting(at)? - waiting(then)?) as f64;
        let rate = self.published(before, &at.destination.name).rate?;
        Some((rate + more / self.seconds_since(before)).max(0.0))
    }

    fn pace(&self, before: &Self, counter: &str, histogram: &str, labels: &[(&str, &str)]) -> Pace {
        let (mut count, mut spread) = (None, Spread::default());
        for (port, after) in self.told() {
            // A port that was not there before would tell its whole past.
            let Some((_, then)) = before.told().find(|(name, _)| *name == port) else { continue };
            for (_, grown) in after.grown(then, counter, labels) {
                *count.get_or_insert(0.0) += grown;
            }
            spread.add(histogram, labels, then, after);
        }
        let seconds = self.seconds_since(before);
        Pace { rate: count.map(|count| count / seconds), p50: spread.quantile(0.5), p99: spread.quantile(0.99) }
    }

    fn told(&self) -> impl Iterator<Item = (&str, &Exposition)> {
        self.ports.iter().filter_map(|answer| Some((answer.port.as_str(), answer.told.as_ref().ok()?)))
    }

    fn seconds_since(&self, before: &Self) -> f64 {
        (self.at - before.at).as_secs_f64().max(f64::EPSILON)
    }
}
