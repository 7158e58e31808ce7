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
use super::selection::{KeyOrder, Selection, SourceKind};
use super::source::{self, failed};
use crate::args::{ConfirmArg, OutboxArgs};
use crate::commands::consumer;
use crate::config::Sources;
use crate::connect;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, usage};
use crate::host::{not_empty, user_at_host};
use crate::output::table::{self, Table};
use crate::output::time;
use crate::output::{self, OutputArgs, count};
use crate::prompt::confirm;

/// What is replayed, and to which consumer.
#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// The consumer; its inbox is in this database.
    consumer: String,
    /// The log that messages are read from.
    #[arg(long, value_enum, default_value = "outbox")]
    source: SourceKind,
    /// The destination of the configuration, which defines routes and broker, if there are several.
    #[arg(long, short, value_name = "NAME")]
    destination: Option<String>,
    /// The consumer group at the broker [default: the name of the consumer].
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
    /// Only messages to addresses that match this pattern: `orders.*`, `orders.**`.
    #[arg(long, value_name = "PATTERN")]
    address: Option<String>,
    /// Only messages that entered the log since: RFC 3339, or how long ago, as `10m`.
    #[arg(long, value_name = "TIME", value_parser = time::past)]
    since: Option<Timestamp>,
    /// Only messages that entered the log before: RFC 3339, or how long ago, as `10m`.
    #[arg(long, value_name = "TIME", value_parser = time::past)]
    until: Option<Timestamp>,
    /// Only messages with this log number or a higher one: a sequence, an offset.
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// Only messages with this log number or a lower one.
    #[arg(long, value_name = "N")]
    to: Option<u64>,
    /// Whether messages of a key are handled in order. `none` is faster, for a consumer without order.
    #[arg(long, value_enum, default_value = "key")]
    order: KeyOrder,
    /// The header with the id of foreign messages, as configured in the consumer.
    #[arg(long, value_name = "HEADER")]
    id_header: Option<String>,
    /// The header with the key of foreign messages, as configured in the consumer.
    #[arg(long, value_name = "HEADER")]
    key_header: Option<String>,
    #[command(flatten)]
    pacing: Pacing,
    #[command(flatten)]
    target: OutboxArgs,
}

/// What is planned, and how much of it is shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    args: ReplayArgs,
    /// The number of messages to show.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1000))]
    sample: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// What is replayed, and why.
#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    #[command(flatten)]
    args: ReplayArgs,
    /// The reason; it is stored with the replay.
    #[arg(long, value_name = "TEXT", value_parser = not_empty)]
    reason: String,
    /// The operator; stored with the replay [default: user and host].
    #[arg(long, value_name = "NAME", value_parser = not_empty)]
    by: Option<String>,
    #[command(flatten)]
    yes: ConfirmArg,
    #[command(flatten)]
    output: OutputArgs,
}

/// A planned replay.
struct ReplayPreview {
    consumers: Arc<dyn ConsumerOperator>,
    source: Box<dyn ReplaySource>,
    consumer: ConsumerSummary,
    selection: Selection,
    extent: Option<LogBounds>,
    count: u64,
    pacing: Pacing,
}

pub(super) async fn plan(args: &Plan) -> Result<ExitStatus> {
    let preview = preview(&args.args).await?;
    let limit = usize::try_from(args.sample).unwrap_or(usize::MAX);
    let shown = first_matching(&*preview.source, &preview.selection.filter, limit).await.map_err(failed)?;
    if args.output.is_json() {
        output::line(&preview.object(&shown))?;
    } else {
        preview.write(&shown)?;
    }
    print_stderr("nothing was changed; `relevo replay start` with the same options does it");
    Ok(ExitStatus::Success)
}

pub(super) async fn start(args: &Start) -> Result<ExitStatus> {
    let preview = preview(&args.args).await?;
    let name = &preview.consumer.name;
    if preview.count == 0 {
        print_stderr("no message matches, nothing was started");
        return Ok(ExitStatus::Success);
    }
    let question = format!(
        "replay {} to consumer `{name}`, {}? their effects happen again",
        count(preview.count, "message"),
        preview.pacing.described(preview.count)
    );
    confirm(args.yes, &question)?;
    let plan = replays::ReplayPlan {
        consumer: name.clone(),
        source: preview.selection.to_json(),
        count: preview.count,
        rate: preview.pacing.rate,
        dead_letters_max: preview.pacing.dead_letters_max,
        requested_by: args.by.clone().unwrap_or_else(user_at_host),
        reason: args.reason.clone(),
    };
    let replays = connect::replays(&*preview.consumers)?;
    let number = replays.create_replay(&plan).await?;
    print_stderr(&format!("replay {number} of consumer `{name}` started"));
    feed::report_idle(&preview.consumer);
    feed::feed(replays, &*preview.source, &preview.selection, name, number, preview.pacing.rate, args.output).await
}

