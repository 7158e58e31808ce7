//! `relevo dead-letter`: one set of commands for destinations and consumers.

mod filter;
mod mark;
mod owner;
pub(super) mod print;

use std::io::{self, Write as _};

use anyhow::Result;
use clap::Subcommand;
use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::dead_letters::{
    DeadLetter, DeadLetterContent, DeadLetterFilter, DeadLetterOwner, DeadLetterState, DeadLetterSummary,
};

use self::filter::FilterArgs;
use self::owner::{DeadLetters, OwnerArgs, exact, option};
use crate::args::OutboxArgs;
use crate::connect::ANSWER_TIMEOUT;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found, usage};
use crate::output::table::Table;
use crate::output::{OutputArgs, count};

/// Dead letters per call.
const PAGE: usize = 1000;
/// Dead letters of one message that are compared; each replay of each consumer can have one.
const MATCHES_MAX: usize = 1000;

const LIST_EXAMPLES: &str = "Examples:
  relevo dead-letter list
  relevo dead-letter list --destination main --class poison --since 2h
  relevo dead-letter list --consumer billing --history --all -o json";
const REDRIVE_EXAMPLES: &str = "Examples:
  relevo dead-letter redrive 019d3c4e-55aa-7c3e-9a41-0242ac120002 --reason 'schema fixed'
  relevo dead-letter redrive --destination main --error 'no queue' --reason 'queue created'
  relevo dead-letter redrive --consumer billing --all --rate 50 --reason 'API is back'";
const DISCARD_EXAMPLES: &str = "Examples:
  relevo dead-letter discard 019d3c4e-55aa-7c3e-9a41-0242ac120002 --reason 'order cancelled'
  relevo dead-letter discard --consumer billing --key o-42 --dry-run";

/// What to do with dead letters.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists dead letters, oldest first.
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Shows one dead letter with its payload.
    #[command(after_help = "Example: relevo dead-letter show 019d3c4e-55aa-7c3e-9a41-0242ac120002")]
    Show(ShowArgs),
    /// Publishes or handles dead letters again, before the messages that wait behind them.
    #[command(after_help = REDRIVE_EXAMPLES)]
    Redrive(mark::RedriveArgs),
    /// Drops dead letters. Their keys continue without them.
    #[command(after_help = DISCARD_EXAMPLES)]
    Discard(mark::MarkArgs),
}

/// Which dead letters are listed.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("selection").multiple(true))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    owner: OwnerArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Includes redriven and discarded dead letters.
    #[arg(long)]
    history: bool,
    /// The maximum number of dead letters.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Lists all of them.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Which dead letter is shown.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The id of the message.
    #[arg(value_parser = crate::args::message_id)]
    id: MessageId,
    #[command(flatten)]
    owner: OwnerArgs,
    /// The number of the replay, if several dead-lettered it.
    #[arg(long, value_name = "N")]
    replay: Option<u32>,
    /// Writes the bytes of the payload and nothing else.
    #[arg(long, conflicts_with = "format")]
    raw: bool,
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(command: Command) -> Result<ExitStatus> {
    match command {
        Command::List(args) => list(&args).await,
        Command::Show(args) => show(&args).await,
        Command::Redrive(args) => mark::redrive(&args).await,
        Command::Discard(args) => mark::discard(&args).await,
    }
}

async fn list(args: &ListArgs) -> Result<ExitStatus> {
    args.filter.check()?;
    let letters = DeadLetters::open(&args.target, &args.owner, ANSWER_TIMEOUT).await?;
    let states = if args.history { Vec::new() } else { DeadLetterState::OPEN.to_vec() };
    let mut listing = Listing { output: args.output, table: Table::new(print::HEADINGS), listed: 0, failed_again: 0 };
    let limit = if args.all { u64::MAX } else { args.limit.into() };
    let mut is_more = false;
    let is_skipped =
        |owner: &DeadLetterOwner| matches!(owner, DeadLetterOwner::AnyConsumer) && args.filter.excludes_consumers();
    for owner in letters.owners.iter().filter(|owner| !is_skipped(owner)) {
        let filter = DeadLetterFilter { states: states.clone(), ..args.filter.of(owner.clone()) };
        let mut after: Option<String> = None;
        loop {
            let left = usize::try_from(limit - listing.listed).unwrap_or(PAGE).min(PAGE);
            // At the limit, one more is read to know whether there is one.
            let page = letters.admin(owner).list_dead_letters(&filter, after.as_deref(), left.max(1)).await?;
            is_more = left == 0 && !page.letters.is_empty();
            if left > 0 {
                listing.write(&page.letters, owner)?;
            }
            after = page.next;
            if after.is_none() || left == 0 {
                break;
            }
        }
        if is_more {
            break;
        }
    }
    listing.end(is_more);
    Ok(ExitStatus::Success)
}

