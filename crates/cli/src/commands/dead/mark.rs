//! Marking dead letters. The relay that holds their shard acts on the marks, so that order is kept.

use std::collections::BTreeSet;

use anyhow::Result;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetterFilter, MarkRequest};
use serde_json::json;

use super::EVERY;
use super::filter::Filter;
use crate::args::Sure;
use crate::ask::confirm;
use crate::commands::author;
use crate::commands::output::{self, Format};
use crate::exit::{Code, not_found};
use crate::outbox::{self, Opened, Which};
use crate::report::say;

/// The state of one that nobody marked.
const DEAD: &str = "dead";
/// So many ids are marked in one statement.
const IDS_MAX: usize = 1000;

/// Which dead letters are marked, by whom, and why.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("chosen").required(true).multiple(true))]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
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
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run", value_parser = author::not_empty)]
    reason: Option<String>,
    /// Who asks; it is recorded. The user and the machine otherwise.
    #[arg(long, value_name = "NAME", value_parser = author::not_empty)]
    by: Option<String>,
    #[command(flatten)]
    sure: Sure,
    #[command(flatten)]
    format: Format,
}

/// What a mark asks for.
#[derive(Clone, Copy)]
enum Wish {
    Redrive,
    Discard,
}

impl Wish {
    const fn word(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
        }
    }

    const fn means(self) -> &'static str {
        match self {
            Self::Redrive => "they are sent again, before what waits of their keys",
            Self::Discard => "they are never sent, and their keys go on without them",
        }
    }
}

pub(super) async fn redrive(args: &Args) -> Result<Code> {
    mark(args, Wish::Redrive).await
}

pub(super) async fn discard(args: &Args) -> Result<Code> {
    mark(args, Wish::Discard).await
}

async fn mark(args: &Args, wish: Wish) -> Result<Code> {
    args.filter.check()?;
    let opened = outbox::open(&args.which).await?;
    let chosen = choose(args, &opened).await?;
    let by = args.by.clone().unwrap_or_else(author::whoever);
    let reason = args.reason.clone().unwrap_or_else(|| "dry run".to_owned());
    let call = async |dry_run: bool| -> Result<u64> {
        let mut count = 0;
        for filter in &chosen.filters {
            let mark = MarkRequest { filter: filter.clone(), dry_run, by: by.clone(), reason: reason.clone() };
            count += match wish {
                Wish::Redrive => opened.outbox.redrive(&mark).await?,
                Wish::Discard => opened.outbox.discard(&mark).await?,
            };
        }
        Ok(count)
    };
    let would = call(true).await?;
    if args.dry_run {
        chosen.answer(args, wish, would)?;
        return Ok(Code::Done);
    }
    if would > 0 {
        let (word, at) = (wish.word(), &opened.destination.name);
        confirm(args.sure, &format!("{word} {} of destination `{at}`? {}", counted(would), wish.means()))?;
    }
    // Asked even where nothing would be marked: the answer is the database's, and not what was true a moment ago.
    let marked = call(false).await?;
    chosen.answer(args, wish, marked)?;
    Ok(Code::Done)
}

/// The dead letters that are meant, as the store can be told.
struct Chosen {
    /// One after the other.
    filters: Vec<DeadLetterFilter>,
    /// Ids that were typed and are no dead letter that is meant.
    unmatched: Vec<MessageId>,
}

/// Looks for what was typed, and says on stderr what of it cannot be marked. If nothing of it is there, that is an error.
async fn choose(args: &Args, opened: &Opened) -> Result<Chosen> {
    let at = &opened.destination.name;
    let stored = DeadLetterFilter { ids: args.ids.clone(), ..args.filter.of_store() };
    let nothing = || {
        let hint = "`relevo dead list --history` shows all that there are";
        not_found(format!("no such dead letter at destination `{at}`; hint: {hint}"))
    };
    if args.ids.is_empty() && !args.filter.looks_inside() {
        if args.filter.chooses() && opened.outbox.list_dead_letters(&stored, 1).await?.is_empty() {
            return Err(nothing());
        }
        return Ok(Chosen { filters: vec![stored], unmatched: Vec::new() });
    }
    let mut letters = opened.outbox.list_dead_letters(&stored, EVERY).await?;
    letters.retain(|letter| args.filter.admits(letter));
    if letters.is_empty() {
        return Err(nothing());
    }
    let known: BTreeSet<MessageId> = letters.iter().map(|letter| letter.message.id).collect();
    let unmatched: Vec<MessageId> = args.ids.iter().filter(|id| !known.contains(id)).copied().collect();
    for id in &unmatched {
        say(&format!("{id} is no such dead letter at destination `{at}`"));
    }
    // Only those that were named: a filter may well mean letters that were marked long ago.
    for letter in letters.iter().filter(|letter| !args.ids.is_empty() && letter.state != DEAD) {
        say(&format!("{} is `{}` already", letter.message.id, letter.state));
    }
    let ids: Vec<MessageId> = letters.iter().filter(|it| it.state == DEAD).map(|it| it.message.id).collect();
    let filter = |ids: &[MessageId]| DeadLetterFilter { ids: ids.to_vec(), ..DeadLetterFilter::default() };
    Ok(Chosen { filters: ids.chunks(IDS_MAX).map(filter).collect(), unmatched })
}

impl Chosen {
    fn answer(&self, args: &Args, wish: Wish, count: u64) -> Result<()> {
        let (word, dry_run) = (wish.word(), args.dry_run);
        if args.format.json {
            let unmatched: Vec<String> = self.unmatched.iter().map(ToString::to_string).collect();
            output::line(&json!({ "mark": word, "dry_run": dry_run, "count": count, "unmatched": unmatched }))?;
        } else if dry_run {
            say(&format!("{} would be marked `{word}`, nothing was changed", counted(count)));
        } else {
            let acts = if count > 0 { ": the relay of their shard acts" } else { "" };
            say(&format!("{} marked `{word}`{acts}", counted(count)));
        }
        Ok(())
    }
}

/// A number of dead letters.
pub(super) fn counted(count: u64) -> String {
    if count == 1 { "1 dead letter".to_owned() } else { format!("{count} dead letters") }
}
