//! `relevo why`

use std::io::{self, Write as _};

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::outbox::inspect::MessageSummary;
use relevo_core::outbox::why::{self, KeyReport, WaitCause};
use serde_json::{Value, json};

use super::output::{self, Format};
use super::{moment, table};
use crate::exit::Code;
use crate::outbox::{self, Which};

/// Which key.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// The key.
    key: String,
    #[command(flatten)]
    format: Format,
}

pub(super) async fn run(args: &Args) -> Result<Code> {
    let opened = outbox::open(&args.which).await?;
    let why = why::explain(opened.outbox.key_facts(&opened.destination.name, &args.key).await?);
    let destination = &opened.destination.name;
    let mut out = io::stdout().lock();
    if args.format.json {
        writeln!(out, "{}", object(&args.key, destination, &why))?;
    } else {
        for line in prose(&args.key, destination, &why, Timestamp::now()) {
            writeln!(out, "{}", table::plain(&line))?;
        }
    }
    Ok(Code::Done)
}

fn object(key: &str, destination: &str, why: &KeyReport) -> Value {
    let mut value = json!({
        "key": key,
        "destination": destination,
        "cause": word(&why.cause),
        "head": why.head.as_ref().map(|head| output::listed(head, destination)),
        "waiting": why.waiting,
        "since": output::time(why.since),
        "shard": output::shard(&why.shard),
    });
    match &why.cause {
        WaitCause::Idle | WaitCause::NotReadYet | WaitCause::NoRelay | WaitCause::Disabled => {}
        WaitCause::Retrying { at } | WaitCause::Quarantined { at } | WaitCause::Scheduled { at } => {
            value["at"] = output::time(Some(*at));
        }
        WaitCause::AddressHeld { held_address: hold, probe_at } => {
            value["address"] = hold.address.as_str().into();
            value["error"] = hold.error.as_str().into();
            value["at"] = output::time(*probe_at);
        }
        WaitCause::DeadLetter { id } => value["id"] = id.to_string().into(),
        WaitCause::MarkNotApplied { id, mark } => {
            value["id"] = id.to_string().into();
            value["mark"] = mark.pending_state().as_str().into();
        }
    }
    value
}

/// The word that JSON has for a cause.
const fn word(cause: &WaitCause) -> &'static str {
    match cause {
        WaitCause::Idle => "nothing",
        WaitCause::NotReadYet => "unread",
        WaitCause::NoRelay => "no_relay",
        WaitCause::Disabled => "switched_off",
        WaitCause::Retrying { .. } => "retry",
        WaitCause::AddressHeld { .. } => "held",
        WaitCause::Quarantined { .. } => "quarantined",
        WaitCause::DeadLetter { .. } => "dead",
        WaitCause::MarkNotApplied { .. } => "marked",
        WaitCause::Scheduled { .. } => "scheduled",
    }
}

/// Behind what, since when, and what would free it.
fn prose(key: &str, destination: &str, why: &KeyReport, now: Timestamp) -> Vec<String> {
    let to = format!("on its way to `{destination}`");
    let mut lines = Vec::new();
    if why.cause == WaitCause::Idle {
        lines.push(format!("Nothing of key `{key}` waits {to}."));
        return lines;
    }
    let messages = match why.waiting {
        1 => "1 message waits".to_owned(),
        count => format!("{count} messages wait"),
    };
    let since = why.since.map_or_else(String::new, |since| format!(", since {}", moment::told(since, now)));
    lines.push(format!("Key `{key}`: {messages} {to}{since}."));
    lines.push(reason(why, destination, now));
    if let Some(head) = &why.head {
        lines.push(first(head));
    }
    lines.push(format!("What frees it: {}", remedy(key, destination, why)));
    lines
}

fn reason(why: &KeyReport, destination: &str, now: Timestamp) -> String {
    let shard = why.shard.shard;
    match &why.cause {
        WaitCause::Idle => String::new(),
        WaitCause::NotReadYet => {
            let relay = why.shard.owner.as_deref().unwrap_or("a relay");
            format!("Why: relay `{relay}` holds shard {shard} and has not read that far.")
        }
        WaitCause::NoRelay => format!("Why: no relay holds shard {shard} of destination `{destination}`."),
        WaitCause::Disabled => format!("Why: destination `{destination}` is switched off."),
        WaitCause::Retrying { at } => {
            format!("Why: the first one failed and is tried again at {}.", moment::told(*at, now))
        }
        WaitCause::AddressHeld { held_address: hold, probe_at } => {
            let probe = probe_at.map_or_else(String::new, |at| format!("; it is probed at {}", moment::told(at, now)));
            format!("Why: nothing passes to address `{}`: {}{probe}.", hold.address, hold.error)
        }
        WaitCause::Quarantined { at } => {
            format!("Why: the first one took connections down; it is tried alone at {}.", moment::told(*at, now))
        }
        WaitCause::DeadLetter { .. } => "Why: the first one was given up, and the key waits for a person.".to_owned(),
        WaitCause::MarkNotApplied { mark, .. } => {
            let mark = mark.pending_state().as_str();
            format!("Why: a person marked the first one (`{mark}`), and the relay of shard {shard} has not acted yet.")
        }
        WaitCause::Scheduled { at } => format!("Why: the first one is not due before {}.", moment::told(*at, now)),
    }
}

fn first(head: &MessageSummary) -> String {
    let failed = match (head.attempts, &head.last_error) {
        (_, None) => String::new(),
        (0, Some(error)) => format!("; {error}"),
        (1, Some(error)) => format!("; failed once: {error}"),
        (attempts, Some(error)) => format!("; failed {attempts} times, last: {error}"),
    };
    format!("First: {} (`{}`, topic `{}`){failed}.", head.id, head.kind, head.topic)
}

/// What to do, with the command to type.
fn remedy(key: &str, destination: &str, why: &KeyReport) -> String {
    match &why.cause {
        WaitCause::Idle => String::new(),
        WaitCause::NotReadYet => {
            "nothing to do unless it lasts; `relevo backlog` says how much is before it.".to_owned()
        }
        WaitCause::NoRelay => "start a relay: `relevo run`; `relevo shards` shows who is there.".to_owned(),
        WaitCause::Disabled => format!("`relevo destination switch {destination} on`"),
        WaitCause::Retrying { .. } | WaitCause::Quarantined { .. } => {
            "that attempt; after the last one it becomes a dead letter.".to_owned()
        }
        WaitCause::AddressHeld { .. } => {
            "mend the address; the next probe that passes frees every key that waits for it.".to_owned()
        }
        WaitCause::DeadLetter { id } => {
            let on = format!("--destination {destination} --reason TEXT");
            format!(
                "`relevo dead redrive {id} {on}` sends it again, `relevo dead discard {id} {on}` lets key `{key}` go on without it"
            )
        }
        WaitCause::MarkNotApplied { .. } => {
            "the relay that holds the shard; `relevo shards` shows who that is.".to_owned()
        }
        WaitCause::Scheduled { .. } => "its time; until then it can be cancelled.".to_owned(),
    }
}
