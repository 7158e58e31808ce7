//! `relevo replay`: messages handled again on purpose, under a number of their own.

mod feed;
mod list;
mod log;
mod plan;
mod spec;

use anyhow::Result;
use clap::Subcommand;

use crate::exit::ExitStatus;

/// What to do with replays.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Says what would be replayed: how many messages, the first of them, how long it takes; changes nothing.
    Plan(plan::Plan),
    /// Begins a replay and feeds it until everything was fed; Ctrl-C leaves it to be resumed.
    Start(plan::Start),
    /// Lists the replays of a consumer, or of all, newest first.
    List(list::List),
    /// Shows how a replay stands.
    Show(list::One),
    /// Stops a replay, wherever it is fed; what was not begun is taken out of the retry table.
    Stop(list::One),
    /// Goes on with a replay that was stopped, or whose feeder ended.
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
