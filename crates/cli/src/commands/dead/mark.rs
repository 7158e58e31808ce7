//! Marking dead letters. The relay that holds their shard acts on the marks, so that order is kept.

use std::io::{self, Write as _};

use anyhow::Result;
use relevo_core::MessageId;
use relevo_core::store::{DeadFilter, Mark};
use serde_json::json;

use crate::args::Sure;
use crate::ask::confirm;
use crate::commands::output::Format;
use crate::exit::{Code, not_found};
use crate::outbox::{self, Opened, Which};
use crate::report::say;

/// Which dead letters are marked, by whom, and why.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("chosen").required(true).multiple(true))]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// Their ids.
    #[arg(group = "chosen", value_name = "ID")]
    ids: Vec<MessageId>,
    /// Those of this key.
    #[arg(long, group = "chosen")]
    key: Option<String>,
    /// Those of this route.
    #[arg(long, group = "chosen")]
    route: Option<String>,
    /// All that nobody marked.
    #[arg(long, group = "chosen", conflicts_with_all = ["ids", "key", "route"])]
    all: bool,
    /// Only says how many would be marked.
    #[arg(long)]
    dry_run: bool,
    /// Why; it is recorded.
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run", value_parser = not_empty)]
    reason: Option<String>,
    /// Who asks; it is recorded. The user and the machine otherwise.
    #[arg(long, value_name = "NAME", value_parser = not_empty)]
    by: Option<String>,
    #[command(flatten)]
    sure: Sure,
    #[command(flatten)]
    format: Format,
}

fn not_empty(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("it is recorded, and so cannot be empty".to_owned()) } else { Ok(text.to_owned()) }
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
    let opened = outbox::open(&args.which).await?;
    let filter = DeadFilter { ids: args.ids.clone(), key: args.key.clone(), route: args.route.clone() };
    let by = args.by.clone().unwrap_or_else(whoever);
    let reason = args.reason.clone().unwrap_or_else(|| "dry run".to_owned());
    let mut mark = Mark { filter, dry_run: true, by, reason };
    let call = async |mark: &Mark| match wish {
        Wish::Redrive => opened.outbox.redrive(mark).await,
        Wish::Discard => opened.outbox.discard(mark).await,
    };
    let would = call(&mark).await?;
    if would == 0 {
        unmarked(&opened, &mark.filter).await?;
    }
    if args.dry_run {
        answer(args, wish, would, true)?;
        return Ok(Code::Done);
    }
    if would > 0 {
        let (word, at) = (wish.word(), &opened.destination.name);
        confirm(args.sure, &format!("{word} {} of destination `{at}`? {}", counted(would), wish.means()))?;
    }
    mark.dry_run = false;
    // Asked even where nothing would be marked: the answer is the database's, and not what was true a moment ago.
    let marked = call(&mark).await?;
    answer(args, wish, marked, false)?;
    Ok(Code::Done)
}

/// Ids that are no dead letters at all are an error; those that are marked already are none.
async fn unmarked(opened: &Opened, filter: &DeadFilter) -> Result<()> {
    let letters = opened.outbox.dead(filter, 10).await?;
    if letters.is_empty() && (!filter.ids.is_empty() || filter.key.is_some() || filter.route.is_some()) {
        let at = &opened.destination.name;
        return Err(not_found(format!(
            "no such dead letter at destination `{at}`; hint: `relevo dead list` shows them"
        )));
    }
    for letter in letters {
        say(&format!("{} is `{}` already", letter.message.id, letter.state));
    }
    Ok(())
}

fn answer(args: &Args, wish: Wish, count: u64, dry_run: bool) -> Result<()> {
    if args.format.json {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", json!({ "mark": wish.word(), "dry_run": dry_run, "count": count }))?;
    } else if dry_run {
        say(&format!("{} would be marked `{}`, nothing was changed", counted(count), wish.word()));
    } else {
        let acts = if count > 0 { ": the relay of their shard acts" } else { "" };
        say(&format!("{} marked `{}`{acts}", counted(count), wish.word()));
    }
    Ok(())
}

/// A number of dead letters.
pub(super) fn counted(count: u64) -> String {
    if count == 1 { "1 dead letter".to_owned() } else { format!("{count} dead letters") }
}

/// The user and the machine, as far as they are known.
fn whoever() -> String {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).filter(|name| !name.is_empty());
    let host = std::env::var("HOSTNAME").ok().or_else(|| std::fs::read_to_string("/etc/hostname").ok());
    let host = host.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    let user = user.unwrap_or_else(|| "somebody".to_owned());
    host.map_or_else(|| user.clone(), |host| format!("{user}@{host}"))
}
