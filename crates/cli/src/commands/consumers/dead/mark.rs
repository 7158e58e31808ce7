//! Redriving and archiving. The store does it at once, in one transaction, and once for two who ask at the same time.

use std::collections::BTreeMap;

use anyhow::Result;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetterFilter, DeadLetterState, MarkAction, MarkRequest};
use relevo_core::inbox::ConsumerOperator;
use relevo_core::inbox::admin::ConsumerSummary;
use serde_json::json;

use super::choose;
use super::filter::Filter;
use crate::args::{ConfirmArg, OutboxArgs};
use crate::commands::dead::collect;
use crate::database::REWRITE_DEADLINE;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found};
use crate::host;
use crate::outbox::Place;
use crate::output::{self, OutputArgs};
use crate::prompt::confirm;

/// Which dead letters, by whom, and why.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("chosen").required(true).multiple(true))]
pub(crate) struct Args {
    #[command(flatten)]
    target: OutboxArgs,
    /// Their ids.
    #[arg(group = "chosen", value_name = "ID", value_parser = crate::args::message_id)]
    ids: Vec<MessageId>,
    /// The consumer that gave them up; may be left out where there is only one.
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    #[command(flatten)]
    filter: Filter,
    /// All of the consumer's that wait for a person.
    #[arg(long, group = "chosen", conflicts_with_all = ["ids", "Filter"])]
    all: bool,
    /// Only says how many there would be.
    #[arg(long)]
    dry_run: bool,
    /// Why; it is kept with the dead letter.
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run", value_parser = host::not_empty)]
    note: Option<String>,
    /// Who asks; it is recorded. The user and the machine otherwise.
    #[arg(long, value_name = "NAME", value_parser = host::not_empty)]
    by: Option<String>,
    #[command(flatten)]
    yes: ConfirmArg,
    #[command(flatten)]
    output: OutputArgs,
}

/// The same, at a pace.
#[derive(Debug, clap::Args)]
pub(crate) struct Redrive {
    #[command(flatten)]
    args: Args,
    /// So many a second are tried; all at once otherwise.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
}

/// What is asked for.
#[derive(Clone, Copy)]
enum Wish {
    Redrive { rate: Option<u32> },
    Archive,
}

impl Wish {
    const fn word(self) -> &'static str {
        match self {
            Self::Redrive { .. } => "redrive",
            Self::Archive => "archive",
        }
    }

    /// What a dead letter is afterwards.
    const fn past(self) -> &'static str {
        match self {
            Self::Redrive { .. } => "redriven",
            Self::Archive => "discarded",
        }
    }

    const fn means(self) -> &'static str {
        match self {
            Self::Redrive { .. } => "they are handled again, before what waits of their keys",
            Self::Archive => "they are not handled, and their keys go on without them",
        }
    }

    const fn action(self) -> MarkAction {
        match self {
            Self::Redrive { .. } => MarkAction::Redrive,
            Self::Archive => MarkAction::Discard,
        }
    }

    const fn rate(self) -> Option<u32> {
        match self {
            Self::Redrive { rate } => rate,
            Self::Archive => None,
        }
    }
}

pub(super) async fn redrive(redrive: &Redrive) -> Result<ExitStatus> {
    mark(&redrive.args, Wish::Redrive { rate: redrive.rate }).await
}

pub(super) async fn archive(args: &Args) -> Result<ExitStatus> {
    mark(args, Wish::Archive).await
}

