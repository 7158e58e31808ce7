//! `relevo replay plan` and `relevo replay start`

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::inbox::ConsumerOperator;
use relevo_core::inbox::admin::ConsumerSummary;
use relevo_core::inbox::replays;
use relevo_core::replay_source::{LogBounds, LogMessage, ReplayFilter, ReplaySource, first_matching};
use serde_json::{Value, json};

use super::feed::{self, Pacing};
use super::log::{self, failed};
use super::spec::{Log, Ordering, Spec};
use crate::args::{ConfirmArg, OutboxArgs};
use crate::config::Sources;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found, usage};
use crate::host::{not_empty, user_at_host};
use crate::outbox::{self, Place};
use crate::output::table::{self, Table};
use crate::output::time;
use crate::output::{self, OutputArgs};
use crate::prompt::confirm;

/// What is replayed, and to whom.
#[derive(Debug, clap::Args)]
pub(crate) struct Wanted {
    #[command(flatten)]
    target: OutboxArgs,
    /// The consumer; its inbox is in this database.
    consumer: String,
    /// Where messages are read from.
    #[arg(long, value_enum, default_value = "outbox")]
    log: Log,
    /// The destination of the configuration, where it has several: it says routes and broker.
    #[arg(long, short, value_name = "NAME")]
    destination: Option<String>,
    /// The group of the broker that the consumer reads by; the consumer's name otherwise.
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Only messages of this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only messages of this type.
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Only messages of this key.
    #[arg(long)]
    key: Option<String>,
    /// Only messages to addresses like this: `orders.*`, `orders.**`.
    #[arg(long, value_name = "PATTERN")]
    address: Option<String>,
    /// Only messages that entered the log since: RFC 3339, or how long ago, as `10m`.
    #[arg(long, value_name = "TIME", value_parser = time::past)]
    since: Option<Timestamp>,
    /// Only messages that entered the log before: RFC 3339, or how long ago, as `10m`.
    #[arg(long, value_name = "TIME", value_parser = time::past)]
    until: Option<Timestamp>,
    /// Only messages from this number of the log on: a sequence, an offset.
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// Only messages up to this number of the log.
    #[arg(long, value_name = "N")]
    to: Option<u64>,
    /// Whether messages of a key are handled one after the other; always right, and faster without for a consumer that keeps
    /// no order.
    #[arg(long, value_enum, default_value = "key")]
    order: Ordering,
    /// The header that holds the id of messages that are not ours, as the consumer has it.
    #[arg(long, value_name = "HEADER")]
    id_header: Option<String>,
    /// The header that holds the key of messages that are not ours, as the consumer has it.
    #[arg(long, value_name = "HEADER")]
    key_header: Option<String>,
    #[command(flatten)]
    pacing: Pacing,
}

/// What is shown of a replay that might be.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    wanted: Wanted,
    /// Shows so many of the messages.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1000))]
    sample: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// How a replay is begun.
#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    #[command(flatten)]
    wanted: Wanted,
    /// Why; it is recorded.
    #[arg(long, value_name = "TEXT", value_parser = not_empty)]
    reason: String,
    /// Who asks; it is recorded. The user and the machine otherwise.
    #[arg(long, value_name = "NAME", value_parser = not_empty)]
    by: Option<String>,
    #[command(flatten)]
    yes: ConfirmArg,
    #[command(flatten)]
    output: OutputArgs,
}

/// A plan, with all that it needs to be carried out.
struct Drawn {
    desk: Arc<dyn ConsumerOperator>,
    source: Box<dyn ReplaySource>,
    consumer: ConsumerSummary,
    spec: Spec,
    extent: Option<LogBounds>,
    count: u64,
    pacing: Pacing,
}

pub(super) async fn plan(args: &Plan) -> Result<ExitStatus> {
    let drawn = draw(&args.wanted).await?;
    let limit = usize::try_from(args.sample).unwrap_or(usize::MAX);
    let shown = first_matching(&*drawn.source, &drawn.spec.filter, limit).await.map_err(failed)?;
    if args.output.is_json() {
        output::line(&drawn.object(&shown))?;
    } else {
        drawn.write(&shown)?;
    }
    print_stderr("nothing was changed; `relevo replay start` with the same options does it");
    Ok(ExitStatus::Success)
}

pub(super) async fn start(args: &Start) -> Result<ExitStatus> {
    let drawn = draw(&args.wanted).await?;
    let name = &drawn.consumer.name;
    if drawn.count == 0 {
        print_stderr("no message of the log is meant, nothing was begun");
        return Ok(ExitStatus::Success);
    }
    let question = format!(
        "replay {} to consumer `{name}`, {}? their effects happen once more",
        counted(drawn.count),
        drawn.pacing.told(drawn.count)
    );
    confirm(args.yes, &question)?;
    let plan = replays::ReplayPlan {
        consumer: name.clone(),
        source: drawn.spec.kept(),
        count: drawn.count,
        rate: drawn.pacing.rate,
        dead_letters_max: drawn.pacing.stop_after_dead,
        requested_by: args.by.clone().unwrap_or_else(user_at_host),
        reason: args.reason.clone(),
    };
    let desk = outbox::replays(&*drawn.desk)?;
    let number = desk.create_replay(&plan).await?;
    print_stderr(&format!("replay {number} of consumer `{name}` began"));
    feed::tell_idle(&drawn.consumer);
    feed::feed(desk, &*drawn.source, &drawn.spec, name, number, drawn.pacing.rate, args.output).await
}

