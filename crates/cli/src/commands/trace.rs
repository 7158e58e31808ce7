//! `relevo trace`

use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterOwner, DeadLetterSummary};
use relevo_core::inbox::admin::{InboxRecord, Trace};
use relevo_core::inbox::{DedupId, InboxState};
use relevo_core::outbox::inspect::MessageDetails;
use relevo_core::store::StoreError;
use serde_json::{Value, json};

use super::output::{self, Format};
use super::table::{self, Table};
use super::{moment, show};
use crate::args::Target;
use crate::exit::{Code, not_found};
use crate::outbox::Place;
use crate::report::say;

/// Dead letters of one message that are shown; each replay of each consumer can have one.
const LETTERS_MAX: usize = 1000;

/// Which message.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The message's id.
    #[arg(value_parser = crate::args::message_id)]
    id: MessageId,
    #[command(flatten)]
    format: Format,
}

pub(super) async fn run(args: &Args) -> Result<Code> {
    let place = Place::of(&args.target)?;
    let path = Path { destinations: sent(&place, args.id).await?, stops: handled(&place, args.id).await? };
    if path.destinations.is_empty() && path.stops.is_empty() {
        return Err(not_found(format!(
            "neither the outbox nor an inbox at {} knows message {}; hint: it may be older than what they remember, or \
             its consumer has another database",
            place.shown(),
            args.id
        )));
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.format.json {
        writeln!(out, "{}", path.object(args.id))?;
    } else {
        path.tell(&mut out, args.id)?;
    }
    out.flush()?;
    Ok(Code::Done)
}

/// All that one database knows of a message's way.
struct Path {
    /// Where it stands at each destination, by name.
    destinations: Vec<(String, MessageDetails)>,
    /// What each consumer did with it, each time.
    stops: BTreeMap<(String, DedupId), Stop>,
}

/// What a consumer did with it, once or under one number of a replay. Each part is kept for another time.
#[derive(Default)]
struct Stop {
    known: Option<InboxRecord>,
    trace: Option<Trace>,
    dead: Option<DeadLetter>,
}

/// Where it stands at each destination; nowhere if the outbox does not have it.
async fn sent(place: &Place, id: MessageId) -> Result<Vec<(String, MessageDetails)>> {
    let outbox = place.glance().await?;
    let known = outbox.destinations().await?;
    let mut found = Vec::new();
    for name in known.into_iter().map(|destination| destination.name) {
        match outbox.message(&name, id).await {
            Ok(shown) => found.extend(shown.map(|shown| (name, shown))),
            // A long log has no index on ids: what consumers know is told all the same.
            Err(StoreError::Refused { reason: what }) => say(&format!("destination `{name}`: {what}")),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// What consumers know of it, by name and replay.
async fn handled(place: &Place, id: MessageId) -> Result<BTreeMap<(String, DedupId), Stop>> {
    let consumers = place.consumers().await?;
    let mut stops: BTreeMap<(String, DedupId), Stop> = BTreeMap::new();
    for known in consumers.find_message(id).await? {
        let key = (known.consumer.clone(), known.dedup_id);
        stops.entry(key).or_default().known = Some(known);
    }
    for trace in consumers.trace(id).await? {
        let key = (trace.consumer.clone(), trace.entry);
        stops.entry(key).or_default().trace = Some(trace);
    }
    let filter = DeadLetterFilter { ids: vec![id], ..DeadLetterFilter::of(DeadLetterOwner::AnyConsumer) };
    for dead in consumers.get_dead_letters(&filter, LETTERS_MAX).await? {
        let key = (dead.summary.owner.clone(), DedupId { id, replay: dead.summary.replay });
        stops.entry(key).or_default().dead = Some(dead);
    }
    Ok(stops)
}

impl Stop {
    /// What it counts as. The inbox itself is right; where it has forgotten, the others remember.
    fn state(&self) -> Option<InboxState> {
        self.known.as_ref().map(|known| known.state).or_else(|| self.trace.as_ref().map(|trace| trace.state))
    }

    fn word(&self) -> &'static str {
        match (self.state(), &self.dead) {
            (Some(state), _) => state.as_str(),
            (None, Some(dead)) => dead.summary.state.as_str(),
            (None, None) => "-",
        }
    }

    fn at(&self) -> Option<Timestamp> {
        let traced = self.trace.as_ref().map(|trace| trace.at);
        traced.or_else(|| self.known.as_ref()?.at).or_else(|| self.dead.as_ref().map(|dead| dead.summary.dead_at))
    }

    /// Where it came from: address, lane, number and correlation.
    fn origin(&self) -> Option<Origin<'_>> {
        let traced = self.trace.as_ref().map(|trace| Origin {
            address: &trace.address,
            lane: &trace.lane,
            place: trace.place,
            correlation: trace.correlation.as_deref(),
        });
        traced.or_else(|| {
            let arrival = self.dead.as_ref()?.content.inbox_message()?;
            Some(Origin {
                address: &arrival.address,
                lane: arrival.lane.name(),
                place: arrival.offset,
                correlation: arrival.correlation.as_deref(),
            })
        })
    }

    fn repeats(&self) -> Option<u32> {
        self.trace.as_ref().map(|trace| trace.repeats)
    }

    fn object(&self, consumer: &str, entry: DedupId) -> Value {
        let origin = self.origin();
        let dead = self.dead.as_ref().map(|dead| &dead.summary).map(|dead| {
            json!({
                "state": dead.state.as_str(),
                "class": dead.class,
                "error": dead.error,
                "attempts": dead.attempts,
                "redriven": dead.redrives,
                "dead_at": output::time(Some(dead.dead_at)),
                "note": dead.mark.as_ref().map(|mark| &mark.reason),
            })
        });
        json!({
            "consumer": consumer,
            "replay": entry.replay,
            "state": self.state().map(InboxState::as_str),
            "at": output::time(self.at()),
            "traced": self.trace.is_some(),
            "repeats": self.repeats(),
            "address": origin.as_ref().map(|it| it.address),
            "lane": origin.as_ref().map(|it| it.lane),
            "place": origin.as_ref().and_then(|it| it.place),
            "correlation": origin.as_ref().and_then(|it| it.correlation),
            "dead_letter": dead,
        })
    }

    fn row(&self, consumer: &str, entry: DedupId, now: Timestamp) -> Vec<String> {
        let none = || "-".to_owned();
        let origin = self.origin();
        vec![
            consumer.to_owned(),
            if entry.replay == 0 { none() } else { entry.replay.to_string() },
            self.word().to_owned(),
            self.at().map_or_else(none, |at| moment::told(at, now)),
            self.repeats().map_or_else(none, |count| count.to_string()),
            origin.as_ref().map_or_else(none, |it| it.address.to_owned()),
            origin.as_ref().map_or_else(none, |it| it.lane.to_owned()),
            origin.as_ref().and_then(|it| it.place).map_or_else(none, |place| place.to_string()),
            origin.as_ref().and_then(|it| it.correlation).map_or_else(none, str::to_owned),
        ]
    }
}

/// Where a message came from at the broker.
struct Origin<'a> {
    address: &'a str,
    lane: &'a str,
    place: Option<u64>,
    correlation: Option<&'a str>,
}

impl Path {
    fn object(&self, id: MessageId) -> Value {
        let destination = |(name, shown): &(String, MessageDetails)| output::listed(&shown.summary, name);
        let stop = |((consumer, entry), stop): (&(String, DedupId), &Stop)| stop.object(consumer, *entry);
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

    fn tell(&self, out: &mut impl Write, id: MessageId) -> Result<()> {
        let now = Timestamp::now();
        let mut pairs = vec![("id", id.to_string())];
        pairs.extend(self.destinations.first().into_iter().flat_map(|(_, shown)| show::envelope(&shown.message, now)));
        table::pairs(out, &pairs)?;
        if self.destinations.is_empty() {
            writeln!(out, "\noutbox: no destination of this database has it")?;
        } else {
            writeln!(out, "\noutbox:")?;
            let rows: Vec<_> = self.destinations.iter().map(|(name, shown)| sent_row(name, shown, now)).collect();
            Table::new(&["DESTINATION", "STATUS", "PUBLISHED", "ATTEMPTS", "NEXT ATTEMPT", "ERROR"])
                .write(out, &rows)?;
        }
        if self.stops.is_empty() {
            writeln!(out, "\nconsumers: none of this database has it")?;
            return Ok(());
        }
        writeln!(out, "\nconsumers:")?;
        let row = |((consumer, entry), stop): (&(String, DedupId), &Stop)| stop.row(consumer, *entry, now);
        Table::new(&["CONSUMER", "REPLAY", "STATE", "AT", "REPEATS", "ADDRESS", "LANE", "PLACE", "CORRELATION"])
            .write(out, &self.stops.iter().map(row).collect::<Vec<_>>())?;
        self.tell_dead(out, now)
    }

    fn tell_dead(&self, out: &mut impl Write, now: Timestamp) -> Result<()> {
        let dead: Vec<_> = self.stops.values().filter_map(|stop| stop.dead.as_ref()).collect();
        if !dead.is_empty() {
            writeln!(out, "\ndead letters:")?;
            let rows: Vec<_> = dead.into_iter().map(|dead| dead_row(&dead.summary, now)).collect();
            Table::new(&["CONSUMER", "STATE", "CLASS", "ATTEMPTS", "REDRIVEN", "DEAD SINCE", "ERROR"])
                .write(out, &rows)?;
        }
        Ok(())
    }
}

fn sent_row(name: &str, shown: &MessageDetails, now: Timestamp) -> Vec<String> {
    let listed = &shown.summary;
    let told = |at: Option<Timestamp>| at.map_or_else(|| "-".to_owned(), |at| moment::told(at, now));
    vec![
        name.to_owned(),
        listed.status.as_str().to_owned(),
        told(listed.published_at),
        listed.attempts.to_string(),
        told(listed.next_attempt_at),
        listed.last_error.clone().unwrap_or_default(),
    ]
}

fn dead_row(dead: &DeadLetterSummary, now: Timestamp) -> Vec<String> {
    vec![
        dead.owner.clone(),
        dead.state.as_str().to_owned(),
        dead.class.clone(),
        dead.attempts.to_string(),
        dead.redrives.to_string(),
        moment::told(dead.dead_at, now),
        dead.error.clone(),
    ]
}