/// Opens consumer and log, and fixes the end of the replay: later messages are live.
async fn preview(args: &ReplayArgs) -> Result<ReplayPreview> {
    time::in_order(args.since, args.until)?;
    if let (Some(from), Some(to)) = (args.from, args.to)
        && from > to
    {
        return Err(usage(format!("`--from {from}` is above `--to {to}`, so the range is empty")));
    }
    let place = args.target.locate()?;
    let consumers = place.consumers().await?;
    let found = consumer::find(&*consumers, &args.consumer).await?;
    let mut selection = selection(args)?;
    let source = source::open(&selection, &place, &args.target.config).await?;
    let extent = source.bounds().await.map_err(failed)?;
    let last = extent.map_or(0, |extent| extent.last);
    selection.filter.to = Some(selection.filter.to.map_or(last, |to| to.min(last)));
    let count = source.count(&selection.filter).await.map_err(failed)?;
    Ok(ReplayPreview { consumers, source, consumer: found.summary, selection, extent, count, pacing: args.pacing })
}

fn selection(args: &ReplayArgs) -> Result<Selection> {
    // Without a configuration every message goes to the address named as its topic, as it does without routes.
    let configured = args.source == SourceKind::Broker
        || args.target.config.are_given()
        || Sources::are_in_environment()
        || args.target.is_configured()
        || args.target.outbox.is_some()
        || args.destination.is_some();
    let at = if configured {
        let found = source::find(&args.target.config, args.target.outbox.as_deref(), args.destination.as_deref())?;
        Some((found.0, found.1))
    } else {
        None
    };
    let group = args.group.clone().unwrap_or_else(|| args.consumer.clone());
    Ok(Selection {
        source: args.source,
        at,
        group: (args.source == SourceKind::Broker).then_some(group),
        order: args.order,
        id_header: args.id_header.clone(),
        key_header: args.key_header.clone(),
        filter: ReplayFilter {
            address: args.address.clone(),
            topic: args.topic.clone(),
            kind: args.kind.clone(),
            key: args.key.clone(),
            since: args.since,
            until: args.until,
            from: args.from,
            to: args.to,
        },
    })
}

impl ReplayPreview {
    fn write(&self, shown: &[LogMessage]) -> Result<()> {
        let now = Timestamp::now();
        let order = match self.selection.order {
            KeyOrder::Key => "messages of a key in order",
            KeyOrder::None => "no order",
        };
        let bounds = self
            .extent
            .map_or_else(|| "empty".to_owned(), |extent| format!("numbers {} to {}", extent.first, extent.last));
        let mut out = io::BufWriter::new(io::stdout().lock());
        let pairs = [
            ("consumer", format!("{}, {order}", self.consumer.name)),
            ("source", self.selection.described()),
            ("log", bounds),
            ("messages", self.count.to_string()),
            ("rate", self.pacing.described(self.count)),
            ("stops", format!("after {} dead letters", self.pacing.dead_letters_max)),
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
            "in_key_order": self.selection.order == KeyOrder::Key,
            "source": serde_json::from_str::<Value>(&self.selection.to_json()).unwrap_or_default(),
            "log_first": self.extent.map(|extent| extent.first),
            "log_last": self.extent.map(|extent| extent.last),
            "count": self.count,
            "rate": self.pacing.rate,
            "seconds": seconds,
            "dead_letters_max": self.pacing.dead_letters_max,
            "sample": shown.iter().map(object).collect::<Vec<_>>(),
        })
    }
}

fn row(logged: &LogMessage, now: Timestamp) -> Vec<String> {
    let message = logged.raw.decode().ok().map(|received| received.message);
    let optional = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        logged.number.to_string(),
        time::with_age(logged.at, now),
        logged.address.to_string(),
        optional(message.as_ref().map(|message| message.key.to_string())),
        optional(message.as_ref().map(|message| message.kind.to_string())),
        optional(message.as_ref().map(|message| message.id.to_string())),
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

impl Pacing {
    /// How long feeding takes at least.
    pub(super) fn lasts(self, count: u64) -> Duration {
        Duration::from_secs(count.div_ceil(u64::from(self.rate.max(1))))
    }

    /// The rate, and how long that takes.
    fn described(self, count: u64) -> String {
        format!("{} per second, which takes {}", self.rate, time::short(self.lasts(count)))
    }
}