/// Prints a list page by page.
struct Listing {
    output: OutputArgs,
    table: Table,
    listed: u64,
    failed_again: u64,
}

impl Listing {
    fn write(&mut self, letters: &[DeadLetterSummary], owner: &DeadLetterOwner) -> Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        if self.output.is_json() {
            for letter in letters {
                writeln!(out, "{}", print::object(letter, owner))?;
            }
        } else if !letters.is_empty() {
            let now = Timestamp::now();
            let rows: Vec<_> =
                letters.iter().map(|letter| print::row(letter, &exact(owner, &letter.owner), now)).collect();
            self.table.write(&mut out, &rows)?;
        }
        out.flush()?;
        self.listed += letters.len() as u64;
        let failed_again = |letter: &&DeadLetterSummary| letter.state == DeadLetterState::Dead && letter.redrives > 0;
        self.failed_again += letters.iter().filter(failed_again).count() as u64;
        Ok(())
    }

    fn end(&self, is_more: bool) {
        let again = match self.failed_again {
            0 => String::new(),
            number => format!(", of which {number} failed again after a redrive"),
        };
        let more = if is_more { ", and more\nhint: see more with `--limit`, or all with `--all`" } else { "" };
        print_stderr(&format!("{}{again}{more}", count(self.listed, "dead letter")));
    }
}

async fn show(args: &ShowArgs) -> Result<ExitStatus> {
    let letters = DeadLetters::open(&args.target, &args.owner, ANSWER_TIMEOUT).await?;
    let (owner, letter) = find(args, &letters).await?;
    let mut out = io::stdout().lock();
    if args.raw {
        out.write_all(match &letter.content {
            DeadLetterContent::Outbox(message) => &message.payload,
            DeadLetterContent::Inbox { message, .. } => &message.raw.payload,
        })?;
    } else if args.output.is_json() {
        writeln!(out, "{}", print::full_object(&letter, &owner))?;
    } else {
        print::text(&mut out, &letter, &owner)?;
    }
    Ok(ExitStatus::Success)
}

/// The dead letter of the message. An error if there are none or several.
async fn find(args: &ShowArgs, letters: &DeadLetters) -> Result<(DeadLetterOwner, DeadLetter)> {
    let mut found = Vec::new();
    for owner in &letters.owners {
        let filter = DeadLetterFilter { ids: vec![args.id], ..DeadLetterFilter::of(owner.clone()) };
        let matches = letters.admin(owner).list_dead_letters(&filter, None, MATCHES_MAX).await?.letters;
        let matches = matches.into_iter().map(|letter| (exact(owner, &letter.owner), letter.replay));
        found.extend(matches.filter(|(_, number)| args.replay.is_none_or(|replay| replay == *number)));
    }
    if found.len() > 1 {
        let options = found.iter().map(|(owner, replay)| match (owner, replay) {
            (DeadLetterOwner::Destination(_), _) => format!("`{}`", option(owner)),
            (_, replay) => format!("`{} --replay {replay}`", option(owner)),
        });
        let options = options.collect::<Vec<_>>().join(" or ");
        return Err(usage(format!("{} is dead-lettered more than once; hint: add {options}", args.id)));
    }
    if let Some((owner, replay)) = found.pop() {
        let filter = DeadLetterFilter { ids: vec![args.id], ..DeadLetterFilter::of(owner.clone()) };
        let mut letters = letters.admin(&owner).get_dead_letters(&filter, MATCHES_MAX).await?;
        if let Some(at) = letters.iter().position(|letter| letter.summary.replay == replay) {
            return Ok((owner, letters.swap_remove(at)));
        }
    }
    Err(not_found(format!("{0} is no dead letter; hint: `relevo trace {0}` shows where the message is", args.id)))
}
