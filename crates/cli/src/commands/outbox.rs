//! `relevo outbox`: an outbox whose rows were written in another database.

use anyhow::Result;
use clap::Subcommand;

use crate::args::{ConfirmArg, OutboxArgs};
use crate::connect::{ANSWER_TIMEOUT, REWRITE_TIMEOUT};
use crate::error_report::print_stderr;
use crate::exit::ExitStatus;
use crate::output::count;
use crate::prompt::confirm;

/// What to do with an outbox as a whole.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Adopts an outbox after a server upgrade, or in a copy that publishes from now on.
    #[command(after_help = "Example: relevo outbox adopt --yes")]
    Adopt(Args),
    /// Rewrites the transaction ids of an outbox that was restored from a dump.
    #[command(after_help = "Example: relevo outbox rebase --yes")]
    Rebase(Args),
}

/// Which outbox.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    yes: ConfirmArg,
    #[command(flatten)]
    target: OutboxArgs,
}

pub(super) async fn run(command: Command) -> Result<ExitStatus> {
    match command {
        Command::Adopt(args) => adopt(&args).await,
        Command::Rebase(args) => rebase(&args).await,
    }
}

async fn adopt(args: &Args) -> Result<ExitStatus> {
    let place = args.target.locate()?;
    let (outbox, at) = (place.takeover(ANSWER_TIMEOUT).await?, place.location());
    confirm(args.yes, &format!("adopt the outbox at {at}? If it is a copy, its original must not publish any more"))?;
    outbox.adopt().await?;
    print_stderr(&format!("the outbox at {at} is adopted: relays may run"));
    Ok(ExitStatus::Success)
}

async fn rebase(args: &Args) -> Result<ExitStatus> {
    let place = args.target.locate()?;
    let (outbox, at) = (place.takeover(REWRITE_TIMEOUT).await?, place.location());
    confirm(args.yes, &format!("rebase the outbox at {at}? It rewrites every message and blocks writers meanwhile"))?;
    let waiting = count(outbox.rebase().await?, "message");
    print_stderr(&format!("the outbox at {at} is rebased: relays may run, {waiting} will be published"));
    Ok(ExitStatus::Success)
}
