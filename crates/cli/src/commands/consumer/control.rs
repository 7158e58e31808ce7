//! `relevo consumer pause`, `resume` and `breaker`: members obey with their next heartbeat.

use anyhow::Result;
use clap::ValueEnum;
use relevo_core::inbox::ConsumerOperator;
use relevo_core::inbox::admin::{ConsumerControl, ConsumerDetails};

use super::find;
use crate::args::OutboxArgs;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found};

/// Which consumer, or which lane of it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The consumer.
    name: String,
    /// Only this lane.
    #[arg(long, value_name = "LANE")]
    lane: Option<String>,
    #[command(flatten)]
    target: OutboxArgs,
}

/// Which breaker, and its new state.
#[derive(Debug, clap::Args)]
pub(crate) struct BreakerArgs {
    /// The consumer.
    name: String,
    /// The lane of the breaker.
    #[arg(long, value_name = "LANE")]
    lane: String,
    /// The state of the breaker.
    #[arg(value_enum)]
    to: BreakerMode,
    #[command(flatten)]
    target: OutboxArgs,
}

/// The state of a breaker.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum BreakerMode {
    /// The external service counts as down: no message of the lane is handled.
    Open,
    /// The external service counts as reachable, whatever handlers report.
    Close,
    /// The breaker decides again.
    Auto,
}

pub(super) async fn pause(args: &Args) -> Result<ExitStatus> {
    send_order(&args.target, &args.name, args.lane.as_deref(), ConsumerControl::Pause).await
}

pub(super) async fn resume(args: &Args) -> Result<ExitStatus> {
    send_order(&args.target, &args.name, args.lane.as_deref(), ConsumerControl::Resume).await
}

pub(super) async fn breaker(args: &BreakerArgs) -> Result<ExitStatus> {
    let order = match args.to {
        BreakerMode::Open => ConsumerControl::OpenBreaker,
        BreakerMode::Close => ConsumerControl::CloseBreaker,
        BreakerMode::Auto => ConsumerControl::AutoBreaker,
    };
    send_order(&args.target, &args.name, Some(&args.lane), order).await
}

async fn send_order(target: &OutboxArgs, name: &str, lane: Option<&str>, order: ConsumerControl) -> Result<ExitStatus> {
    let consumers = target.locate()?.consumers().await?;
    // Read first: the order itself does not return whether the consumer or the lane is unknown.
    let found = find(&*consumers, name).await?;
    if !consumers.set_control(name, lane, order).await? {
        return Err(unknown_lane(&found, lane.unwrap_or_default()));
    }
    let subject = lane.map_or_else(|| format!("consumer `{name}`"), |lane| format!("lane `{lane}` of `{name}`"));
    let effect = match found.summary.members {
        0 => "it has no live members; the next one that starts obeys",
        _ => "members obey with their next heartbeat",
    };
    print_stderr(&format!("{}; {effect}", described(&subject, order)));
    if let Some(paused) = still_paused(&*consumers, name, lane, order).await? {
        print_stderr(&paused);
    }
    Ok(ExitStatus::Success)
}

fn described(subject: &str, order: ConsumerControl) -> String {
    match order {
        ConsumerControl::Pause => format!("{subject} is paused"),
        ConsumerControl::Resume => format!("{subject} is resumed"),
        ConsumerControl::OpenBreaker => format!("the breaker of {subject} is forced open"),
        ConsumerControl::CloseBreaker => format!("the breaker of {subject} is forced closed"),
        ConsumerControl::AutoBreaker => format!("the breaker of {subject} is automatic"),
    }
}

/// A lane of a paused consumer stays paused, and a resumed consumer can have paused lanes.
async fn still_paused(
    consumers: &dyn ConsumerOperator,
    name: &str,
    lane: Option<&str>,
    order: ConsumerControl,
) -> Result<Option<String>> {
    if order != ConsumerControl::Resume {
        return Ok(None);
    }
    let found = find(consumers, name).await?;
    if lane.is_some() {
        let hint = format!("hint: `relevo consumer resume {name}`");
        return Ok(found.summary.paused.then(|| format!("the consumer is still paused\n{hint}")));
    }
    let paused: Vec<&str> = found.lanes.iter().filter(|lane| lane.paused).map(|lane| lane.name.as_str()).collect();
    let hint = format!("hint: `relevo consumer resume {name} --lane LANE`");
    Ok((!paused.is_empty()).then(|| format!("these lanes are still paused: `{}`\n{hint}", paused.join("`, `"))))
}

fn unknown_lane(consumer: &ConsumerDetails, lane: &str) -> anyhow::Error {
    let known: Vec<&str> = consumer.lanes.iter().map(|lane| lane.name.as_str()).collect();
    let hint = if known.is_empty() {
        "it has no lanes yet; a lane appears with its first message".to_owned()
    } else {
        format!("there are `{}`", known.join("`, `"))
    };
    not_found(format!("consumer `{}` has no lane `{lane}`; hint: {hint}", consumer.summary.name))
}
