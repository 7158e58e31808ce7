//! Redriving and discarding.

use std::collections::BTreeMap;

use anyhow::Result;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetterFilter, DeadLetterOwner, DeadLetterState, MarkAction, MarkRequest};
use serde_json::json;

use super::filter::FilterArgs;
use super::owner::{DeadLetters, OwnerArgs, described, exact, option};
use crate::args::{ConfirmArg, OutboxArgs};
use crate::commands::consumer;
use crate::connect::REWRITE_TIMEOUT;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, not_found, usage};
use crate::host;
use crate::output::{self, OutputArgs, count};
use crate::prompt::confirm;

/// Dead letters that one look-up of ids returns per owner: an id can be dead in several replays.
const MATCHES_MAX: usize = 10_000;

/// Which dead letters, who marks them, and why.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("selection").required(true).multiple(true))]
pub(crate) struct MarkArgs {
    /// Their ids.
    #[arg(group = "selection", value_name = "ID", value_parser = crate::args::message_id)]
    ids: Vec<MessageId>,
    #[command(flatten)]
    owner: OwnerArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// All dead letters of the destination or the consumer.
    #[arg(long, group = "selection", conflicts_with_all = ["ids", "FilterArgs"])]
    all: bool,
    /// Only counts them.
    #[arg(long)]
    dry_run: bool,
    /// The reason; it is stored with the dead letters.
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run", value_parser = host::not_empty)]
    reason: Option<String>,
    /// The operator; stored with the dead letters [default: user and host].
    #[arg(long, value_name = "NAME", value_parser = host::not_empty)]
    by: Option<String>,
    #[command(flatten)]
    yes: ConfirmArg,
    #[command(flatten)]
    target: OutboxArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A redrive, at a limited rate.
#[derive(Debug, clap::Args)]
pub(crate) struct RedriveArgs {
    #[command(flatten)]
    mark: MarkArgs,
    /// The number of messages per second; consumers only [default: all at once].
    #[arg(long, value_name = "N", conflicts_with = "destination", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
}

pub(super) async fn redrive(args: &RedriveArgs) -> Result<ExitStatus> {
    mark(&args.mark, MarkAction::Redrive, args.rate).await
}

pub(super) async fn discard(args: &MarkArgs) -> Result<ExitStatus> {
    mark(args, MarkAction::Discard, None).await
}

async fn mark(args: &MarkArgs, action: MarkAction, rate: Option<u32>) -> Result<ExitStatus> {
    args.filter.check()?;
    if args.ids.is_empty() && args.owner.is_any() {
        return Err(usage(
            "a filter selects dead letters of one destination or one consumer; hint: add `--destination NAME` or \
             `--consumer NAME`",
        ));
    }
    let letters = DeadLetters::open(&args.target, &args.owner, REWRITE_TIMEOUT).await?;
    let Selection { owner, unmatched } = select(args, &letters).await?;
    if rate.is_some() && matches!(owner, DeadLetterOwner::Destination(_)) {
        return Err(usage(format!("`--rate` is for consumers; {} publishes at its own pace", described(&owner))));
    }
    let request = |dry_run| MarkRequest {
        filter: DeadLetterFilter { ids: args.ids.clone(), ..args.filter.of(owner.clone()) },
        action,
        dry_run,
        rate_per_second: rate,
        by: args.by.clone().unwrap_or_else(host::user_at_host),
        reason: args.reason.clone().unwrap_or_else(|| "dry run".to_owned()),
    };
    let mut marked = send(&letters, &request(true)).await?;
    if !args.dry_run {
        if marked > 0 {
            let (word, number) = (action.as_str(), count(marked, "dead letter"));
            let question = format!("{word} {number} of {}? {}", described(&owner), consequence(action, &owner));
            confirm(args.yes, &question)?;
        }
        // Sent in any case: what matched before the question may have changed.
        marked = send(&letters, &request(false)).await?;
    }
    report(args, action, &owner, marked, &unmatched)?;
    if !args.dry_run
        && marked > 0
        && action == MarkAction::Redrive
        && !args.output.is_json()
        && let DeadLetterOwner::Consumer(name) = &owner
    {
        print_stderr(&consumer::who_handles(&consumer::find(&*letters.consumers, name).await?.summary));
    }
    Ok(ExitStatus::Success)
}

/// Repeats the request until the store has changed all. A dry run is sent once.
async fn send(letters: &DeadLetters, request: &MarkRequest) -> Result<u64> {
    let mut total = 0;
    loop {
        let report = letters.admin(&request.filter.owner).mark_dead_letters(request).await?;
        total += report.count;
        if !report.more || request.dry_run {
            return Ok(total);
        }
    }
}

/// The owner of the dead letters, and the ids that match none.
struct Selection {
    owner: DeadLetterOwner,
    unmatched: Vec<MessageId>,
}

/// Finds what the arguments select, and reports ids that cannot be marked. An error if nothing matches.
async fn select(args: &MarkArgs, letters: &DeadLetters) -> Result<Selection> {
    if args.all
        && let [owner] = &letters.owners[..]
    {
        return Ok(Selection { owner: owner.clone(), unmatched: Vec::new() });
    }
    let limit = if args.ids.is_empty() { 1 } else { MATCHES_MAX };
    let mut owners: BTreeMap<String, (DeadLetterOwner, DeadLetterState)> = BTreeMap::new();
    let mut states: BTreeMap<MessageId, DeadLetterState> = BTreeMap::new();
    for owner in &letters.owners {
        let filter = DeadLetterFilter { ids: args.ids.clone(), ..args.filter.of(owner.clone()) };
        for letter in letters.admin(owner).list_dead_letters(&filter, None, limit).await?.letters {
            let owner = exact(owner, &letter.owner);
            let (_, state) = owners.entry(option(&owner)).or_insert((owner, letter.state));
            *state = (*state).min(letter.state);
            let state = states.entry(letter.id).or_insert(letter.state);
            *state = (*state).min(letter.state);
        }
    }
    let owner = only_owner(args, letters, owners)?;
    let unmatched: Vec<MessageId> = args.ids.iter().filter(|id| !states.contains_key(id)).copied().collect();
    for id in &unmatched {
        print_stderr(&format!("{id} is no such dead letter of {}", described(&owner)));
    }
    for (id, state) in states.iter().filter(|(id, state)| **state != DeadLetterState::Dead && args.ids.contains(id)) {
        print_stderr(&format!("{id} is already `{}`", state.as_str()));
    }
    Ok(Selection { owner, unmatched })
}

/// The one owner of all matches. Owners whose dead letters are all finished count only if there is no other.
fn only_owner(
    args: &MarkArgs,
    letters: &DeadLetters,
    mut owners: BTreeMap<String, (DeadLetterOwner, DeadLetterState)>,
) -> Result<DeadLetterOwner> {
    if owners.values().any(|(_, state)| *state == DeadLetterState::Dead) {
        owners.retain(|_, (_, state)| *state == DeadLetterState::Dead);
    }
    if owners.len() > 1 {
        let options = owners.into_keys().collect::<Vec<_>>().join("` or `");
        return Err(usage(format!("the message is dead-lettered more than once; hint: add `{options}`")));
    }
    owners.into_values().next().map(|(owner, _)| owner).ok_or_else(|| {
        let (whose, option) = match &letters.owners[..] {
            [owner] if !args.owner.is_any() => (described(owner), format!(" {}", option(owner))),
            _ => ("this database".to_owned(), String::new()),
        };
        not_found(format!(
            "{whose} has no such dead letter; hint: `relevo dead-letter list --history{option}` lists all of them"
        ))
    })
}

const fn consequence(action: MarkAction, owner: &DeadLetterOwner) -> &'static str {
    match (action, owner) {
        (MarkAction::Redrive, DeadLetterOwner::Destination(_)) => {
            "they are published again, before the messages that wait behind them"
        }
        (MarkAction::Redrive, _) => "they are handled again, before the messages that wait behind them",
        (MarkAction::Discard, DeadLetterOwner::Destination(_)) => {
            "they are never published, and their keys continue without them"
        }
        (MarkAction::Discard, _) => "they are not handled, and their keys continue without them",
    }
}

fn report(
    args: &MarkArgs,
    action: MarkAction,
    owner: &DeadLetterOwner,
    marked: u64,
    unmatched: &[MessageId],
) -> Result<()> {
    let (destination, consumer) = match owner {
        DeadLetterOwner::Destination(name) => (Some(name), None),
        DeadLetterOwner::Consumer(name) => (None, Some(name)),
        DeadLetterOwner::AnyConsumer => (None, None),
    };
    if args.output.is_json() {
        let unmatched: Vec<String> = unmatched.iter().map(ToString::to_string).collect();
        return output::line(&json!({
            "destination": destination, "consumer": consumer, "action": action.as_str(), "dry_run": args.dry_run,
            "count": marked, "unmatched": unmatched,
        }));
    }
    let number = count(marked, "dead letter");
    let state = action.final_state().as_str();
    print_stderr(&if marked == 0 {
        "no matching dead letter is in state `dead`, nothing was changed".to_owned()
    } else if args.dry_run {
        format!("{number} would be {state}, nothing was changed")
    } else if destination.is_some() {
        let pending = action.pending_state().as_str();
        format!("{number} marked `{pending}`; the relay that holds the shard applies the mark")
    } else {
        format!("{number} {state}")
    });
    Ok(())
}
