//! `relevo why`

use std::io::{self, Write as _};

use anyhow::Result;
use jiff::Timestamp;
use relevo_core::outbox::inspect::MessageSummary;
use relevo_core::outbox::why::{self, KeyReport, WaitCause};
use serde_json::{Value, json};

use crate::args::DestinationArgs;
use crate::connect;
use crate::exit::ExitStatus;
use crate::output::{self, OutputArgs};
use crate::output::{table, time};

/// Which key.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: relevo why o-42 --destination main")]
pub(crate) struct Args {
    /// The key.
    key: String,
    #[command(flatten)]
    which: DestinationArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let opened = connect::open(&args.which).await?;
    let why = why::explain(opened.outbox.key_facts(&opened.destination.name, &args.key).await?);
    let destination = &opened.destination.name;
    let mut out = io::stdout().lock();
    if args.output.is_json() {
        writeln!(out, "{}", object(&args.key, destination, &why))?;
    } else {
        for line in report_lines(&args.key, destination, &why, Timestamp::now()) {
            writeln!(out, "{}", table::plain(&line))?;
        }
    }
    Ok(ExitStatus::Success)
}

fn object(key: &str, destination: &str, why: &KeyReport) -> Value {
    let mut value = json!({
        "key": key,
        "destination": destination,
        "cause": cause_name(&why.cause),
        "head": why.head.as_ref().map(|head| output::listed(head, destination)),
        "waiting": why.waiting,
        "since": output::timestamp(why.since),
        "shard": output::shard(&why.shard),
    });
    match &why.cause {
        WaitCause::Idle | WaitCause::NotReadYet | WaitCause::NoRelay | WaitCause::Disabled => {}
        WaitCause::Retrying { at } | WaitCause::Quarantined { at } | WaitCause::Scheduled { at } => {
            value["at"] = output::timestamp(Some(*at));
        }
        WaitCause::AddressHeld { held_address: hold, probe_at } => {
            value["address"] = hold.address.as_str().into();
            value["error"] = hold.error.as_str().into();
            value["at"] = output::timestamp(*probe_at);
        }
        WaitCause::DeadLetter { id } => value["id"] = id.to_string().into(),
        WaitCause::MarkNotApplied { id, mark } => {
            value["id"] = id.to_string().into();
            value["mark"] = mark.pending_state().as_str().into();
        }
    }
    value
}

/// The name of a cause in JSON.
const fn cause_name(cause: &WaitCause) -> &'static str {
    match cause {
        WaitCause::Idle => "not_waiting",
        WaitCause::NotReadYet => "not_read_yet",
        WaitCause::NoRelay => "no_relay",
        WaitCause::Disabled => "destination_disabled",
        WaitCause::Retrying { .. } => "retry_scheduled",
        WaitCause::AddressHeld { .. } => "address_held",
        WaitCause::Quarantined { .. } => "quarantined",
        WaitCause::DeadLetter { .. } => "dead_letter",
        WaitCause::MarkNotApplied { .. } => "mark_not_applied",
        WaitCause::Scheduled { .. } => "scheduled",
    }
}

/// How many messages wait, why, behind which message, and what to do.
fn report_lines(key: &str, destination: &str, why: &KeyReport, now: Timestamp) -> Vec<String> {
    if why.cause == WaitCause::Idle {
        return vec![format!("Key `{key}`: no message waits for destination `{destination}`.")];
    }
    let messages = match why.waiting {
        1 => "1 message waits".to_owned(),
        count => format!("{count} messages wait"),
    };
    let since = why.since.map_or_else(String::new, |since| format!(", since {}", time::with_age(since, now)));
    let mut lines = vec![
        format!("Key `{key}`: {messages} for destination `{destination}`{since}."),
        format!("Why: {}", reason(why, destination, now)),
    ];
    lines.extend(why.head.as_ref().map(first_message));
    lines.push(format!("Next step: {}", next_step(key, destination, why)));
    lines
}

fn reason(why: &KeyReport, destination: &str, now: Timestamp) -> String {
    let shard = why.shard.shard;
    match &why.cause {
        WaitCause::Idle => String::new(),
        WaitCause::NotReadYet => {
            let relay = why.shard.owner.as_deref().unwrap_or("a relay");
            format!("relay `{relay}` holds shard {shard} and has not read the message yet.")
        }
        WaitCause::NoRelay => format!("no relay holds shard {shard} of destination `{destination}`."),
        WaitCause::Disabled => format!("destination `{destination}` is disabled."),
        WaitCause::Retrying { at } => {
            format!("the first message failed, next attempt at {}.", time::with_age(*at, now))
        }
        WaitCause::AddressHeld { held_address: hold, probe_at } => {
            let probe = probe_at.map_or_else(String::new, |at| format!("; next probe at {}", time::with_age(at, now)));
            format!("address `{}` rejects every message: {}{probe}.", hold.address, hold.error)
        }
        WaitCause::Quarantined { at } => {
            format!("the first message broke connections, next attempt alone at {}.", time::with_age(*at, now))
        }
        WaitCause::DeadLetter { .. } => {
            "the first message is a dead letter, and the key waits for an operator.".to_owned()
        }
        WaitCause::MarkNotApplied { mark, .. } => {
            let mark = mark.pending_state().as_str();
            format!(
                "an operator marked the first message (`{mark}`), and the relay of shard {shard} has not applied the mark yet."
            )
        }
        WaitCause::Scheduled { at } => format!("the first message is not due before {}.", time::with_age(*at, now)),
    }
}

fn first_message(head: &MessageSummary) -> String {
    let failed = match (head.attempts, &head.last_error) {
        (_, None) => String::new(),
        (0, Some(error)) => format!("; {error}"),
        (1, Some(error)) => format!("; failed once: {error}"),
        (attempts, Some(error)) => format!("; failed {attempts} times, last error: {error}"),
    };
    format!("First message: {} (`{}`, topic `{}`){failed}.", head.id, head.kind, head.topic)
}

/// What to do, with the command to type.
fn next_step(key: &str, destination: &str, why: &KeyReport) -> String {
    match &why.cause {
        WaitCause::Idle => String::new(),
        WaitCause::NotReadYet => {
            format!("none, unless this lasts; `relevo destination show {destination}` shows how many messages wait.")
        }
        WaitCause::NoRelay => {
            format!("start a relay: `relevo run`; `relevo destination show {destination}` shows the owners of shards.")
        }
        WaitCause::Disabled => format!("`relevo destination enable {destination}` enables it."),
        WaitCause::Retrying { .. } | WaitCause::Quarantined { .. } => {
            "none; the relay retries it, and dead-letters it after the last attempt.".to_owned()
        }
        WaitCause::AddressHeld { .. } => {
            "fix the address; the next successful probe releases every key that waits for it.".to_owned()
        }
        WaitCause::DeadLetter { id } => {
            let on = format!("--destination {destination} --reason TEXT");
            format!(
                "`relevo dead-letter redrive {id} {on}` publishes it again, `relevo dead-letter discard {id} {on}` continues key `{key}` without it."
            )
        }
        WaitCause::MarkNotApplied { .. } => {
            format!(
                "none; the relay that holds the shard applies the mark; `relevo destination show {destination}` shows that relay."
            )
        }
        WaitCause::Scheduled { .. } => "none; it can be cancelled until it is due.".to_owned(),
    }
}
