//! Feeding a replay from the command line, and `relevo replay resume`.

use anyhow::{Result, anyhow};
use relevo_core::inbox::admin::ConsumerSummary;
use relevo_core::inbox::replays::{ConsumerReplays, Replay, ReplayState};
use relevo_core::replay_source::ReplaySource;
use relevo_inbox::{ReplayEnd, ReplayError, ReplayJob, ReplayRunner, ReplayStep};
use tokio_util::sync::CancellationToken;

use super::list::{self, object};
use super::selection::Selection;
use super::source;
use crate::args::OutboxArgs;
use crate::connect;
use crate::error_report::print_stderr;
use crate::exit::ExitStatus;
use crate::output::{self, OutputArgs, Progress, count};
use relevo_host::Signals;

/// The rate, and when it stops.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Pacing {
    /// The maximum number of messages per second.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) rate: u32,
    /// Stops after this number of dead letters.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) dead_letters_max: u64,
}

/// Which replay.
#[derive(Debug, clap::Args)]
pub(crate) struct Resume {
    /// The consumer.
    consumer: String,
    /// The number of the replay.
    number: u32,
    /// The maximum number of messages per second [default: as planned].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Option<u32>,
    /// Stops after this number of further dead letters, if it was stopped.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    dead_letters_max: u64,
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn resume(args: &Resume) -> Result<ExitStatus> {
    let place = args.target.locate()?;
    let consumers = place.consumers().await?;
    let replays = connect::replays(&*consumers)?;
    let replay = list::find(replays, &args.consumer, args.number).await?;
    let (name, number) = (&args.consumer, args.number);
    if replay.state == ReplayState::Finished {
        print_stderr(&format!("replay {number} of consumer `{name}` is finished"));
        return Ok(ExitStatus::Success);
    }
    let selection = Selection::parse(&replay.plan.source)?;
    let source = source::open(&selection, &place, &args.target.config).await?;
    // Resumed only once everything else succeeded.
    if replay.state == ReplayState::Stopped {
        replays.resume_replay(name, number, args.dead_letters_max).await?;
    }
    let cursor: u64 = replay.cursor.as_deref().and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    if let Some(extent) = source.bounds().await.map_err(source::failed)?
        && cursor > 0
        && extent.first > cursor + 1
    {
        print_stderr(&format!(
            "warning: the replay is at number {cursor}, and the log now starts at {}; the messages between were deleted",
            extent.first
        ));
    }
    if let Some(shown) = consumers.get_consumer(name, 0).await? {
        report_idle(&shown.summary);
    }
    let rate = args.rate.unwrap_or(replay.plan.rate);
    feed(replays, &*source, &selection, name, number, rate, args.output).await
}

/// Warns if no member handles the messages.
pub(super) fn report_idle(consumer: &ConsumerSummary) {
    let name = &consumer.name;
    if consumer.paused {
        print_stderr(&format!("consumer `{name}` is paused: messages wait\nhint: `relevo consumer resume {name}`"));
    } else if consumer.members == 0 {
        print_stderr(&format!("consumer `{name}` has no live members: messages wait until one starts"));
    }
}

/// Feeds the replay until it ends, and prints how to continue.
pub(super) async fn feed(
    replays: &dyn ConsumerReplays,
    source: &dyn ReplaySource,
    selection: &Selection,
    name: &str,
    number: u32,
    rate: u32,
    output: OutputArgs,
) -> Result<ExitStatus> {
    let stop = CancellationToken::new();
    let interrupts = Signals::interrupts()?;
    let feeding = ReplayJob {
        consumer: name.to_owned(),
        config: selection.consumer_config(),
        number,
        filter: selection.filter.clone(),
        rate,
    };
    let mut feeder = ReplayRunner::new(feeding, source, replays);
    let mut progress = Progress::new();
    let ended = tokio::select! {
        ended = feeder.run(&stop, |replay, step| progress.report(|| line(replay, step))) => ended,
        () = interrupts.cancel_on_stop(stop.clone()) => Ok(ReplayEnd::Interrupted),
    };
    progress.clear();
    let hint = format!("continue with `relevo replay resume {name} {number}`");
    let end = ended.map_err(|error| failed(error).context(format!("replay {number} failed; hint: {hint}")))?;
    let replay = list::find(replays, name, number).await?;
    if output.is_json() {
        output::line(&object(&replay))?;
    }
    print_stderr(&summary(&replay));
    match end {
        ReplayEnd::Finished => Ok(ExitStatus::Success),
        ReplayEnd::Stopped if replay.dead >= replay.plan.dead_letters_max => {
            let see = format!("see them with `relevo dead-letter list --consumer {name}`");
            print_stderr(&format!("stopped: {} dead letters\nhint: {see}; {hint}", replay.dead));
            Ok(ExitStatus::Findings)
        }
        ReplayEnd::Stopped => {
            print_stderr(&format!("stopped by an operator\nhint: {hint}"));
            Ok(ExitStatus::Interrupted)
        }
        ReplayEnd::TakenOver => Err(anyhow!("another process took over replay {number}")),
        ReplayEnd::Interrupted => {
            print_stderr(&format!("interrupted\nhint: {hint}, or end it with `relevo replay stop {name} {number}`"));
            Ok(ExitStatus::Interrupted)
        }
    }
}

fn failed(error: ReplayError) -> anyhow::Error {
    match error {
        ReplayError::Source(error) => source::failed(error),
        ReplayError::Store(error) => error.into(),
        ReplayError::Unknown { .. } | ReplayError::Cursor(_) => anyhow::Error::new(error),
    }
}

/// The state of a replay in one line.
fn summary(replay: &Replay) -> String {
    format!(
        "replay {}: {} of {} read, {} handled, {} dead, {} waiting",
        replay.number,
        replay.enqueued,
        count(replay.plan.count, "message"),
        replay.done,
        replay.dead,
        replay.waiting()
    )
}

fn line(replay: &Replay, step: ReplayStep) -> String {
    let full = if step == ReplayStep::QueueFull { ", waits for the consumer" } else { "" };
    format!("{}{full}", summary(replay))
}
