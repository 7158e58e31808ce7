//! `relevo trace`

use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterOwner};
use relevo_core::inbox::admin::InboxRecord;
use relevo_core::inbox::{DedupId, InboxState};
use relevo_core::outbox::inspect::MessageDetails;
use relevo_core::store::StoreError;
use serde_json::{Value, json};

use super::dead_letter::print::correlation;
use super::message::envelope;
use crate::args::OutboxArgs;
use crate::connect::OutboxLocation;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found};
use crate::output::table::{self, Table};
use crate::output::time;
use crate::output::{self, OutputArgs};

/// Dead letters of one message that are shown; each replay of each consumer can have one.
const LETTERS_MAX: usize = 1000;

/// Which message.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: relevo trace 019d3c4e-55aa-7c3e-9a41-0242ac120002")]
pub(crate) struct Args {
    /// The id of the message.
    #[arg(value_parser = crate::args::message_id)]
    id: MessageId,
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let place = args.target.locate()?;
    let mut refused = Vec::new();
    let path = MessageTrace {
        destinations: find_at_destinations(&place, args.id, &mut refused).await?,
        stops: find_at_consumers(&place, args.id).await?,
    };
    if path.destinations.is_empty() && path.stops.is_empty() {
        if let Some((name, error)) = refused.into_iter().next() {
            return Err(anyhow::Error::new(error).context(format!("destination `{name}`")));
        }
        return Err(not_found(format!(
            "message {1} is neither in the outbox nor in an inbox at {0}; hint: it may be older than their retention, or its \
             consumer has another database",
            place.location(),
            args.id
        )));
    }
    for (name, error) in refused {
        print_stderr(&format!("destination `{name}`: {error}"));
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.output.is_json() {
        writeln!(out, "{}", path.object(args.id))?;
    } else {
        path.write(&mut out, args.id)?;
    }
    out.flush()?;
    Ok(ExitStatus::Success)
}

/// What one database knows about a message.
struct MessageTrace {
    /// Its status at each destination, by name.
    destinations: Vec<(String, MessageDetails)>,
    /// What each consumer did with it, per replay.
    stops: BTreeMap<(String, DedupId), ConsumerTrace>,
}

/// What a consumer did with it, once or under the number of a replay. The inbox row and the dead letter have their own
/// retentions.
#[derive(Default)]
struct ConsumerTrace {
    known: Option<InboxRecord>,
    dead: Option<DeadLetter>,
}

/// Its status at each destination. Empty if the outbox does not contain it. A destination that refused the search is added
/// to `refused`.
async fn find_at_destinations(
    place: &OutboxLocation,
    id: MessageId,
    refused: &mut Vec<(String, StoreError)>,
) -> Result<Vec<(String, MessageDetails)>> {
    let outbox = place.outbox().await?;
    let known = outbox.destinations().await?;
    let mut found = Vec::new();
    for name in known.into_iter().map(|destination| destination.name) {
        match outbox.message(&name, id).await {
            Ok(shown) => found.extend(shown.map(|shown| (name, shown))),
            // A large log has no index on ids. Consumers are searched all the same.
            Err(error @ StoreError::Refused { .. }) => refused.push((name, error)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// What consumers did with it, by name and replay.
async fn find_at_consumers(
    place: &OutboxLocation,
    id: MessageId,
) -> Result<BTreeMap<(String, DedupId), ConsumerTrace>> {
    let consumers = place.consumers().await?;
    let mut stops: BTreeMap<(String, DedupId), ConsumerTrace> = BTreeMap::new();
    for known in consumers.find_message(id).await? {
        let key = (known.consumer.clone(), known.dedup_id);
        stops.entry(key).or_default().known = Some(known);
    }
    let filter = DeadLetterFilter { ids: vec![id], ..DeadLetterFilter::of(DeadLetterOwner::AnyConsumer) };
    for dead in consumers.get_dead_letters(&filter, LETTERS_MAX).await? {
        let key = (dead.summary.owner.clone(), DedupId { id, replay: dead.summary.replay });
        stops.entry(key).or_default().dead = Some(dead);
    }
    Ok(stops)
}

impl ConsumerTrace {
    fn state(&self) -> Option<InboxState> {
        self.known.as_ref().map(|known| known.state)
    }

    fn word(&self) -> &'static str {
        match (self.state(), &self.dead) {
            (Some(state), _) => state.as_str(),
            (None, Some(dead)) => dead.summary.state.as_str(),
            (None, None) => "-",
        }
    }

    fn at(&self) -> Option<Timestamp> {
        let known = self.known.as_ref().and_then(|known| known.at);
        known.or_else(|| self.dead.as_ref().map(|dead| dead.summary.dead_at))
    }

    fn object(&self, consumer: &str, entry: DedupId) -> Value {
        let dead = self.dead.as_ref().map(|letter| {
            let (dead, message) = (&letter.summary, letter.content.inbox_message());
            json!({
                "state": dead.state.as_str(),
                "class": dead.class,
                "error": dead.error,
                "attempts": dead.attempts,
                "redrive_count": dead.redrives,
                "dead_at": output::timestamp(Some(dead.dead_at)),
                "reason": dead.mark.as_ref().map(|mark| &mark.reason),
                "address": message.map(|message| &*message.address),
                "lane": message.map(|message| message.lane.name()),
                "broker_offset": message.and_then(|message| message.offset),
                "correlation": message.and_then(correlation),
            })
        });
        json!({
            "consumer": consumer,
            "replay": entry.replay,
            "state": self.state().map(InboxState::as_str),
            "at": output::timestamp(self.at()),
            "dead_letter": dead,
        })
    }

    fn row(&self, consumer: &str, entry: DedupId, now: Timestamp) -> Vec<String> {
        let none = || "-".to_owned();
        vec![
            consumer.to_owned(),
            if entry.replay == 0 { none() } else { entry.replay.to_string() },
            self.word().to_owned(),
            self.at().map_or_else(none, |at| time::with_age(at, now)),
        ]
    }
}

impl MessageTrace {
    fn object(&self, id: MessageId) -> Value {
        let destination = |(name, shown): &(String, MessageDetails)| output::listed(&shown.summary, name);
        let stop = |((consumer, entry), stop): (&(String, DedupId), &ConsumerTrace)| stop.object(consumer, *entry);
        let mut value = json!({
            "id": id.to_string(),
            "destinations": self.destinations.iter().map(destination).collect::<Value>(),
            "consumers": self.stops.iter().map(stop).collect::<Value>(),
        });
        if let Some((_, shown)) = self.destinations.first() {
            output::add_content(&mut value, &shown.message);
        }
        value
    }

    fn write(&self, out: &mut impl Write, id: MessageId) -> Result<()> {
        let now = Timestamp::now();
        let mut pairs = vec![("id", id.to_string())];
        pairs.extend(self.destinations.first().into_iter().flat_map(|(_, shown)| envelope(&shown.message, now)));
        table::pairs(out, &pairs)?;
        if self.destinations.is_empty() {
            writeln!(out, "\noutbox: the message is at no destination of this database")?;
        } else {
            writeln!(out, "\noutbox:")?;
            let rows: Vec<_> = self.destinations.iter().map(|(name, shown)| sent_row(name, shown, now)).collect();
            Table::new(&["DESTINATION", "STATUS", "PUBLISHED", "ATTEMPTS", "NEXT ATTEMPT", "ERROR"])
                .write(out, &rows)?;
        }
        if self.stops.is_empty() {
            writeln!(out, "\nconsumers: none in this database received it")?;
            return Ok(());
        }
        writeln!(out, "\nconsumers:")?;
        let row = |((consumer, entry), stop): (&(String, DedupId), &ConsumerTrace)| stop.row(consumer, *entry, now);
        Table::new(&["CONSUMER", "REPLAY", "STATE", "AT"])
            .write(out, &self.stops.iter().map(row).collect::<Vec<_>>())?;
        self.write_dead(out, now)
    }

    fn write_dead(&self, out: &mut impl Write, now: Timestamp) -> Result<()> {
        let dead: Vec<_> = self.stops.values().filter_map(|stop| stop.dead.as_ref()).collect();
        if !dead.is_empty() {
            writeln!(out, "\ndead letters:")?;
            let rows: Vec<_> = dead.into_iter().map(|dead| dead_row(dead, now)).collect();
            Table::new(&[
                "CONSUMER",
                "STATE",
                "CLASS",
                "ATTEMPTS",
                "REDRIVES",
                "DEAD SINCE",
                "LANE",
                "BROKER OFFSET",
                "ERROR",
            ])
            .write(out, &rows)?;
        }
        Ok(())
    }
}

fn sent_row(name: &str, shown: &MessageDetails, now: Timestamp) -> Vec<String> {
    let listed = &shown.summary;
    let optional = |at: Option<Timestamp>| at.map_or_else(|| "-".to_owned(), |at| time::with_age(at, now));
    vec![
        name.to_owned(),
        listed.status.as_str().to_owned(),
        optional(listed.published_at),
        listed.attempts.to_string(),
        optional(listed.next_attempt_at),
        listed.last_error.clone().unwrap_or_default(),
    ]
}

fn dead_row(letter: &DeadLetter, now: Timestamp) -> Vec<String> {
    let (dead, message) = (&letter.summary, letter.content.inbox_message());
    let offset = message.and_then(|message| message.offset);
    vec![
        dead.owner.clone(),
        dead.state.as_str().to_owned(),
        dead.class.clone(),
        dead.attempts.to_string(),
        dead.redrives.to_string(),
        time::with_age(dead.dead_at, now),
        message.map_or_else(|| "-".to_owned(), |message| message.lane.name().to_owned()),
        offset.map_or_else(|| "-".to_owned(), |offset| offset.to_string()),
        dead.error.clone(),
    ]
}
