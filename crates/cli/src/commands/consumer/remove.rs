//! `relevo consumer remove`: after a consumer was shut down for good, so that its silence raises no alert.

use anyhow::{Result, anyhow};
use relevo_core::inbox::admin::{ConsumerSummary, RemoveOutcome};

use super::{counted, find, unknown};
use crate::args::{ConfirmArg, OutboxArgs};
use crate::error_report::print_stderr;
use crate::exit::ExitStatus;
use crate::prompt::confirm;

/// Which consumer.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The consumer.
    name: String,
    #[command(flatten)]
    yes: ConfirmArg,
    #[command(flatten)]
    target: OutboxArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let (consumers, name) = (args.target.locate()?.consumers().await?, args.name.as_str());
    let found = find(&*consumers, name).await?;
    // Checked before the question: the answer would not matter.
    if found.summary.members > 0 {
        return Err(alive(name));
    }
    let rest = remaining(&found.summary);
    let stays = rest.as_ref().map_or_else(String::new, |rest| format!(" and {rest} messages"));
    confirm(args.yes, &format!("remove consumer `{name}` with its members and lanes? Its inbox{stays} stay"))?;
    // Checked again by the store: a member may have started.
    match consumers.remove_consumer(name).await? {
        RemoveOutcome::Removed => {}
        RemoveOutcome::MembersAlive => return Err(alive(name)),
        RemoveOutcome::Unknown => return Err(unknown(&*consumers, name).await?),
    }
    print_stderr(&format!("consumer `{name}` is removed; a member that starts continues with its inbox"));
    if let Some(rest) = rest {
        print_stderr(&format!("it is still listed, because it has {rest} messages"));
    }
    Ok(ExitStatus::Success)
}

/// Messages that stay.
fn remaining(consumer: &ConsumerSummary) -> Option<String> {
    let (waiting, dead) = (counted(consumer.waiting), counted(consumer.dead));
    (consumer.waiting > 0 || consumer.dead > 0).then(|| format!("{waiting} waiting and {dead} dead"))
}

fn alive(name: &str) -> anyhow::Error {
    let hint = format!(
        "stop its processes, which `relevo consumer show {name}` lists; a killed one counts as live for some seconds"
    );
    anyhow!("consumer `{name}` has live members, nothing was changed; hint: {hint}")
}