async fn mark(args: &Args, wish: Wish) -> Result<ExitStatus> {
    args.filter.check()?;
    // All of them are one transaction, however many they are.
    let consumers = Place::of(&args.target)?.consumers_within(REWRITE_DEADLINE).await?;
    let consumer = choose(&*consumers, args.consumer.as_deref()).await?;
    let filter = DeadLetterFilter { ids: args.ids.clone(), ..args.filter.of_store(Some(&consumer.name)) };
    let unmatched = look(args, &*consumers, &consumer.name, &filter).await?;
    let request = |dry_run| MarkRequest {
        filter: filter.clone(),
        action: wish.action(),
        dry_run,
        rate_per_second: wish.rate(),
        by: args.by.clone().unwrap_or_else(host::user_at_host),
        reason: args.note.clone().unwrap_or_else(|| "dry run".to_owned()),
    };
    let would = consumers.mark_dead_letters(&request(true)).await?.count;
    if !args.dry_run && would > 0 {
        let (word, name) = (wish.word(), &consumer.name);
        confirm(args.yes, &format!("{word} {} of consumer `{name}`? {}", counted(would), wish.means()))?;
    }
    // Asked even where no dead letter matches: the answer is the database's, and not what was true a moment ago.
    let count = if args.dry_run { would } else { consumers.mark_dead_letters(&request(false)).await?.count };
    answer(args, wish, &consumer, count, &unmatched)?;
    Ok(ExitStatus::Success)
}

/// Looks for what was typed, and says on stderr what of it is no dead letter, or waits for nobody. If nothing of it is there,
/// that is an error.
async fn look(
    args: &Args,
    consumers: &dyn ConsumerOperator,
    name: &str,
    filter: &DeadLetterFilter,
) -> Result<Vec<MessageId>> {
    if args.ids.is_empty() && !args.filter.chooses() {
        return Ok(Vec::new());
    }
    let limit = args.ids.is_empty().then_some(1);
    let (letters, _) = collect(consumers, filter, limit).await?;
    if letters.is_empty() {
        let hint = format!("`relevo consumers dead list --consumer {name} --history` shows all that there are");
        return Err(not_found(format!("consumer `{name}` has no such dead letter; hint: {hint}")));
    }
    let mut found: BTreeMap<MessageId, DeadLetterState> = BTreeMap::new();
    for dead in &letters {
        // One that waits counts before those of other replays that do not.
        let fate = found.entry(dead.id).or_insert(dead.state);
        *fate = (*fate).min(dead.state);
    }
    let unmatched: Vec<MessageId> = args.ids.iter().filter(|id| !found.contains_key(id)).copied().collect();
    for id in &unmatched {
        print_stderr(&format!("{id} is no such dead letter of consumer `{name}`"));
    }
    for (id, fate) in found.iter().filter(|(id, fate)| **fate != DeadLetterState::Dead && args.ids.contains(id)) {
        print_stderr(&format!("{id} is `{}` already", fate.as_str()));
    }
    Ok(unmatched)
}

fn answer(args: &Args, wish: Wish, consumer: &ConsumerSummary, count: u64, unmatched: &[MessageId]) -> Result<()> {
    if args.output.is_json() {
        let unmatched: Vec<String> = unmatched.iter().map(ToString::to_string).collect();
        return output::line(&json!({
            "consumer": consumer.name, "mark": wish.word(), "dry_run": args.dry_run, "count": count, "unmatched": unmatched,
        }));
    }
    let past = wish.past();
    if count == 0 {
        print_stderr(&format!("no matching dead letter is in state `dead`; none was {past}"));
    } else if args.dry_run {
        print_stderr(&format!("{} would be {past}, nothing was changed", counted(count)));
    } else {
        print_stderr(&format!("{} {past}", counted(count)));
        if matches!(wish, Wish::Redrive { .. }) {
            print_stderr(&who_acts(consumer));
        }
    }
    Ok(())
}

/// Who handles them now, or why nobody does.
fn who_acts(consumer: &ConsumerSummary) -> String {
    let name = &consumer.name;
    match (consumer.paused, consumer.members) {
        (true, _) => format!("`{name}` is paused: they wait\nhint: `relevo consumers resume {name}`"),
        (false, 0) => format!("no member of `{name}` is alive: they wait for the next one that starts"),
        (false, _) => format!("a member of `{name}` handles them; what fails again is in `relevo consumers dead list`"),
    }
}

/// A number of dead letters.
pub(super) fn counted(count: u64) -> String {
    if count == 1 { "1 dead letter".to_owned() } else { format!("{count} dead letters") }
}