/// Looks at consumer and log, and fixes where the replay ends: what enters the log later is live.
async fn draw(wanted: &Wanted) -> Result<Drawn> {
    time::in_order(wanted.since, wanted.until)?;
    if let (Some(from), Some(to)) = (wanted.from, wanted.to)
        && from > to
    {
        return Err(usage(format!("`--from {from}` is above `--to {to}`, and nothing is between them")));
    }
    let place = Place::of(&wanted.target)?;
    let desk = place.consumers().await?;
    let Some(shown) = desk.get_consumer(&wanted.consumer, 0).await? else {
        let known: Vec<String> = desk.list_consumers().await?.into_iter().map(|consumer| consumer.name).collect();
        let hint = if known.is_empty() { "there is none in this database".to_owned() } else { known.join(", ") };
        return Err(not_found(format!("consumer `{}` is not known; hint: {hint}", wanted.consumer)));
    };
    let mut spec = spec(wanted)?;
    let source = log::open(&spec, &place, &wanted.target.config).await?;
    let extent = source.bounds().await.map_err(failed)?;
    let last = extent.map_or(0, |extent| extent.last);
    spec.filter.to = Some(spec.filter.to.map_or(last, |to| to.min(last)));
    let count = source.count(&spec.filter).await.map_err(failed)?;
    Ok(Drawn { desk, source, consumer: shown.summary, spec, extent, count, pacing: wanted.pacing })
}

fn spec(wanted: &Wanted) -> Result<Spec> {
    // Without a configuration every message goes to the address named as its topic, as it does without routes.
    let configured = wanted.log == Log::Broker
        || wanted.target.config.are_given()
        || Sources::are_in_environment()
        || wanted.target.is_configured()
        || wanted.target.outbox.is_some()
        || wanted.destination.is_some();
    let at = if configured {
        let found = log::find(&wanted.target.config, wanted.target.outbox.as_deref(), wanted.destination.as_deref())?;
        Some((found.0, found.1))
    } else {
        None
    };
    let group = wanted.group.clone().unwrap_or_else(|| wanted.consumer.clone());
    Ok(Spec {
        log: wanted.log,
        at,
        group: (wanted.log == Log::Broker).then_some(group),
        order: wanted.order,
        id_header: wanted.id_header.clone(),
        key_header: wanted.key_header.clone(),
        filter: ReplayFilter {
            address: wanted.address.clone(),
            topic: wanted.topic.clone(),
            kind: wanted.kind.clone(),
            key: wanted.key.clone(),
            since: wanted.since,
            until: wanted.until,
            from: wanted.from,
            to: wanted.to,
        },
    })
}

impl Drawn {
    fn write(&self, shown: &[LogMessage]) -> Result<()> {
        let now = Timestamp::now();
        let order = match self.spec.order {
            Ordering::Key => "messages of a key in order",
            Ordering::None => "no order",
        };
        let kept = self
            .extent
            .map_or_else(|| "nothing".to_owned(), |extent| format!("numbers {} to {}", extent.first, extent.last));
        let mut out = io::BufWriter::new(io::stdout().lock());
        let pairs = [
            ("consumer", format!("{}, {order}", self.consumer.name)),
            ("reads", self.spec.told()),
            ("the log has", kept),
            ("messages", self.count.to_string()),
            ("feeds", self.pacing.told(self.count)),
            ("stops", format!("after {} dead letters", self.pacing.stop_after_dead)),
        ];
        table::pairs(&mut out, &pairs)?;
        if !shown.is_empty() {
            writeln!(out)?;
            let rows: Vec<_> = shown.iter().map(|logged| row(logged, now)).collect();
            Table::new(&["NUMBER", "ENTERED", "ADDRESS", "KEY", "TYPE", "ID"]).write(&mut out, &rows)?;
        }
        out.flush()?;
        Ok(())
    }

    fn object(&self, shown: &[LogMessage]) -> Value {
        let seconds = self.pacing.lasts(self.count).as_secs();
        json!({
            "consumer": self.consumer.name,
            "in_key_order": self.spec.order == Ordering::Key,
            "reads": serde_json::from_str::<Value>(&self.spec.kept()).unwrap_or_default(),
            "log_first": self.extent.map(|extent| extent.first),
            "log_last": self.extent.map(|extent| extent.last),
            "count": self.count,
            "rate": self.pacing.rate,
            "seconds": seconds,
            "stop_after_dead": self.pacing.stop_after_dead,
            "sample": shown.iter().map(object).collect::<Vec<_>>(),
        })
    }
}

fn row(logged: &LogMessage, now: Timestamp) -> Vec<String> {
    let message = logged.raw.decode().ok().map(|received| received.message);
    let told = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        logged.number.to_string(),
        time::with_age(logged.at, now),
        logged.address.to_string(),
        told(message.as_ref().map(|message| message.key.to_string())),
        told(message.as_ref().map(|message| message.kind.to_string())),
        told(message.as_ref().map(|message| message.id.to_string())),
    ]
}

fn object(logged: &LogMessage) -> Value {
    let message = logged.raw.decode().ok().map(|received| received.message);
    json!({
        "number": logged.number,
        "entered_at": output::timestamp(Some(logged.at)),
        "address": &*logged.address,
        "id": message.as_ref().map(|message| message.id.to_string()),
        "key": message.as_ref().map(|message| message.key.to_string()),
        "type": message.as_ref().map(|message| message.kind.to_string()),
        "bytes": logged.raw.payload.len(),
    })
}

/// A number of messages.
pub(super) fn counted(count: u64) -> String {
    if count == 1 { "1 message".to_owned() } else { format!("{count} messages") }
}

impl Pacing {
    /// How long feeding takes at least.
    pub(super) fn lasts(self, count: u64) -> Duration {
        Duration::from_secs(count.div_ceil(u64::from(self.rate.max(1))))
    }

    /// The rate, and how long that takes.
    fn told(self, count: u64) -> String {
        format!("{} a second, which takes {}", self.rate, time::short(self.lasts(count)))
    }
}
