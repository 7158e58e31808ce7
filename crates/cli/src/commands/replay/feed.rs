//! Feeding a replay from the command line, and `relevo replay resume`.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Result, anyhow};
use relevo_core::inbox::admin::ConsumerSummary;
use relevo_core::inbox::replays::{ConsumerReplays, Replay, ReplayState};
use relevo_core::replay_source::ReplaySource;
use relevo_inbox::{ReplayEnd, ReplayError, ReplayJob, ReplayRunner, ReplayStep};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::list::{self, object};
use super::log;
use super::plan::counted;
use super::spec::Spec;
use crate::args::OutboxArgs;
use crate::dev::interrupts::Interrupts;
use crate::error_report::print_stderr;
use crate::exit::ExitStatus;
use crate::outbox::{self, Place};
use crate::output::{self, OutputArgs};

/// How often progress is told to a terminal, and to anything else.
const ON_A_TERMINAL: Duration = Duration::from_millis(500);
const ELSEWHERE: Duration = Duration::from_secs(10);

/// How fast, and until what happens.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Pacing {
    /// So many messages a second at most.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) rate: u32,
    /// Stops by itself after so many dead letters.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) stop_after_dead: u64,
}

/// Which replay goes on.
#[derive(Debug, clap::Args)]
pub(crate) struct Resume {
    #[command(flatten)]
    target: OutboxArgs,
    /// The consumer.
    consumer: String,
    /// The replay's number.
    number: u32,
    /// So many messages a second at most; as the replay was planned otherwise.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Option<u32>,
    /// Stops by itself after so many further dead letters, if it was stopped.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    stop_after_dead: u64,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn resume(args: &Resume) -> Result<ExitStatus> {
    let place = Place::of(&args.target)?;
    let consumers = place.consumers().await?;
    let desk = outbox::replays(&*consumers)?;
    let replay = list::find(desk, &args.consumer, args.number).await?;
    let (name, number) = (&args.consumer, args.number);
    if replay.state == ReplayState::Finished {
        print_stderr(&format!("replay {number} of consumer `{name}` is finished: everything was fed"));
        return Ok(ExitStatus::Success);
    }
    let spec = Spec::read(&replay.plan.source)?;
    let source = log::open(&spec, &place, &args.target.config).await?;
    // Everything that could fail without a trace has not.
    if replay.state == ReplayState::Stopped {
        desk.resume_replay(name, number, args.stop_after_dead).await?;
    }
    let stands_at: u64 = replay.cursor.as_deref().and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    if let Some(extent) = source.bounds().await.map_err(log::failed)?
        && stands_at > 0
        && extent.first > stands_at + 1
    {
        print_stderr(&format!(
            "warning: the replay stands at number {stands_at}, and the log begins at {} by now: what was between is gone",
            extent.first
        ));
    }
    if let Some(shown) = consumers.get_consumer(name, 0).await? {
        tell_idle(&shown.summary);
    }
    let rate = args.rate.unwrap_or(replay.plan.rate);
    feed(desk, &*source, &spec, name, number, rate, args.output).await
}

/// Says if nobody handles what is fed.
pub(super) fn tell_idle(consumer: &ConsumerSummary) {
    let name = &consumer.name;
    if consumer.paused {
        print_stderr(&format!("consumer `{name}` is paused: messages wait\nhint: `relevo consumers resume {name}`"));
    } else if consumer.members == 0 {
        print_stderr(&format!("no process of consumer `{name}` is alive: messages wait until one starts"));
    }
}

/// Feeds until it ends, and says how it ended and how to go on.
pub(super) async fn feed(
    desk: &dyn ConsumerReplays,
    source: &dyn ReplaySource,
    spec: &Spec,
    name: &str,
    number: u32,
    rate: u32,
    output: OutputArgs,
) -> Result<ExitStatus> {
    let stop = CancellationToken::new();
    let interrupts = Interrupts::new()?;
    let feeding = ReplayJob {
        consumer: name.to_owned(),
        config: spec.consumer_config(),
        number,
        filter: spec.filter.clone(),
        rate,
    };
    let mut feeder = ReplayRunner::new(feeding, source, desk);
    let mut progress = Progress::new();
    let ended = tokio::select! {
        ended = feeder.run(&stop, |replay, step| progress.tell(replay, step)) => ended,
        () = interrupts.watch(stop.clone()) => Ok(ReplayEnd::Interrupted),
    };
    progress.end();
    let hint = format!("go on with `relevo replay resume {name} {number}`");
    let end =
        ended.map_err(|error| failed(error).context(format!("replay {number} was not fed further; hint: {hint}")))?;
    let replay = list::find(desk, name, number).await?;
    if output.is_json() {
        output::line(&object(&replay))?;
    }
    print_stderr(&told(&replay));
    match end {
        ReplayEnd::Finished => Ok(ExitStatus::Success),
        ReplayEnd::Stopped if replay.dead >= replay.plan.dead_letters_max => {
            let see = format!("see them with `relevo consumers dead list --consumer {name}`");
            print_stderr(&format!("stopped: there are {} dead letters\nhint: {see}; {hint}", replay.dead));
            Ok(ExitStatus::Findings)
        }
        ReplayEnd::Stopped => {
            print_stderr(&format!("stopped by a person\nhint: {hint}"));
            Ok(ExitStatus::Interrupted)
        }
        ReplayEnd::TakenOver => Err(anyhow!("another process feeds replay {number}, and goes on with it")),
        ReplayEnd::Interrupted => {
            print_stderr(&format!(
                "it is fed no further\nhint: {hint}, or end it with `relevo replay stop {name} {number}`"
            ));
            Ok(ExitStatus::Interrupted)
        }
    }
}

fn failed(error: ReplayError) -> anyhow::Error {
    match error {
        ReplayError::Source(error) => log::failed(error),
        ReplayError::Store(error) => error.into(),
        ReplayError::Unknown { .. } | ReplayError::Cursor(_) => anyhow::Error::new(error),
    }
}

/// How a replay stands, in one line.
fn told(replay: &Replay) -> String {
    format!(
        "replay {}: {} of {} fed, {} handled, {} dead, {} waiting",
        replay.number,
        replay.enqueued,
        counted(replay.plan.count),
        replay.done,
        replay.dead,
        replay.waiting()
    )
}

/// Tells how far it has come, now and then.
struct Progress {
    is_terminal: bool,
    last: Instant,
    is_line_open: bool,
}

impl Progress {
    fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), last: Instant::now(), is_line_open: false }
    }

    fn tell(&mut self, replay: &Replay, step: ReplayStep) {
        let every = if self.is_terminal { ON_A_TERMINAL } else { ELSEWHERE };
        if self.last.elapsed() < every {
            return;
        }
        self.last = Instant::now();
        let full = if step == ReplayStep::QueueFull { ", waits for the consumer" } else { "" };
        if self.is_terminal {
            // The same line again; if nobody can read it, nobody is told.
            write!(io::stderr(), "\r\x1b[K{}{full}", told(replay)).ok();
            self.is_line_open = true;
        } else {
            print_stderr(&format!("{}{full}", told(replay)));
        }
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.is_line_open) {
            write!(io::stderr(), "\r\x1b[K").ok();
        }
    }
}
