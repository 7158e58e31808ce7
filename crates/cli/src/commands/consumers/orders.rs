//! `relevo consumers pause`, `resume` and `breaker`: members hear it with their next heartbeat.

use anyhow::Result;
use clap::ValueEnum;
use relevo_core::inbox::ConsumerOperator;
use relevo_core::inbox::admin::{ConsumerControl, ConsumerDetails};

use super::unknown;
use crate::args::OutboxArgs;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found};
use crate::outbox::Place;

/// Who is meant.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: OutboxArgs,
    /// The consumer.
    name: String,
    /// Only this lane of it.
    #[arg(long, value_name = "LANE")]
    lane: Option<String>,
}

/// Which breaker, and what it is to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Breaker {
    #[command(flatten)]
    target: OutboxArgs,
    /// The consumer.
    name: String,
    /// Whose breaker.
    #[arg(long, value_name = "LANE")]
    lane: String,
    /// What the far side counts as.
    #[arg(value_enum)]
    to: To,
}

/// What a breaker is told.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum To {
    /// The far side counts as away: nothing of the lane is handled.
    Open,
    /// The far side counts as reachable, whatever handlers say.
    Close,
    /// The breaker decides by itself again.
    Auto,
}

pub(super) async fn pause(args: &Args) -> Result<ExitStatus> {
    tell(&args.target, &args.name, args.lane.as_deref(), ConsumerControl::Pause).await
}

pub(super) async fn resume(args: &Args) -> Result<ExitStatus> {
    tell(&args.target, &args.name, args.lane.as_deref(), ConsumerControl::Resume).await
}

pub(super) async fn force(args: &Breaker) -> Result<ExitStatus> {
    let order = match args.to {
        To::Open => ConsumerControl::OpenBreaker,
        To::Close => ConsumerControl::CloseBreaker,
        To::Auto => ConsumerControl::AutoBreaker,
    };
    tell(&args.target, &args.name, Some(&args.lane), order).await
}

async fn tell(target: &OutboxArgs, name: &str, lane: Option<&str>, order: ConsumerControl) -> Result<ExitStatus> {
    let consumers = Place::of(target)?.consumers().await?;
    // Asked first: the order itself only says that there is nobody of that name, and not of which.
    let Some(shown) = consumers.get_consumer(name, 1).await? else { return Err(unknown(&*consumers, name).await?) };
    if !consumers.set_control(name, lane, order).await? {
        return Err(no_lane(&shown, lane.unwrap_or_default()));
    }
    let whom = lane.map_or_else(|| format!("consumer `{name}`"), |lane| format!("lane `{lane}` of `{name}`"));
    let heard = match shown.summary.members {
        0 => "no member is alive; the next one that starts hears it",
        _ => "members hear it with their next heartbeat",
    };
    print_stderr(&format!("{}; {heard}", what(&whom, order)));
    if let Some(still) = still_paused(&*consumers, name, lane, order).await? {
        print_stderr(&still);
    }
    Ok(ExitStatus::Success)
}

fn what(whom: &str, order: ConsumerControl) -> String {
    match order {
        ConsumerControl::Pause => format!("{whom} is paused"),
        ConsumerControl::Resume => format!("{whom} goes on"),
        ConsumerControl::OpenBreaker => format!("the breaker of {whom} is open by force"),
        ConsumerControl::CloseBreaker => format!("the breaker of {whom} is closed by force"),
        ConsumerControl::AutoBreaker => format!("the breaker of {whom} decides by itself"),
    }
}

/// A lane of a paused consumer does not flow, and a consumer that goes on may have paused lanes.
async fn still_paused(
    consumers: &dyn ConsumerOperator,
    name: &str,
    lane: Option<&str>,
    order: ConsumerControl,
) -> Result<Option<String>> {
    let Some(shown) = consumers.get_consumer(name, 1).await?.filter(|_| order == ConsumerControl::Resume) else {
        return Ok(None);
    };
    if lane.is_some() {
        let hint = format!("hint: `relevo consumers resume {name}`");
        return Ok(shown.summary.paused.then(|| format!("the consumer as a whole is still paused\n{hint}")));
    }
    let paused: Vec<&str> = shown.lanes.iter().filter(|lane| lane.paused).map(|lane| lane.name.as_str()).collect();
    let hint = format!("hint: `relevo consumers resume {name} --lane LANE`");
    Ok((!paused.is_empty()).then(|| format!("these lanes are still paused: `{}`\n{hint}", paused.join("`, `"))))
}

fn no_lane(shown: &ConsumerDetails, lane: &str) -> anyhow::Error {
    let known: Vec<&str> = shown.lanes.iter().map(|lane| lane.name.as_str()).collect();
    let hint = if known.is_empty() {
        "it has none yet: a lane is known once a member had a message of it".to_owned()
    } else {
        format!("there are `{}`", known.join("`, `"))
    };
    not_found(format!("consumer `{}` has no lane `{lane}`; hint: {hint}", shown.summary.name))
}
