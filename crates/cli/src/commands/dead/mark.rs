//! Marking dead letters. The relay that holds their shard acts on the marks, so that order is kept.

use std::collections::BTreeSet;

use anyhow::Result;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetterFilter, DeadLetterState, DeadLetterSummary, MarkAction, MarkRequest};
use serde_json::json;

use super::collect;
use super::filter::Filter;
use crate::args::{ConfirmArg, DestinationArgs};
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found};
use crate::host;
use crate::outbox::{self, Opened};
use crate::output::{self, OutputArgs};
use crate::prompt::confirm;

/// Which dead letters are marked, by whom, and why.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("chosen").required(true).multiple(true))]
pub(crate) struct Args {
    #[command(flatten)]
    which: DestinationArgs,
    /// Their ids.
    #[arg(group = "chosen", value_name = "ID", value_parser = crate::args::message_id)]
    ids: Vec<MessageId>,
    #[command(flatten)]
    filter: Filter,
    /// All that nobody marked.
    #[arg(long, group = "chosen", conflicts_with_all = ["ids", "Filter"])]
    all: bool,
    /// Only says how many would be marked.
    #[arg(long)]
    dry_run: bool,
    /// Why; it is recorded.
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run", value_parser = host::not_empty)]
    reason: Option<String>,
    /// Who asks; it is recorded. The user and the machine otherwise.
    #[arg(long, value_name = "NAME", value_parser = host::not_empty)]
    by: Option<String>,
    #[command(flatten)]
    yes: ConfirmArg,
    #[command(flatten)]
    output: OutputArgs,
}

const fn means(action: MarkAction) -> &'static str {
    match action {
        MarkAction::Redrive => "they are sent again, before what waits of their keys",
        MarkAction::Discard => "they are never sent, and their keys go on without them",
    }
}

pub(super) async fn redrive(args: &Args) -> Result<ExitStatus> {
    mark(args, MarkAction::Redrive).await
}

pub(super) async fn discard(args: &Args) -> Result<ExitStatus> {
    mark(args, MarkAction::Discard).await
}

async fn mark(args: &Args, action: MarkAction) -> Result<ExitStatus> {
    args.filter.check()?;
    let opened = outbox::open(&args.which).await?;
    let filter = DeadLetterFilter { ids: args.ids.clone(), ..args.filter.of_store(&opened.destination.name) };
    let unmatched = look(args, &opened, &filter).await?;
    let request = |dry_run| MarkRequest {
        filter: filter.clone(),
        action,
        dry_run,
        rate_per_second: None,
        by: args.by.clone().unwrap_or_else(host::user_at_host),
        reason: args.reason.clone().unwrap_or_else(|| "dry run".to_owned()),
    };
    let would = ask(&opened, &request(true)).await?;
    if args.dry_run {
        answer(args, action, would, &unmatched)?;
        return Ok(ExitStatus::Success);
    }
    if would > 0 {
        let (word, at) = (action.as_str(), &opened.destination.name);
        confirm(args.yes, &format!("{word} {} of destination `{at}`? {}", counted(would), means(action)))?;
    }
    // Asked even where nothing would be marked: the answer is the database's, and not what was true a moment ago.
    let marked = ask(&opened, &request(false)).await?;
    answer(args, action, marked, &unmatched)?;
    Ok(ExitStatus::Success)
}

/// Asks until the store is done. A dry run that stopped early has only counted so far.
async fn ask(opened: &Opened, request: &MarkRequest) -> Result<u64> {
    let mut count = 0;
    loop {
        let report = opened.outbox.mark_dead_letters(request).await?;
        count += report.count;
        if !report.more || request.dry_run {
            return Ok(count);
        }
    }
}

/// Looks for what was typed, and says on stderr what of it cannot be marked. If nothing of it is there, that is an error.
async fn look(args: &Args, opened: &Opened, filter: &DeadLetterFilter) -> Result<Vec<MessageId>> {
    if args.ids.is_empty() && !args.filter.chooses() {
        return Ok(Vec::new());
    }
    let at = &opened.destination.name;
    let limit = args.ids.is_empty().then_some(1);
    let (letters, _) = collect(&*opened.outbox, filter, limit).await?;
    if letters.is_empty() {
        let hint = "`relevo dead list --history` shows all that there are";
        return Err(not_found(format!("no such dead letter at destination `{at}`; hint: {hint}")));
    }
    let known: BTreeSet<MessageId> = letters.iter().map(|letter| letter.id).collect();
    let unmatched: Vec<MessageId> = args.ids.iter().filter(|id| !known.contains(id)).copied().collect();
    for id in &unmatched {
        print_stderr(&format!("{id} is no such dead letter at destination `{at}`"));
    }
    // Only those that were named: a filter may well mean letters that were marked long ago.
    let is_marked = |letter: &&DeadLetterSummary| !args.ids.is_empty() && letter.state != DeadLetterState::Dead;
    for letter in letters.iter().filter(is_marked) {
        print_stderr(&format!("{} is `{}` already", letter.id, letter.state.as_str()));
    }
    Ok(unmatched)
}

fn answer(args: &Args, action: MarkAction, count: u64, unmatched: &[MessageId]) -> Result<()> {
    let (word, dry_run) = (action.as_str(), args.dry_run);
    if args.output.is_json() {
        let unmatched: Vec<String> = unmatched.iter().map(ToString::to_string).collect();
        output::line(&json!({ "mark": word, "dry_run": dry_run, "count": count, "unmatched": unmatched }))?;
    } else if dry_run {
        print_stderr(&format!("{} would be marked `{word}`, nothing was changed", counted(count)));
    } else {
        let acts = if count > 0 { ": the relay of their shard acts" } else { "" };
        print_stderr(&format!("{} marked `{word}`{acts}", counted(count)));
    }
    Ok(())
}

/// A number of dead letters.
pub(super) fn counted(count: u64) -> String {
    if count == 1 { "1 dead letter".to_owned() } else { format!("{count} dead letters") }
}
