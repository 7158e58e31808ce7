//! `relevo consumers forget`: a consumer was taken away for good, and nobody is to be paged because it is silent.

use anyhow::{Result, anyhow};
use relevo_core::inbox::admin::{ConsumerSummary, RemoveOutcome};

use super::{counted, unknown};
use crate::args::{ConfirmArg, OutboxArgs};
use crate::error_report::print_stderr;
use crate::exit::ExitStatus;
use crate::outbox::Place;
use crate::prompt::confirm;

/// Who is meant.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: OutboxArgs,
    /// The consumer.
    name: String,
    #[command(flatten)]
    yes: ConfirmArg,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let (consumers, name) = (Place::of(&args.target)?.consumers().await?, args.name.as_str());
    let Some(shown) = consumers.get_consumer(name, 1).await? else { return Err(unknown(&*consumers, name).await?) };
    // Nobody is asked about what would be refused.
    if shown.summary.members > 0 {
        return Err(alive(name));
    }
    let left = left(&shown.summary);
    let stays = left.as_ref().map_or_else(String::new, |left| format!(", and so do {left}"));
    let means = format!("its members, its lanes and what was ordered of them are gone; what it handled stays{stays}");
    confirm(args.yes, &format!("forget consumer `{name}`? {means}"))?;
    // The answer is the database's, and not what was true a moment ago.
    match consumers.remove_consumer(name).await? {
        RemoveOutcome::Removed => {}
        RemoveOutcome::MembersAlive => return Err(alive(name)),
        RemoveOutcome::Unknown => return Err(unknown(&*consumers, name).await?),
    }
    print_stderr(&format!("consumer `{name}` is forgotten; if a member starts, it goes on as if it had slept"));
    if let Some(left) = left {
        print_stderr(&format!("it is listed for as long as something of it is left: {left}"));
    }
    Ok(ExitStatus::Success)
}

/// What people would still look for.
fn left(consumer: &ConsumerSummary) -> Option<String> {
    let (waiting, dead) = (counted(consumer.waiting), counted(consumer.dead));
    (consumer.waiting > 0 || consumer.dead > 0).then(|| format!("{waiting} waiting and {dead} dead"))
}

fn alive(name: &str) -> anyhow::Error {
    let hint =
        format!("stop its processes, `relevo consumers show {name}` names them; a killed one counts for some seconds");
    anyhow!("somebody works for consumer `{name}`, nothing was changed; hint: {hint}")
}
