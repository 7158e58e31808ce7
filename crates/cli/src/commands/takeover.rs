//! `relevo adopt` and `relevo rebase`: an outbox whose rows were written in another database.

use anyhow::Result;

use crate::args::{ConfirmArg, OutboxArgs};
use crate::database::{ANSWER_DEADLINE, REWRITE_DEADLINE};
use crate::error_report::print_stderr;
use crate::exit::ExitStatus;
use crate::outbox::Place;
use crate::prompt::confirm;

/// Which outbox is taken over.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    yes: ConfirmArg,
}

pub(super) async fn adopt(args: &Args) -> Result<ExitStatus> {
    let place = Place::of(&args.target)?;
    let (outbox, at) = (place.takeover(ANSWER_DEADLINE).await?, place.shown());
    confirm(args.yes, &format!("adopt the outbox at {at}? If it is a copy, its original must publish no more"))?;
    outbox.adopt().await?;
    print_stderr(&format!("the outbox at {at} is adopted: relays may run"));
    Ok(ExitStatus::Success)
}

pub(super) async fn rebase(args: &Args) -> Result<ExitStatus> {
    let place = Place::of(&args.target)?;
    let (outbox, at) = (place.takeover(REWRITE_DEADLINE).await?, place.shown());
    confirm(args.yes, &format!("rebase the outbox at {at}? Every message is rewritten while writers wait"))?;
    let waiting = outbox.rebase().await?;
    print_stderr(&format!("the outbox at {at} is rebased: relays may run, {waiting} messages will be sent"));
    Ok(ExitStatus::Success)
}
