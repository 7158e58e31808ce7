//! `relevo replay`: sends messages of a log to a consumer again, under a number of their own.

mod feed;
mod list;
mod plan;
mod selection;
mod source;

use anyhow::Result;
use clap::Subcommand;

use crate::exit::ExitStatus;

/// What to do with replays.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Prints what would be replayed: the number of messages, the first ones, the duration. Changes nothing.
    #[command(after_help = "Example: relevo replay plan billing --since 2h --topic orders")]
    Plan(plan::Plan),
    /// Starts a replay and feeds it to the end. After Ctrl-C it can be resumed.
    #[command(after_help = "Example: relevo replay start billing --since 2h --rate 50 --reason 'wrong VAT'")]
    Start(plan::Start),
    /// Lists the replays of a consumer, or of all, newest first.
    #[command(after_help = "Example: relevo replay list billing")]
    List(list::List),
    /// Shows one replay.
    #[command(after_help = "Example: relevo replay show billing 1 -o json")]
    Show(list::ReplayRef),
    /// Stops a replay, and removes its waiting messages from the retry queues.
    #[command(after_help = "Example: relevo replay stop billing 1")]
    Stop(list::ReplayRef),
    /// Resumes a replay that was stopped or interrupted.
    #[command(after_help = "Example: relevo replay resume billing 1 --rate 20")]
    Resume(feed::Resume),
}

pub(super) async fn run(command: Command) -> Result<ExitStatus> {
    match command {
        Command::Plan(args) => plan::plan(&args).await,
        Command::Start(args) => plan::start(&args).await,
        Command::List(args) => list::list(&args).await,
        Command::Show(args) => list::show(&args).await,
        Command::Stop(args) => list::stop(&args).await,
        Command::Resume(args) => feed::resume(&args).await,
    }
}
